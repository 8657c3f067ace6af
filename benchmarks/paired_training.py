"""Does a change make training slower? Two checkouts train the same tasks in turns, so that drift meets both.

    git worktree add ../before COMMIT && make -C ../before install
    python benchmarks/paired_training.py ../before

Each checkout trains with the Python of its own ``.venv``. Only one of the two runs at a time: after each slice of a few
seconds its processes are paused and the other one continues. A line gives the agent steps per second of both and their
ratio, and the ratio of the CPU time of all processes for a step; the last line is JSON. On a machine of two cores,
ratios of one round vary by 2 to 3 %, and the checkout that begins second may be ahead by a few percent: use an even
number of rounds, which begin with one and the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Name -> preset, algorithm (empty: the preset's own), settings.
CASES: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "cartpole": ("gym/CartPole-v1", "", {}),
    "breakout": ("atari/breakout", "", {}),
    "defend_the_center": ("vizdoom/defend_the_center", "", {}),
    "halfcheetah_sac": (
        *("mujoco/HalfCheetah-v5", "sac"),
        {"replay.capacity": 200_000, "off_policy.random_steps": 1_000, "replay.min_size": 2_000},
    ),
}
_PAUSED, _READY, _RESULT = "PAUSED", "READY", "RESULT "


class Side:
    """One checkout's training of one case, in a process that runs only when told to.

    Args:
        checkout: With a ``.venv``.
        case: Of ``CASES``.
        seconds: Measured training, all slices together.
        slices: How many.
    """

    def __init__(self, checkout: Path, case: str, seconds: float, slices: int) -> None:
        self.result: dict[str, float] | None = None
        self._checkout = checkout
        command = [checkout / ".venv/bin/python", __file__, "--child", case]
        self._process = subprocess.Popen(
            [*map(str, command), "--seconds", str(seconds), "--slices", str(slices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._wait()

    def turn(self) -> None:
        """Train for a slice; the first turn starts the run and warms it up."""
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        self._wait()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_RESULT):
                self.result = json.loads(line.removeprefix(_RESULT))
            if line.startswith((_PAUSED, _READY, _RESULT)):
                return
        raise SystemExit(f"training in {self._checkout} failed: see the error above")


def pair(before: Path, case: str, seconds: float, slices: int, *, swapped: bool) -> dict[str, Any]:
    """Train one case in both checkouts, slice by slice in turns."""
    sides = {"before": Side(before, case, seconds, slices), "now": Side(ROOT, case, seconds, slices)}
    order = sorted(sides, reverse=swapped)
    while any(side.result is None for side in sides.values()):
        for name in order:
            if sides[name].result is None:
                sides[name].turn()
    before_, now = (sides[name].result for name in ("before", "now"))
    assert before_ is not None
    assert now is not None
    return {"before": before_, "now": now, **{f"{key}_ratio": now[key] / before_[key] for key in now}}


def child(case: str, seconds: float, slices: int) -> None:
    """Train one case and pause after each slice, until a line on standard input."""
    from rollmill.api import make_config
    from rollmill.benchmarking.train import measure_training

    preset, algo, settings = CASES[case]
    config = make_config(preset, settings, algo=algo or None).resolved()
    cpu: list[float] = []

    def pause() -> None:
        cpu.append(_cpu_seconds())
        print(_PAUSED, flush=True)
        sys.stdin.readline()

    print(_READY, flush=True)
    sys.stdin.readline()
    speed = measure_training(config, seconds, slices=slices, between=pause).steps_per_second
    steps = speed * (seconds / slices) * (len(cpu) - 1)
    result = {"steps_per_second": speed, "cpu_s_per_million_steps": (cpu[-1] - cpu[0]) / steps * 1e6}
    print(_RESULT + json.dumps(result), flush=True)


def _cpu_seconds() -> float:
    """CPU time of this process's descendants so far."""
    parent, ticks = dict[int, int](), dict[int, int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parent[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    own, total = os.getpid(), 0
    for process in parent:
        above = process
        while above and above != own:
            above = parent.get(above, 0)
        total += ticks[process] if above == own else 0
    return total / os.sysconf("SC_CLK_TCK")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the cases and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="a checkout with a .venv of its own")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=60.0, help="measured training of each checkout in a round")
    parser.add_argument("--slices", type=int, default=12, help="turns of each checkout in a round, at least 3")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--child", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        child(arguments.child, arguments.seconds, arguments.slices)
        return
    if arguments.before is None or not (arguments.before / ".venv/bin/python").exists() or arguments.slices < 3:
        parser.error("give a checkout in which `make install` has run, and at least 3 slices")
    ratios: dict[str, list[float]] = {case: [] for case in arguments.cases}
    for case in arguments.cases:
        for index in range(arguments.rounds):
            found = pair(arguments.before.resolve(), case, arguments.seconds, arguments.slices, swapped=bool(index % 2))
            ratios[case].append(found["steps_per_second_ratio"])
            print(
                f"{case:18} {found['before']['steps_per_second']:10.0f} -> {found['now']['steps_per_second']:10.0f} "
                f"steps/s, ratio {ratios[case][-1]:.3f}; CPU per step {found['cpu_s_per_million_steps_ratio']:.3f}",
                flush=True,
            )
    print(json.dumps({case: {"ratios": each, "mean": statistics.mean(each)} for case, each in ratios.items()}))


if __name__ == "__main__":
    main()
