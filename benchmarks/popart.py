"""PopArt on returns of very different size: two tasks with one network, rewards a hundredth and a hundred times.

    python benchmarks/popart.py --seeds 3 --json [--KEY VALUE ...]

The tasks are CartPole and Acrobot, with rewards of CartPole divided by a hundred and those of Acrobot multiplied by it,
or the other way round. Without normalisation, or with one normaliser for both, the task with small rewards counts for
nothing beside the other one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium

import rollmill
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.options import parse_overrides

FACTOR = 100.0
HOW: dict[str, bool | str] = {"popart": "popart", "one normaliser": True, "none": False}
# Returns of play by chance and of solved tasks, before the factor.
BOUNDS = {"CartPole": (22.0, 500.0), "Acrobot": (-500.0, -85.0)}


def scaled(name: str, factor: float) -> gymnasium.Env[Any, Any]:
    """Return an environment with its rewards times a factor."""
    return gymnasium.wrappers.TransformReward(gymnasium.make(name), lambda reward: reward * factor)


def small_cartpole() -> gymnasium.Env[Any, Any]:
    """Return CartPole with a hundredth of its rewards."""
    return scaled("CartPole-v1", 1 / FACTOR)


def large_cartpole() -> gymnasium.Env[Any, Any]:
    """Return CartPole with a hundred times its rewards."""
    return scaled("CartPole-v1", FACTOR)


def small_acrobot() -> gymnasium.Env[Any, Any]:
    """Return Acrobot with a hundredth of its rewards."""
    return scaled("Acrobot-v1", 1 / FACTOR)


def large_acrobot() -> gymnasium.Env[Any, Any]:
    """Return Acrobot with a hundred times its rewards."""
    return scaled("Acrobot-v1", FACTOR)


PAIRS = {
    "small CartPole, large Acrobot": (small_cartpole, 1 / FACTOR, large_acrobot, FACTOR),
    "large CartPole, small Acrobot": (large_cartpole, FACTOR, small_acrobot, 1 / FACTOR),
}


def solved(run_dir: Path, factors: tuple[float, float]) -> dict[str, float]:
    """Return how much of each task is solved at the end, 0 for play by chance and 1 for all of it."""
    last = read_metrics(run_dir)[-1]
    returns = [value for key, value in last.items() if key.startswith("task/") and key.endswith("/episode_return")]
    found = {}
    for (name, (chance, best)), value, factor in zip(BOUNDS.items(), returns, factors, strict=True):
        found[name] = ((value / factor if value is not None else chance) - chance) / (best - chance)
    return found


def main() -> int:
    """Compare, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=float, default=400_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments, rest = parser.parse_known_args()
    result: dict[str, dict[str, dict[str, list[float]]]] = {pair: {how: {} for how in HOW} for pair in PAIRS}
    for seed in range(1, arguments.seeds + 1):
        for pair, (first, of_first, second, of_second) in PAIRS.items():
            for how, normaliser in HOW.items():
                with tempfile.TemporaryDirectory(prefix="rollmill-popart-") as folder:
                    settings: dict[str, object] = {
                        "seed": seed,
                        "total_steps": int(arguments.total_steps),
                        "model.normalise_returns": normaliser,
                        **parse_overrides(rest),
                    }
                    done = rollmill.train([first, second], run_dir=Path(folder) / "run", quiet=True, **settings)
                    found = solved(done.dir, (of_first, of_second))
                for task, share in found.items():
                    result[pair][how].setdefault(task, []).append(share)
                if not arguments.json:
                    print(f"seed {seed}, {pair}, {how}: {found}", flush=True)
    worst = {
        how: statistics.fmean(
            min(of_seed) for pair in PAIRS for of_seed in zip(*result[pair][how].values(), strict=True)
        )
        for how in HOW
    }
    print(json.dumps({"total_steps": arguments.total_steps, "worse_task": worst, **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
