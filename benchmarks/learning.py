"""Does it learn? Presets trained with several seeds until they reach a published goal, with their curves.

    python benchmarks/learning.py                       # all tasks, three seeds each: a night on two cores
    python benchmarks/learning.py pong --seeds 1        # one of them
    python benchmarks/learning.py --plots docs/curves   # and draw what there is

A run ends at its goal (mean raw return of the last 100 training episodes) or at its budget. What was interrupted goes
on where it ended, and what is done is not done again, so the command can be repeated until everything is there. The
last line is JSON: for each task and seed the steps and seconds to the goal, or null where it was not reached.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rollmill
from rollmill.reporting.metrics import read_metrics
from rollmill.reporting.plots import NothingToPlotError, plot_runs
from rollmill.settings.presets.families import MINIGRID_MEMORY

EPISODES = 100


@dataclass(frozen=True)
class Task:
    """One claim.

    Attributes:
        preset: What is trained; its own settings, without any tuning by hand beyond ``settings``.
        goal: Mean raw return of the last 100 episodes.
        total_steps: Budget in agent steps.
        is_reachable: Whether the run should reach the goal; false for a control.
        settings: Over the preset's.
        max_seconds: Budget in seconds, where the claim has one.
        algo: See :func:`rollmill.train`.
    """

    preset: str
    goal: float
    total_steps: int
    is_reachable: bool = True
    settings: Mapping[str, object] = field(default_factory=dict)
    max_seconds: float | None = None
    algo: str | None = None


# An environment of one's own gets careful settings, so MiniGrid's for memory tasks come first, and then what this one
# needs, which cannot be told from chance until something is remembered. A lambda of 0.6: how an episode will end is
# chance to the states before its last decision, and a longer estimate puts that noise into each of their advantages and
# values; with a short one, those states learn from it at which it can be told (docs/journal/2026-11.md).
_MEMORY = {
    **{key: value for key, value in MINIGRID_MEMORY.items() if key != "total_steps"},
    "learner.gae_lambda": 0.6,
    "learner.value_coef": 1.0,
    "model.normalise_observations": False,
    "model.normalise_returns": True,
    "model.normalise_grids": True,
}

_LOCKSTEP_PPO: Mapping[str, object] = {"regime": "lockstep", "lag": 0}
# Cleanba's IMPALA is made for 50 M steps. So short a run needs more SGD steps, of 160 samples instead of 640; and an
# entropy bonus that falls, because advantages, which IMPALA does not normalise, become small next to it where nearly
# every point is won (docs/journal/2026-11.md).
_LOCKSTEP_IMPALA: Mapping[str, object] = {
    "regime": "lockstep",
    "lag": 1,
    "num_envs": 64,
    "learner.minibatches": 8,
    "learner.entropy_schedule": "linear",
}

TASKS = {
    "cartpole": Task("gym/CartPole-v1", 475.0, 1_000_000, max_seconds=60.0),
    "pong": Task("atari/pong", 18.0, 3_000_000),
    "pong_ppo_lockstep": Task("atari/pong", 18.0, 3_000_000, settings=_LOCKSTEP_PPO),
    "pong_ppo_lockstep_lag1": Task("atari/pong", 18.0, 3_000_000, settings={**_LOCKSTEP_PPO, "lag": 1}),
    "breakout_ppo_lockstep": Task("atari/breakout", 40.0, 3_000_000, settings=_LOCKSTEP_PPO),
    "pong_impala_lockstep": Task("atari/pong", 18.0, 3_000_000, settings=_LOCKSTEP_IMPALA, algo="impala"),
    "breakout_impala_lockstep": Task("atari/breakout", 40.0, 3_000_000, settings=_LOCKSTEP_IMPALA, algo="impala"),
    "vizdoom_basic": Task("vizdoom/basic", 75.0, 2_000_000),
    "vizdoom_defend_the_center": Task("vizdoom/defend_the_center", 18.0, 3_000_000),
    "halfcheetah": Task("mujoco/HalfCheetah-v5", 3000.0, 5_000_000),
    "minigrid_memory": Task("minigrid_hint:BesideTheHint", 0.9, 2_000_000, settings=_MEMORY),
    # Without memory one of the two ends of the corridor is a guess: half of the episodes succeed at best. The budget is
    # above what the GRU needed in any of three seeds.
    "minigrid_memory_without_core": Task(
        "minigrid_hint:BesideTheHint", 0.9, 500_000, is_reachable=False, settings={**_MEMORY, "model.core": "none"}
    ),
}


@dataclass(frozen=True)
class Result:
    """What a run has shown so far.

    Attributes:
        agent_steps: Consumed.
        seconds: Of training.
        best: Best mean return of 100 episodes; None before the 100th episode.
        steps_to_goal: Agent steps at which the goal was reached, or None.
        seconds_to_goal: Likewise in seconds.
    """

    agent_steps: int
    seconds: float
    best: float | None
    steps_to_goal: int | None
    seconds_to_goal: float | None


def result_of(rows: list[dict[str, Any]], goal: float) -> Result:
    """Reads a run's rows of metrics; a row counts once 100 episodes have ended."""
    full = [row for row in rows if row["episodes"] >= EPISODES and row["episode_return"] is not None]
    reached = next((row for row in full if row["episode_return"] >= goal), None)
    last = rows[-1] if rows else {"agent_steps": 0, "time_s": 0.0}
    return Result(
        last["agent_steps"],
        last["time_s"],
        max((row["episode_return"] for row in full), default=None),
        reached and reached["agent_steps"],
        reached and reached["time_s"],
    )


def train(task: Task, seed: int, run_dir: Path, *, quiet: bool) -> Result:
    """Train or resume until the goal or the budget is reached; Ctrl-C and SIGTERM end the program."""
    begun = (run_dir / "config.json").exists()
    seconds_left = task.max_seconds
    if begun:
        result = result_of(read_metrics(run_dir), task.goal)
        seconds_left = math.inf if task.max_seconds is None else task.max_seconds - result.seconds
        if result.steps_to_goal is not None or result.agent_steps >= task.total_steps or seconds_left <= 0:
            return result
    settings = {**task.settings, "target_return": task.goal}
    if task.max_seconds is not None:
        settings["max_seconds"] = task.max_seconds
    run = rollmill.train(
        task.preset,
        total_steps=task.total_steps,
        seed=seed,
        run_dir=run_dir,
        resume=begun and any((run_dir / "checkpoints").glob("*.pt")),
        quiet=quiet,
        algo=None if begun else task.algo,
        **settings,
    )
    if run.ended_by == "signal":
        raise KeyboardInterrupt
    return result_of(read_metrics(run_dir), task.goal)


def describe(name: str, seed: int, task: Task, result: Result) -> str:
    """One line for people."""
    best = "none yet" if result.best is None else f"{result.best:.2f}"
    if result.steps_to_goal is not None:
        reached = f"{task.goal:g} after {result.steps_to_goal:,} steps and {result.seconds_to_goal:,.0f} s"
    else:
        reached = f"not {task.goal:g} in {result.agent_steps:,} steps and {result.seconds:,.0f} s (best {best})"
    return f"{name}, seed {seed}: {reached}"


def main() -> int:
    """Runs the command line; 1 if a goal was missed, or a control reached its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds (default: 1 2 3)")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="where runs are kept")
    parser.add_argument("--plots", type=Path, help="draw the tasks' curves, all seeds together, into this folder")
    parser.add_argument("--no-training", action="store_true", help="only say, and draw, what there is")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    arguments = parser.parse_args()
    unknown = set(arguments.tasks) - set(TASKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(TASKS)}")
    results: dict[str, dict[str, Any]] = {}
    as_claimed = True
    for name in arguments.tasks or TASKS:
        task = TASKS[name]
        run_dirs = {seed: arguments.out / name / f"seed-{seed}" for seed in arguments.seeds}
        for seed, run_dir in run_dirs.items():
            if arguments.no_training:
                result = result_of(read_metrics(run_dir) if run_dir.exists() else [], task.goal)
            else:
                result = train(task, seed, run_dir, quiet=arguments.quiet)
            print(describe(name, seed, task, result), flush=True)
            results.setdefault(name, {})[str(seed)] = vars(result)
            as_claimed &= (result.steps_to_goal is not None) == task.is_reachable
        if arguments.plots is not None:
            present = [path for path in run_dirs.values() if (path / "metrics.jsonl").exists()]
            try:
                plot_runs(present, arguments.plots / f"{name}.png", title=f"{task.preset} ({name})", goal=task.goal)
            except NothingToPlotError as error:
                print(f"{name}: {error}", file=sys.stderr)
    print(json.dumps(results))
    return 0 if as_claimed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
