"""Does the parallel run learn what the serial one learns? Pairs of runs of the same settings, steps and update ratio.

    python benchmarks/replay_paired.py pendulum_sac --seeds 1 2 3 4 5
    python benchmarks/replay_paired.py lunarlander_dqn --setting learner.num_learners=2

The serial run is the loop of benchmarks/serial_off_policy.py, one process that acts, stores and learns in turn (PAL's
algorithm 1), with the preset's hyperparameters; the parallel one is ``rollmill train``. Both end with 100 episodes of
the greedy policy, the same start states for all. Interrupted runs are resumed; complete ones are not repeated. The last
line is JSON: both returns of each seed, the mean of the differences, its 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from scipy import stats
from serial_off_policy import Loop, Task, play

import rollmill
from rollmill.models.device import take_threads
from rollmill.settings.config import Config

EPISODES = 100
_FOUND = "return.json"
TASKS = {
    "cartpole_dqn": ("gym/CartPole-v1", "dqn"),
    "lunarlander_dqn": ("gym/LunarLander-v3", "dqn"),
    "pendulum_ddpg": ("gym/Pendulum-v1", "ddpg"),
    "pendulum_td3": ("gym/Pendulum-v1", "td3"),
    "pendulum_sac": ("gym/Pendulum-v1", "sac"),
}


def serial_task(config: Config) -> Task:
    """The serial loop's task with a configuration's settings."""
    interval = config.replay.update_interval
    assert interval == int(interval), "the serial loop makes whole steps"
    return Task(
        env=config.env.name.partition("/")[2],
        gate=-np.inf,
        steps=config.total_steps,
        batch_size=config.off_policy.batch_size,
        learning_starts=config.replay.min_size,
        update_interval=int(interval),
        capacity=config.replay.most_steps,
        learning_rate=config.optimiser.learning_rate,
        discount=config.off_policy.discount,
        n_step=config.replay.n_step,
        model=config.model,
        off_policy=asdict(config.off_policy),
        optimiser=config.optimiser,
    )


def serial_return(task: Task, seed: int, folder: Path) -> float:
    """Of the serial run with this seed, which is made if it has not been yet."""
    found = folder / _FOUND
    if not found.exists():
        loop = Loop(task, seed)
        loop.run()
        folder.mkdir(parents=True, exist_ok=True)
        found.write_text(json.dumps(loop.evaluate(EPISODES)))
    return float(json.loads(found.read_text()))


def parallel_return(preset: str, algo: str, seed: int, run_dir: Path, settings: Mapping[str, Any]) -> float:
    """The return of the parallel run with this seed, which is started or resumed if it is not complete."""
    found = run_dir / _FOUND
    if not found.exists():
        if any((run_dir / "checkpoints").glob("*.pt")):
            run = rollmill.train(run_dir=run_dir, resume=True, quiet=True)
        else:
            run = rollmill.train(preset, run_dir=run_dir, algo=algo, seed=seed, quiet=True, **settings)
        if run.ended_by == "signal":
            raise KeyboardInterrupt
        agent = rollmill.load(run_dir)
        found.write_text(json.dumps(play(gymnasium.make(preset.partition("/")[2]), agent.act, EPISODES)))
    return float(json.loads(found.read_text()))


def main() -> int:
    """Runs the command line; 1 if the parallel runs are worse beyond doubt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE", help="of the parallel run")
    parser.add_argument("--out", type=Path, default=Path("runs/replay_paired"), help="where runs are kept")
    arguments = parser.parse_args()
    preset, algo = TASKS[arguments.task]
    task = serial_task(rollmill.make_config(preset, {}, algo=algo).resolved())
    settings = dict(setting.split("=", 1) for setting in arguments.setting)
    take_threads(1)
    pairs: dict[int, tuple[float, float]] = {}
    for seed in arguments.seeds:
        serial = serial_return(task, seed, arguments.out / f"{arguments.task}-serial" / f"seed-{seed}")
        run_dir = arguments.out / "-".join([arguments.task, *settings.values()]) / f"seed-{seed}"
        parallel = parallel_return(preset, algo, seed, run_dir, settings)
        pairs[seed] = (serial, parallel)
        print(f"seed {seed}: serial {serial:,.1f}, parallel {parallel:,.1f}", flush=True)
    differences = np.array([parallel - serial for serial, parallel in pairs.values()])
    mean = float(differences.mean())
    half = float("inf")
    if len(differences) > 1:
        half = float(stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences))
    print(f"parallel - serial: {mean:,.1f} +- {half:,.1f}")
    print(json.dumps({"task": arguments.task, "settings": settings, "pairs": pairs, "mean": mean, "half_width": half}))
    return int(mean + half < 0)


if __name__ == "__main__":
    sys.exit(main())
