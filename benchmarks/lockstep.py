"""What lockstep costs, and what overlapping gains: async, lag 1 and lag 0 in turn, on one machine in one run.

    python benchmarks/lockstep.py --seconds 20 --rounds 3              # Atari Breakout, Nature CNN, the preset's PPO
    python benchmarks/lockstep.py --waiting --seconds 10 --rounds 3    # simulated: environments that wait, IMPALA
    python benchmarks/lockstep.py --ranks 1 2 --seconds 20 --rounds 3  # lag 1 on so many ranks of torchrun, here

Speeds are agent steps a second that the learner has consumed, from the fifth second of training on; medians over the
rounds, and ratios of the same rounds. With ``--waiting`` every environment sleeps in its step, as one does that waits
for a simulator on another machine: then cores are idle, and lag 1 has something to overlap.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import rollmill
from rollmill.reporting.metrics import read_metrics

WARM_S = 5.0
# Not reached; in lockstep there is a record for every thousandth of it.
TOTAL_STEPS = 1_000_000
REGIMES: dict[str, dict[str, object]] = {
    "async": {"regime": "async"},
    "lag 1": {"regime": "lockstep", "lag": 1},
    "lag 0": {"regime": "lockstep", "lag": 0},
}


class Waiting(gymnasium.Env[np.ndarray, int]):
    """Images, and steps that sleep for half a millisecond."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self, wait_s: float = 5e-4) -> None:
        self._wait_s = wait_s
        self._steps = 0
        self._picture = np.zeros((4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._picture = self.np_random.integers(0, 256, (4, 84, 84), np.uint8)
        return self._picture, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self._wait_s)
        self._steps += 1
        return self._picture, float(action == 0), False, self._steps >= 500, {}


def speed(preset: Any, seconds: float, settings: dict[str, object], algo: str | None) -> float:
    """Agent steps a second of one run."""
    with tempfile.TemporaryDirectory() as folder:
        rollmill.train(
            preset,
            run_dir=Path(folder) / "run",
            total_steps=TOTAL_STEPS,
            quiet=True,
            algo=algo,
            max_seconds=WARM_S + seconds,
            report_every_s=0.5,
            **{"learner.schedule": "constant", **settings},
        )
        return speed_of(Path(folder) / "run")


def speed_of_ranks(preset: str, seconds: float, ranks: int) -> float:
    """Agent steps a second of all ranks together, on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
        command = [sys.executable, "-m", *launcher, "rollmill", "train", preset, "--run-dir", f"{folder}/run"]
        settings = ["--quiet", "--regime", "lockstep", "--lag", "1", "--total-steps", str(TOTAL_STEPS)]
        settings += ["--learner.schedule", "constant", "--max-seconds", str(WARM_S + seconds)]
        subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL)
        return speed_of(Path(folder) / "run")


def speed_of(run_dir: Path) -> float:
    """Of what a run's records say, but the last, which is of its ending."""
    rows = [row for row in read_metrics(run_dir) if row["agent_steps"]]
    rows = [row for row in rows if row["time_s"] > rows[0]["time_s"] + WARM_S][:-1]
    if len(rows) < 2:
        raise SystemExit(f"{run_dir} has {len(rows)} records after its first {WARM_S:g} seconds: measure for longer")
    return (rows[-1]["agent_steps"] - rows[0]["agent_steps"]) / (rows[-1]["time_s"] - rows[0]["time_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="atari/breakout")
    parser.add_argument("--waiting", action="store_true", help="environments that wait, with IMPALA's settings")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement, after five to warm up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", help="numbers of ranks to compare, instead of regimes")
    arguments = parser.parse_args()
    preset: Any = arguments.preset
    algo, settings = None, dict[str, object]()
    if arguments.waiting:
        preset, algo = Waiting, "impala"
        settings = {"num_envs": 32, "envs_per_group": 8, "model.encoder": "nature", "model.normalise_returns": False}
    names = [name for name in REGIMES if not (arguments.waiting and name == "async")]
    if arguments.ranks:
        names = [f"{ranks} ranks" if ranks > 1 else "1 rank" for ranks in arguments.ranks]
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(arguments.rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            if arguments.ranks:
                measured = speed_of_ranks(preset, arguments.seconds, int(name.split()[0]))
            else:
                measured = speed(preset, arguments.seconds, {**settings, **REGIMES[name]}, algo)
            speeds[name].append(measured)
            print(f"round {turn + 1}/{arguments.rounds}  {name:<6} {speeds[name][-1]:9,.0f} steps/s", flush=True)
    medians = {name: statistics.median(found) for name, found in speeds.items()}

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(speeds[one], speeds[other], strict=True))

    result: dict[str, object] = {"steps_per_second": medians}
    for name in names[1:] if arguments.ranks else ():
        result[f"{name} over {names[0]}"] = ratio(name, names[0])
    if "lag 0" in speeds:
        result["lag_1_over_lag_0"] = ratio("lag 1", "lag 0")
    if "async" in speeds:
        result["lag_1_over_async"] = ratio("lag 1", "async")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
