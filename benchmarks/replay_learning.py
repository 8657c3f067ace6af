"""Do the off-policy algorithms learn? Presets trained for so many steps, and then their greedy policies played.

    python benchmarks/replay_learning.py --list               # what there is, and its gate
    python benchmarks/replay_learning.py pendulum_sac         # five seeds of one task
    python benchmarks/replay_learning.py --precision bf16 lunarlander_sac    # with factors rounded in products
    python benchmarks/replay_learning.py --no-training        # what has been found so far

The gates are mean returns, over the seeds, of 100 episodes of the last network without exploration, as SB3's
rl-zoo and the papers report them; of Atari's with the exploration of the end of training (epsilon 0.01), as the zoo
plays Atari: its games may be deterministic, and a greedy policy may play one rally for ever. What was interrupted goes
on where it ended, replay included, and what is done is not done again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

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
        gate: The mean return to reach.
        seeds: How many seeds by default.
        settings: Over the preset's.
        explores: Whether episodes are played with the exploration of the end of training.
        is_control: Whether it is the other way round: with these settings the gate must be out of reach.
    """

    preset: str
    algo: str
    total_steps: int
    gate: float
    seeds: int = 5
    settings: Mapping[str, Any] = field(default_factory=dict)
    explores: bool = False
    is_control: bool = False

    def is_as_claimed(self, mean: float) -> bool:
        """Whether this mean return is what the task says."""
        return (mean >= self.gate) != self.is_control


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole without its velocities, which only a memory can tell."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        space = self.env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """The two positions."""
        return observation[::2]


POSITIONS = "positions/CartPole-v1"
# 320 samples for each 4 agent steps, of 10 in a row or of single ones.
_POSITIONS: Mapping[str, object] = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 40,
    "model.mlp_sizes": "64",
    "learner.learning_rate": 1e-3,
    "replay.capacity": 50_000,
    "replay.min_size": 1_000,
    "replay.update_interval": 4,
    "replay.n_step": 3,
    "off_policy.double": True,
    "off_policy.target_update_every": 50,
    "off_policy.epsilon_fraction": 0.2,
    "off_policy.epsilon_end": 0.04,
}
_WITH_GRU: Mapping[str, object] = {
    **_POSITIONS,
    "learner.batch_size": 32,
    "model.core": "gru",
    "model.core_size": 64,
    "replay.sequence_length": 10,
    "replay.burn_in": 10,
}

TASKS = {
    "cartpole_dqn": Task("gym/CartPole-v1", "dqn", 50_000, 475.0),
    "positions_dqn_gru": Task(POSITIONS, "dqn", 100_000, 200.0, seeds=3, settings=_WITH_GRU),
    "positions_dqn": Task(
        POSITIONS, "dqn", 100_000, 200.0, seeds=3, settings={**_POSITIONS, "learner.batch_size": 320}, is_control=True
    ),
    "lunarlander_dqn": Task("gym/LunarLander-v3", "dqn", 100_000, 120.0),
    "pendulum_ddpg": Task("gym/Pendulum-v1", "ddpg", 20_000, -200.0),
    "pendulum_td3": Task("gym/Pendulum-v1", "td3", 20_000, -200.0),
    "pendulum_sac": Task("gym/Pendulum-v1", "sac", 20_000, -200.0),
    "lunarlander_td3": Task("gym/LunarLanderContinuous-v3", "td3", 200_000, 180.0),
    "lunarlander_ddpg": Task("gym/LunarLanderContinuous-v3", "ddpg", 300_000, 180.0),
    "lunarlander_sac": Task("gym/LunarLanderContinuous-v3", "sac", 200_000, 220.0),
    "halfcheetah_sac": Task("mujoco/HalfCheetah-v5", "sac", 1_000_000, 7_500.0, seeds=1),
    "halfcheetah_td3": Task("mujoco/HalfCheetah-v5", "td3", 1_000_000, 7_500.0, seeds=1),
    # Half of the preset's SGD steps.
    "hopper_td3": Task(
        "mujoco/Hopper-v5", "td3", 1_000_000, 2_000.0, seeds=1, settings={"replay.update_interval": 2.0}
    ),
    # On two cores without bf16 units 180 agent steps a second, with one learner 117.
    "pong_dqn": Task(
        "atari/pong", "dqn", 2_000_000, 18.0, seeds=1, settings={"learner.num_learners": 2}, explores=True
    ),
}


def train(task: Task, seed: int, run_dir: Path, settings: Mapping[str, Any], *, quiet: bool) -> float:
    """Train or resume, evaluate, and return the mean return; Ctrl-C and SIGTERM end the program."""
    found = run_dir / _FOUND
    if not found.exists():
        begun = (run_dir / "config.json").exists()
        chosen: dict[str, Any] = {"seed": seed, "total_steps": task.total_steps, "replay.storage": "file"}
        chosen.update(task.settings, **settings)
        run = rollmill.train(
            None if begun else task.preset,
            run_dir=run_dir,
            resume=begun and any((run_dir / "checkpoints").glob("*.pt")),
            quiet=quiet,
            algo=None if begun else task.algo,
            **({} if begun else chosen),
        )
        if run.ended_by == "signal":
            raise KeyboardInterrupt
        result = rollmill.evaluate(run_dir, episodes=EPISODES, seed=seed, deterministic=not task.explores)
        found.write_text(json.dumps(result.to_dict()))
        # A million transitions that are not needed any longer.
        (run_dir / "replay" / "slots").unlink(missing_ok=True)
    return float(json.loads(found.read_text())["mean_return"])


def main() -> int:
    """Runs the command line; 1 if a gate was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds (default: the task's, 1 2 3 4 5 or 1)")
    parser.add_argument(
        "--precision", choices=["fp32", "bf16"], help="not the presets' (kept apart, as TASK_PRECISION)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/replay_learning"), help="where runs are kept")
    parser.add_argument("--plots", type=Path, help="draw the tasks' curves, all seeds together, into this folder")
    parser.add_argument("--no-training", action="store_true", help="only say, and draw, what there is")
    parser.add_argument("--list", action="store_true", help="say what the tasks are, and end")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    arguments = parser.parse_args()
    if unknown := set(arguments.tasks) - set(TASKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(TASKS)}")
    rollmill.register_env(POSITIONS, Positions)
    if arguments.list:
        for name, task in TASKS.items():
            gate = f"{'not ' if task.is_control else ''}{task.gate:,g}"
            print(f"{name:<20}{task.preset:<32}{task.algo:<6}{task.total_steps:>11,} steps   gate {gate}")
        return 0
    results: dict[str, dict[str, float]] = {}
    as_claimed = True
    settings: dict[str, Any] = {} if arguments.precision is None else {"learner.precision": arguments.precision}
    for task_name in arguments.tasks or TASKS:
        task = TASKS[task_name]
        name = "_".join([task_name, *settings.values()])
        run_dirs = {seed: arguments.out / name / f"seed-{seed}" for seed in arguments.seeds or range(1, task.seeds + 1)}
        returns: dict[str, float] = {}
        for seed, run_dir in run_dirs.items():
            if arguments.no_training and not (run_dir / _FOUND).exists():
                continue
            returns[str(seed)] = train(task, seed, run_dir, settings, quiet=arguments.quiet)
            seconds = read_metrics(run_dir)[-1]["time_s"]
            print(f"{name}, seed {seed}: {returns[str(seed)]:,.1f} after {seconds:,.0f} s", flush=True)
        if returns:
            mean = statistics.fmean(returns.values())
            passed = task.is_as_claimed(mean)
            as_claimed &= passed
            gate = f"{'not ' if task.is_control else ''}{task.gate:,g}"
            print(f"{name}: {mean:,.1f} over {len(returns)} seed(s), gate {gate}: {'ok' if passed else 'MISSED'}")
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
