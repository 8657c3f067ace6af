"""SGD steps a second of the off-policy algorithms, on one core, beside Stable-Baselines3's.

    python benchmarks/off_policy_updates.py
    python benchmarks/off_policy_updates.py sac --sb3 path/to/a/python/with/stable_baselines3

One SGD step is all of it: losses, backward passes, optimisers, target networks. SB3's also samples its replay buffer of
500 transitions, which ours is spared: batches are in memory. Both take turns, round by round, in processes of one torch
thread, and time is the process' CPU time, so that a busy machine disturbs the ratio little. Rates are medians over
rounds, ratios the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.off_policy_config import off_policy_config_of
from rollmill.algorithms.registry import make_algorithm
from rollmill.learning.config import OptimiserConfig
from rollmill.learning.fast_path import PLAIN
from rollmill.learning.update import Update
from rollmill.models.config import ModelConfig
from rollmill.models.device import take_threads
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead

_WORKER = Path(__file__).parent / "peers" / "sb3_updates.py"
_BATCHES = 8


@dataclass(frozen=True, kw_only=True)
class Task:
    """One comparison.

    Attributes:
        peer: SB3's task, see ``peers/sb3_updates.py``.
        observation: Of the only entry.
        action: Of one row.
        batch_size: Transitions.
        off_policy: The algorithm, with settings that differ from its defaults.
        model: Networks.
        precision: Of our update.
    """

    peer: str
    observation: ArraySpec
    action: ActionSpec
    batch_size: int
    off_policy: Mapping[str, Any]
    model: ModelConfig = field(default_factory=lambda: ModelConfig(mlp_sizes=(256, 256)))
    precision: Literal["fp32", "bf16"] = "fp32"


def _choices(n: int) -> ActionSpec:
    return ActionSpec(heads=(CategoricalHead(n=n),), structure="discrete")


_CHEETAH: dict[str, Any] = {
    "observation": ArraySpec(shape=(17,), dtype="float32"),
    "action": ActionSpec(heads=(BoxHead(low=(-1.0,) * 6, high=(1.0,) * 6, shape=(6,)),), structure="box"),
    "batch_size": 256,
}
_CARTPOLE: dict[str, Any] = {
    "observation": ArraySpec(shape=(4,), dtype="float32"),
    "action": _choices(2),
    "batch_size": 64,
}
_ATARI: dict[str, Any] = {
    "observation": ArraySpec(shape=(4, 84, 84), dtype="uint8", low=0, high=255),
    "action": _choices(6),
    "batch_size": 32,
}
_DQN = {"algorithm": "dqn", "target_update_every": 250}

TASKS = {
    "sac": Task(peer="sac", off_policy={"algorithm": "sac"}, **_CHEETAH),
    "td3": Task(peer="td3", off_policy={"algorithm": "td3"}, **_CHEETAH),
    "ddpg": Task(peer="ddpg", off_policy={"algorithm": "ddpg"}, **_CHEETAH),
    "sac_bf16": Task(peer="sac", off_policy={"algorithm": "sac"}, precision="bf16", **_CHEETAH),
    "td3_bf16": Task(peer="td3", off_policy={"algorithm": "td3"}, precision="bf16", **_CHEETAH),
    "dqn_cartpole": Task(peer="dqn_cartpole", off_policy=_DQN, **_CARTPOLE),
    "dqn_atari": Task(peer="dqn_atari", off_policy=_DQN, **_ATARI),
    "dqn_atari_bf16": Task(peer="dqn_atari", off_policy=_DQN, precision="bf16", **_ATARI),
}


def batches_of(task: Task) -> list[TransitionBatch]:
    """Random transitions."""
    n = task.batch_size

    def observation() -> dict[str, torch.Tensor]:
        shape = (n, *task.observation.shape)
        if task.observation.dtype == "uint8":
            return {"obs": torch.randint(0, 256, shape).to(torch.uint8)}
        return {"obs": torch.rand(shape) * 2 - 1}

    sizes = task.action.categorical_sizes
    return [
        TransitionBatch(
            observation=observation(),
            discrete=torch.stack([torch.randint(0, k, (n,)) for k in sizes], -1).int() if sizes else None,
            continuous=None if sizes else torch.rand(n, task.action.num_continuous) * 2 - 1,
            reward=torch.ones(n),
            discount=torch.full((n,), 0.99),
            next_observation=observation(),
            action_mask=None,
            next_action_mask=None,
            weight=torch.ones(n),
        )
        for _ in range(_BATCHES)
    ]


class Ours:
    """Our updates of one task."""

    def __init__(self, task: Task) -> None:
        torch.manual_seed(0)
        config = off_policy_config_of(task.off_policy["algorithm"])(**task.off_policy)
        algorithm = make_algorithm({"obs": task.observation}, task.action, task.model, config)
        # SB3 clips the gradient of DQN alone.
        learner = OptimiserConfig(learning_rate=3e-4, max_grad_norm=10.0 if config.algorithm == "dqn" else None)
        self.updater = Update(algorithm, learner, replace(PLAIN, precision=task.precision))
        self.batches = batches_of(task)
        self.seconds(2 * _BATCHES)

    def seconds(self, updates: int) -> float:
        """CPU seconds of so many."""
        start = time.process_time()
        for index in range(updates):
            self.updater.step([self.batches[index % _BATCHES]])
        self.updater.check()
        return time.process_time() - start


def measure(name: str, worker: subprocess.Popen[str] | None, rounds: int, round_s: float) -> dict[str, float]:
    """Rates of one task, and their ratio."""
    task = TASKS[name]
    ours = Ours(task)
    updates = max(10, round(round_s / (ours.seconds(20) / 20)))

    def peer() -> float:
        assert worker is not None
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(f"{task.peer} {updates}\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    own, others = [], []
    for _ in range(rounds):
        own.append(updates / ours.seconds(updates))
        if worker is not None:
            others.append(updates / peer())
    result = {"updates_per_s": statistics.median(own)}
    if others:
        result["sb3_updates_per_s"] = statistics.median(others)
        result["ratio"] = statistics.median(a / b for a, b in zip(own, others, strict=True))
    return result


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of {', '.join(TASKS)}; all by default")
    parser.add_argument("--sb3", type=Path, help="a Python interpreter that has stable_baselines3")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--round-s", type=float, default=0.5, help="seconds of each of our rounds")
    arguments = parser.parse_args()
    unknown = set(arguments.tasks) - set(TASKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(TASKS)}")
    take_threads(1)
    worker = None
    if arguments.sb3 is not None:
        command = [str(arguments.sb3), str(_WORKER)]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    results = {}
    for name in arguments.tasks or TASKS:
        result = results[name] = measure(name, worker, arguments.rounds, arguments.round_s)
        beside = f", SB3 {result['sb3_updates_per_s']:,.0f}: {result['ratio']:.2f} x" if worker is not None else ""
        print(f"{name}: {result['updates_per_s']:,.0f} updates/s{beside}", flush=True)
    if worker is not None:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
