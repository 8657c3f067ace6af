"""The same trainer on our replay and on a naive one: python benchmarks/replay_plugged.py --trainer cleanrl --seeds 3.

The trainers are those of ``examples/replay_in_cleanrl.py`` and ``examples/replay_in_stable_baselines3.py``. ``naive``
is the prioritised replay that one writes beside them, in NumPy: both observations of each transition, and a binary sum
tree. ``own`` is what Stable-Baselines3 has, which is uniform: less work, and another algorithm. Replays take turns,
seed after seed, on one core with one thread. Seconds are the processor's, so that others on the machine matter less;
returns are means over the last 20 episodes. SB3 needs an interpreter that has it::

    python benchmarks/replay_plugged.py --trainer sb3 --python .venv-peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np

_ROOT = Path(__file__).resolve().parent.parent
_REPLAYS = {"cleanrl": ("rollmill", "naive"), "sb3": ("rollmill", "naive", "own")}
_LAST = 20  # episodes


class NaiveReplay:
    """The methods of :class:`rollmill.replay.PrioritizedReplay` that the examples use, of one step each."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Any],
        *,
        num_envs: int = 1,
        discount: float = 0.99,
        seed: int = 0,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
    ) -> None:
        sys.path.insert(0, str(_ROOT / "benchmarks" / "peers"))
        from replay_numpy import _SumTree

        del num_envs
        specs = {**fields, "next_obs": fields["obs"], "terminated": ((), "bool")}
        self._data = {name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in specs.items()}
        self._tree = _SumTree(capacity)
        self._generator = np.random.default_rng(seed)
        self._capacity, self._discount = capacity, discount
        self._alpha, self._beta, self._epsilon = alpha, beta, epsilon
        self._next = self._size = 0
        self._greatest = 1.0

    def __len__(self) -> int:
        return self._size

    def add(self, *, truncated: Any = None, valid: Any = None, **arrays: Any) -> None:
        del truncated
        if valid is not None:
            arrays = {name: np.asarray(array)[valid] for name, array in arrays.items()}
        count = len(arrays["reward"])
        if count == 0:
            return
        slots = (self._next + np.arange(count)) % self._capacity
        for name, ring in self._data.items():
            ring[slots] = arrays[name]
        self._tree.set(slots, np.full(count, self._greatest))
        self._next = (self._next + count) % self._capacity
        self._size = min(self._size + count, self._capacity)

    def sample(self, batch_size: int, beta: float | None = None) -> Any:
        slots = self._tree.find(self._generator.random(batch_size) * self._tree.nodes[1])
        np.minimum(slots, self._size - 1, out=slots)
        priority = self._tree.nodes[slots + self._tree.first_leaf]
        weights = (priority / priority.min()) ** -(self._beta if beta is None else beta)
        arrays = {name: ring[slots] for name, ring in self._data.items()}
        arrays["discount"] = (self._discount * ~arrays["terminated"]).astype(np.float32)
        return _NaiveBatch(arrays, tickets=slots, weights=weights.astype(np.float32))

    def update_priorities(self, batch: Any, td_errors: np.ndarray) -> None:
        priority = (np.abs(td_errors) + self._epsilon) ** self._alpha
        self._greatest = max(self._greatest, float(priority.max()))
        self._tree.set(batch.tickets, priority)


class _NaiveBatch(SimpleNamespace):
    def __init__(self, arrays: dict[str, np.ndarray], **rest: np.ndarray) -> None:
        super().__init__(**rest)
        self._arrays = arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]


def _run_one(trainer: str, replay: str, seed: int, total_steps: int) -> dict[str, float]:
    """One training, in this process."""
    import torch

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    sys.path.insert(0, str(_ROOT / "examples"))
    if trainer == "cleanrl":
        import replay_in_cleanrl

        given = {"make_replay": NaiveReplay} if replay == "naive" else {}
        begin = time.process_time()
        result = replay_in_cleanrl.train(total_steps=total_steps, seed=seed, **given)
        return {"return": float(np.mean(result["returns"][-_LAST:])), "seconds": time.process_time() - begin}
    import replay_in_stable_baselines3 as example
    from stable_baselines3 import DQN

    if replay == "own":
        agent = example.make_agent("CartPole-v1", seed, DQN)
    else:
        settings: dict[str, Any] = {"discount": 0.99, "seed": seed}
        if replay == "naive":
            settings["make_replay"] = NaiveReplay
        buffer = example.PrioritizedReplayBuffer
        agent = example.make_agent("CartPole-v1", seed, replay_buffer_class=buffer, replay_buffer_kwargs=settings)
    begin = time.process_time()
    agent.learn(total_steps)
    seconds = time.process_time() - begin
    return {"return": float(np.mean([e["r"] for e in agent.ep_info_buffer][-_LAST:])), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", choices=tuple(_REPLAYS), default="cleanrl")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--total-steps", type=int, default=50_000)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the trainer")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(_run_one(given.trainer, given.one, given.seed, given.total_steps)), flush=True)
        return
    environment = {**os.environ, "PYTHONPATH": str(_ROOT / "src"), "OMP_NUM_THREADS": "1"}
    results: dict[str, list[dict[str, float]]] = {replay: [] for replay in _REPLAYS[given.trainer]}
    for seed in range(given.seeds):
        for replay, found in results.items():
            command = [given.python, __file__, "--trainer", given.trainer, "--one", replay, "--seed", str(seed)]
            command += ["--total-steps", str(given.total_steps)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"seed {seed}, {replay}: {found[-1]}", file=sys.stderr, flush=True)
    print(f"{given.trainer}, CartPole-v1, {given.total_steps:,} steps, {given.seeds} seeds\n")
    print("| replay | return | processor seconds | as fast as naive |")
    print("|---|---:|---:|---:|")
    for replay, found in results.items():
        returns, seconds = ([run[key] for run in found] for key in ("return", "seconds"))
        spread = f" +- {stdev(returns):.0f}" if len(returns) > 1 else ""
        ratio = median(a["seconds"] / b["seconds"] for a, b in zip(results["naive"], found, strict=True))
        print(f"| {replay} | {mean(returns):.0f}{spread} | {median(seconds):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
