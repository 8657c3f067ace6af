"""Off-policy runs that begin with recorded episodes, beside runs that do not: agent steps to the goal.

    python benchmarks/preload.py --seeds 3 --json [--KEY VALUE ...]

A PPO run on MountainCar, whose car reaches the hill by chance in few episodes, is trained to a mean return of -120 and
recorded for 100 episodes; then DQN is trained to a mean of -150, with these episodes in its replay from the start and
without, seed by seed. The mean is that of the last 100 training episodes, exploration included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import rollmill
from rollmill.settings.options import parse_overrides

ENV, DATASET = "gym/MountainCar-v0", "mountain-car/expert-v0"
EXPERT, GOAL, STEPS = -120.0, -150.0, 100_000


def main() -> int:
    """Record once, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100, help="recorded ones")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON alone")
    arguments, rest = parser.parse_known_args()
    found: dict[str, list[int | None]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory(prefix="rollmill-preload-") as made:
        folder = Path(made)
        os.environ["MINARI_DATASETS_PATH"] = str(folder / "datasets")
        expert = rollmill.train(ENV, run_dir=folder / "expert", target_return=EXPERT, quiet=True)
        recorded = rollmill.record(expert.dir, DATASET, episodes=arguments.episodes, deterministic=True)
        for seed in range(1, arguments.seeds + 1):
            for name, own in (("with", {"replay.preload": DATASET}), ("without", {})):
                run = rollmill.train(
                    ENV,
                    algo="dqn",
                    run_dir=folder / f"{name}-{seed}",
                    quiet=True,
                    seed=seed,
                    target_return=GOAL,
                    **{"total_steps": STEPS, **own, **parse_overrides(rest)},
                )
                if run.ended_by == "signal":
                    return 130
                found[name].append(run.agent_steps if run.ended_by == "target_return" else None)
                if not arguments.json:
                    print(f"seed {seed}, {name} recorded episodes: {found[name][-1]} agent steps", flush=True)
    print(json.dumps({"agent_steps": found, "recorded_mean_return": float(recorded.returns.mean())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
