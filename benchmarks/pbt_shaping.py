"""Population-based training finds reward weights where a shaping term misleads.

    python benchmarks/pbt_shaping.py --seeds 5 --json [--KEY VALUE ...]

A corridor of 15 cells, in the middle of which an episode begins. At its right end is a prize between 0.05 and 5, which
the agent sees, and which ends the episode. A shaping term, "bait", pays for every step in the leftmost cell. With the
weight at the start, waiting there is worth more than nine prizes of ten, so that policies learn to wait.
`info["true_objective"]` is whether the prize was taken; population-based training compares policies by it and mutates
the weight. Without events, each of the four policies keeps the weight that it begins with.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import rollmill
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.options import parse_overrides

CELLS, STEPS = 15, 50
PRIZES = (0.05, 5.0)
SETTINGS: dict[str, object] = {
    "population.policies": 4,
    "population.pbt": True,
    # The 43 steps of waiting pay 4.3, discounted 3.3.
    "learner.reward_weights.bait": 0.1,
    "pbt.objective": "true_objective",
    "pbt.mutate": "reward_weight.bait",
    "pbt.every": 6_000,
    "pbt.window": 50,
    "pbt.mutation_rate": 0.5,
    "pbt.factor": "1.2,2.0",
    "num_envs": 32,
    "learner.entropy_coef": 0.02,
    "learner.epochs": 1,
}
NEVER = 10**12


class Corridor(gymnasium.Env[Any, Any]):
    """See the module's docstring. Actions: left, right."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin in the middle."""
        super().reset(seed=seed)
        low, high = np.log(PRIZES)
        self.prize = float(np.exp(self.np_random.uniform(low, high)))
        self.cell, self.steps = CELLS // 2, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go one cell to the left or to the right."""
        self.cell = max(0, self.cell + (1 if action else -1))
        self.steps += 1
        is_there = self.cell == CELLS - 1
        is_late = self.steps >= STEPS
        info: dict[str, Any] = {"reward_terms": {"bait": float(self.cell == 0)}, "true_objective": float(is_there)}
        if is_there or is_late:
            info["metrics"] = {"taken": float(is_there)}
        return self._seen(), self.prize * is_there, is_there, is_late, info

    def _seen(self) -> Any:
        size = np.log(self.prize / PRIZES[0]) / np.log(PRIZES[1] / PRIZES[0])
        return np.array([self.cell / (CELLS - 1), self.steps / STEPS, 2.0 * size - 1.0], np.float32)


class Result(NamedTuple):
    """What a run ends with.

    Attributes:
        taken: The share of episodes that took the prize, of all policies in the last fifth of the rows of metrics.
        weights: Each policy's weight of the bait.
    """

    taken: float
    weights: list[float]


def result_of(run_dir: Path) -> Result:
    """Read the metrics of a run."""
    rows = [row["env/taken"] for row in read_metrics(run_dir) if row.get("env/taken") is not None]
    folders = sorted((run_dir / "policies").iterdir())
    weights = [read_metrics(folder)[-1]["pbt/reward_weight.bait"] for folder in folders]
    return Result(float(np.mean(rows[-max(1, len(rows) // 5) :])), weights)


def main() -> int:
    """Compare, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=float, default=1.2e6, help="of all policies")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments, rest = parser.parse_known_args()
    kinds: dict[str, Mapping[str, object]] = {"pbt": {}, "fixed": {"pbt.start": NEVER}}
    found: dict[str, list[Result]] = {name: [] for name in kinds}
    for seed in range(1, arguments.seeds + 1):
        for name, own in kinds.items():
            settings = {
                **SETTINGS,
                "seed": seed,
                "total_steps": int(arguments.total_steps),
                **parse_overrides(rest),
                **own,
            }
            with tempfile.TemporaryDirectory(prefix="rollmill-pbt-") as folder:
                run = rollmill.train(Corridor, run_dir=Path(folder) / "run", quiet=True, **settings)
                if run.ended_by == "signal":
                    return 130
                found[name].append(result_of(run.dir))
            if not arguments.json:
                taken, weights = found[name][-1]
                shown = ", ".join(f"{weight:.3g}" for weight in weights)
                print(f"seed {seed}, {name}: taken {taken:.2f}, weights {shown}", flush=True)
    print(json.dumps({name: [result._asdict() for result in results] for name, results in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
