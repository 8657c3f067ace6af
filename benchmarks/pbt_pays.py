"""Population-based training from a bad start: agent steps until the best policy reaches a goal, and without events.

    python benchmarks/pbt_pays.py --seeds 5 --json [--KEY VALUE ...]

Four policies begin with a learning rate that is ten times too small (the preset's is 1e-3), varied as
population-based training varies it. With events, numbers are mutated and good policies take over; without, each policy
keeps its first numbers. Both runs of a seed are alike until the first event.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rollmill
from rollmill.settings.options import parse_overrides

SETTINGS: dict[str, object] = {
    "population.policies": 4,
    "population.pbt": True,
    "learner.learning_rate": 1e-4,
    "pbt.mutate": "learning_rate",
    "pbt.every": 8_192,
    "pbt.window": 20,
    "pbt.explore": "pb2",
    "pbt.limits.learning_rate": "1e-5,1e-2",
}
NEVER = 10**12


class Goal(rollmill.Callback):
    """Ends the run when a policy has reached the goal."""

    def __init__(self, goal: float) -> None:
        self.goal = goal
        self.reached: Mapping[str, Any] | None = None

    def on_report(self, run: rollmill.LiveRun, metrics: Mapping[str, Any]) -> None:
        """See :class:`rollmill.Callback`."""
        returns = [value for name, value in metrics.items() if name.endswith("/episode_return") and value is not None]
        if self.reached is None and metrics["episodes"] >= 400 and max(returns, default=-float("inf")) >= self.goal:
            self.reached = metrics
            run.stop()


def steps_to_goal(preset: str, goal: float, settings: Mapping[str, object], run_dir: Path) -> dict[str, float | None]:
    """Train until the goal is reached; returns agent steps of all policies and seconds, None if it is not."""
    callback = Goal(goal)
    rollmill.train(preset, run_dir=run_dir, quiet=True, callbacks=[callback], **settings)
    if callback.reached is None:
        return {"agent_steps": None, "seconds": None}
    return {"agent_steps": callback.reached["agent_steps"], "seconds": callback.reached["time_s"]}


def main() -> int:
    """Compare, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gym/CartPole-v1")
    parser.add_argument("--goal", type=float, default=475.0, help="mean return of the last 100 episodes of a policy")
    parser.add_argument("--total-steps", type=float, default=3e6, help="of each run, at most")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments, rest = parser.parse_known_args()
    result: dict[str, list[float | None]] = {"pbt": [], "fixed": []}
    for seed in range(1, arguments.seeds + 1):
        for name, events in (("pbt", {}), ("fixed", {"pbt.start": NEVER})):
            settings = {
                **SETTINGS,
                "seed": seed,
                "total_steps": int(arguments.total_steps),
                **parse_overrides(rest),
                **events,
            }
            with tempfile.TemporaryDirectory(prefix="rollmill-pbt-") as folder:
                found = steps_to_goal(arguments.preset, arguments.goal, settings, Path(folder) / "run")
            result[name].append(found["agent_steps"])
            if not arguments.json:
                print(f"seed {seed}, {name}: {found}", flush=True)
    print(json.dumps({"preset": arguments.preset, "goal": arguments.goal, **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
