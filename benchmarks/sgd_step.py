"""Does a change make an SGD step slower? Two checkouts take PPO's steps of a small network in turns.

    git worktree add ../before COMMIT && make -C ../before install
    python benchmarks/sgd_step.py ../before

Nothing else runs: no environments, no policy worker. One process for each checkout, with the Python of its own
``.venv``, takes 20 steps when told to. The network and its minibatches are those of ``gym/CartPole-v1``. The last line
is JSON: the median milliseconds of a step, and the median of the ratios of all turns. On two noisy cores, where single
turns differ by a factor of two, that median moves by 2 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SAMPLES, _STEPS = 256, 20


class Side:
    """The steps of one checkout, in a process that runs only when told to."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._process = subprocess.Popen(
            [str(checkout / ".venv/bin/python"), __file__, "--child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def turn(self) -> float:
        """Return the milliseconds of a step."""
        assert self._process.stdin is not None
        print("go", file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> float:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return float(line)
        raise SystemExit(f"the steps in {self._checkout} failed: see the error above")


def child() -> None:
    """Take steps and print their duration, after each line on standard input."""
    import torch

    from rollmill.algorithms.batches import OnPolicyBatch
    from rollmill.algorithms.on_policy_config import OnPolicyConfig
    from rollmill.algorithms.ppo import PPO
    from rollmill.learning.config import OptimiserConfig
    from rollmill.learning.update import Update
    from rollmill.models.config import ModelConfig
    from rollmill.models.device import take_threads
    from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead

    take_threads(1)
    torch.manual_seed(1)
    config = OnPolicyConfig(batch_size=4 * _SAMPLES, minibatches=4, epochs=4, clip_range=0.2, clip_kind="symmetric")
    ppo = PPO(
        {"obs": ArraySpec(shape=(4,), dtype="float32")},
        ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
        ModelConfig(encoder="mlp", mlp_sizes=(64, 64)),
        config,
    )
    update = Update(ppo, OptimiserConfig(max_grad_norm=0.5, learning_rate=1e-3))
    fields: dict[str, Any] = dict.fromkeys(OnPolicyBatch._fields)
    fields |= {
        "observation": {"obs": torch.randn(_SAMPLES, 4)},
        "discrete": torch.randint(0, 2, (_SAMPLES, 1), dtype=torch.int32),
        "log_prob": torch.full((_SAMPLES,), -0.69),
        "value": torch.zeros(_SAMPLES),
        "reward": torch.ones(_SAMPLES),
        "advantage": torch.randn(_SAMPLES),
        "return_": torch.randn(_SAMPLES),
        "keep": torch.ones(_SAMPLES, dtype=torch.bool),
        "reset_steps": (),
        "divisor": float(_SAMPLES),
        "moments": torch.tensor([_SAMPLES, 0.0, _SAMPLES], dtype=torch.float64),
        "coefficients": ppo.coefficients({"clip_range": 0.2, "entropy_coef": 0.0}),
    }
    batch = OnPolicyBatch(**fields)
    print(0.0, flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        for _ in range(_STEPS):
            update.step([batch])
        print((time.perf_counter() - started) / _STEPS * 1e3, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Take the steps and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="a checkout with a .venv of its own")
    parser.add_argument("--turns", type=int, default=300, help=f"of {_STEPS} SGD steps in each checkout, at least 2")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        child()
        return
    if arguments.before is None or not (arguments.before / ".venv/bin/python").exists() or arguments.turns < 2:
        parser.error("give a checkout in which `make install` has run, and at least 2 turns")
    sides = {"before": Side(arguments.before.resolve()), "now": Side(ROOT)}
    for side in sides.values():
        side.turn()  # the first steps take longer
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(arguments.turns):
        for name in sorted(sides, reverse=bool(index % 2)):
            taken[name].append(sides[name].turn())
    ratios = [now / before for before, now in zip(taken["before"], taken["now"], strict=True)]
    medians = {f"{name}_ms": round(statistics.median(each), 3) for name, each in taken.items()}
    print(json.dumps({**medians, "ratio": round(statistics.median(ratios), 3)}))


if __name__ == "__main__":
    main()
