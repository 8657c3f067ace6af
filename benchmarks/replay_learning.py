"""Do the off-policy algorithms learn? Presets trained for so many steps, and then their greedy policies played.

    python benchmarks/replay_learning.py --list               # what there is, and its gate
    python benchmarks/replay_learning.py pendulum_sac         # five seeds of one task
    python benchmarks/replay_learning.py --no-training        # what has been found so far

The gates are mean returns, over the seeds, of 100 episodes of the last network without exploration, as SB3's
rl-zoo and the papers report them. What was interrupted goes on where it ended, replay included, and what is done is not
done again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import rollmill
from rollmill.reporting.metrics import read_metrics
from rollmill.reporting.plots import NothingToPlotError, plot_runs

EPISODES = 100
_FOUND = "final_evaluation.json"


@dataclass(frozen=True)
class Task:
    """One claim.

    Attributes:
        preset: What is trained.
        algo: By which algorithm; its preset's settings.
        total_steps: Agent steps.
        gate: The mean return that is to be reached.
        seeds: How many seeds by default.
        settings: Over the preset's.
    """

    preset: str
    algo: str
    total_steps: int
    gate: float
    seeds: int = 5
    settings: Mapping[str, object] = field(default_factory=dict)


TASKS = {
    "cartpole_dqn": Task("gym/CartPole-v1", "dqn", 50_000, 475.0),
    "lunarlander_dqn": Task("gym/LunarLander-v3", "dqn", 100_000, 120.0),
    "pendulum_ddpg": Task("gym/Pendulum-v1", "ddpg", 20_000, -200.0),
    "pendulum_td3": Task("gym/Pendulum-v1", "td3", 20_000, -200.0),
    "pendulum_sac": Task("gym/Pendulum-v1", "sac", 20_000, -200.0),
    "lunarlander_td3": Task("gym/LunarLanderContinuous-v3", "td3", 300_000, 180.0),
    "lunarlander_ddpg": Task("gym/LunarLanderContinuous-v3", "ddpg", 300_000, 180.0),
    "lunarlander_sac": Task("gym/LunarLanderContinuous-v3", "sac", 500_000, 220.0),
    "halfcheetah_sac": Task("mujoco/HalfCheetah-v5", "sac", 1_000_000, 7_500.0, seeds=1),
    "halfcheetah_td3": Task("mujoco/HalfCheetah-v5", "td3", 1_000_000, 7_500.0, seeds=1),
    "hopper_td3": Task("mujoco/Hopper-v5", "td3", 1_000_000, 2_000.0, seeds=1),
    "pong_dqn": Task("atari/pong", "dqn", 2_000_000, 18.0, seeds=1),
}


def train(task: Task, seed: int, run_dir: Path, *, quiet: bool) -> float:
    """Trains, or goes on training, and evaluates; the mean return. Ctrl-C and SIGTERM end the program."""
    found = run_dir / _FOUND
    if not found.exists():
        begun = (run_dir / "config.json").exists()
        run = rollmill.train(
            None if begun else task.preset,
            run_dir=run_dir,
            resume=begun and any((run_dir / "checkpoints").glob("*.pt")),
            quiet=quiet,
            algo=None if begun else task.algo,
            **({} if begun else {"seed": seed, "total_steps": task.total_steps, "replay.storage": "file"}),
            **({} if begun else task.settings),
        )
        if run.ended_by == "signal":
            raise KeyboardInterrupt
        found.write_text(json.dumps(rollmill.evaluate(run_dir, episodes=EPISODES, seed=seed).to_dict()))
        # A million transitions that nobody will learn from again.
        (run_dir / "replay" / "slots").unlink(missing_ok=True)
    return float(json.loads(found.read_text())["mean_return"])


def main() -> int:
    """Runs the command line; 1 if a gate was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds (default: the task's, 1 2 3 4 5 or 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/replay_learning"), help="where runs are kept")
    parser.add_argument("--plots", type=Path, help="draw the tasks' curves, all seeds together, into this folder")
    parser.add_argument("--no-training", action="store_true", help="only say, and draw, what there is")
    parser.add_argument("--list", action="store_true", help="say what the tasks are, and end")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    arguments = parser.parse_args()
    if unknown := set(arguments.tasks) - set(TASKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(TASKS)}")
    if arguments.list:
        for name, task in TASKS.items():
            print(f"{name:<20}{task.preset:<32}{task.algo:<6}{task.total_steps:>11,} steps   gate {task.gate:,g}")
        return 0
    results: dict[str, dict[str, float]] = {}
    as_claimed = True
    for name in arguments.tasks or TASKS:
        task = TASKS[name]
        run_dirs = {seed: arguments.out / name / f"seed-{seed}" for seed in arguments.seeds or range(1, task.seeds + 1)}
        returns: dict[str, float] = {}
        for seed, run_dir in run_dirs.items():
            if arguments.no_training and not (run_dir / _FOUND).exists():
                continue
            returns[str(seed)] = train(task, seed, run_dir, quiet=arguments.quiet)
            seconds = read_metrics(run_dir)[-1]["time_s"]
            print(f"{name}, seed {seed}: {returns[str(seed)]:,.1f} after {seconds:,.0f} s", flush=True)
        if returns:
            mean = statistics.fmean(returns.values())
            passed = mean >= task.gate
            as_claimed &= passed
            print(
                f"{name}: {mean:,.1f} over {len(returns)} seed(s), gate {task.gate:,g}: {'ok' if passed else 'MISSED'}"
            )
        results[name] = returns
        if arguments.plots is not None:
            present = [path for path in run_dirs.values() if (path / "metrics.jsonl").exists()]
            try:
                plot_runs(
                    present, arguments.plots / f"{name}.png", title=f"{task.preset} ({task.algo})", goal=task.gate
                )
            except NothingToPlotError as error:
                print(f"{name}: {error}", file=sys.stderr)
    print(json.dumps(results))
    return 0 if as_claimed else 1


if __name__ == "__main__":
    sys.exit(main())
