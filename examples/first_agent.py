"""Trains an agent from pixels for a few minutes, says how much better it got, and leaves a video of it.

This is what `make train` runs:

    python examples/first_agent.py [--preset atari/breakout] [--minutes 4.5]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import rollmill


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="atari/breakout", help="what to train (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=4.5, help="how long to train (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=40, help="episodes of each evaluation (default: %(default)s)")
    parser.add_argument(
        "--run-dir", type=Path, default=None, help="where to keep the run (default: a new one in runs/)"
    )
    arguments = parser.parse_args()

    run = rollmill.train(arguments.preset, run_dir=arguments.run_dir, max_seconds=60 * arguments.minutes)

    if run.ended_by == "signal":
        print(f"interrupted; rollmill train --resume {run.dir} continues")
        return 130

    # The first checkpoint is written before anything is learned: the same network, untrained.
    before = rollmill.evaluate(run.dir, episodes=arguments.episodes, checkpoint=run.dir / "checkpoints" / "initial.pt")
    video = run.dir / "agent.mp4"
    after = rollmill.evaluate(run.dir, episodes=arguments.episodes, video=video)

    print(f"\nmean return of {arguments.episodes} episodes, with its 95 % bootstrap interval:")
    for name, result in (("before training", before), ("after training", after)):
        print(f"{name + ':':<16}{result.mean:8.2f}   [{result.interval[0]:.2f}, {result.interval[1]:.2f}]")
    if before.interval[1] >= after.interval[0]:
        print("The intervals overlap: train for longer.")
    print(f"video:          {video}")
    print(f"learning curve: {run.dir / 'learning_curve.png'}")
    print(f"go on:          rollmill train --resume {run.dir} --max-seconds none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
