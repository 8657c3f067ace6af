"""The same trainer on our replay and on a naive one: python benchmarks/replay_plugged.py --trainer cleanrl --seeds 3.

The trainers are those of ``examples/replay_in_*.py``. ``naive`` is the prioritised replay that one writes beside them,
in NumPy: both observations of each transition, and a binary sum tree. ``own`` is what the trainer has:
Stable-Baselines3's is uniform, which is less work and another algorithm; RLlib's is prioritised. Replays take turns,
seed after seed, on one core with one thread. Seconds are the processor's, so that others on the machine matter less;
returns are means over the last 20 episodes. SB3 and RLlib need an interpreter that has them::

    python benchmarks/replay_plugged.py --trainer sb3 --python .venv-peers/bin/python
    python benchmarks/replay_plugged.py --trainer rllib --python .venv-peers-replay-rllib/bin/python

With RLlib, ``rollmill, episodes`` is our replay that gives what RLlib's own gives, an episode for each transition, and
not arrays. A step is one of the algorithm's: some of the environment, and an SGD step. The replay's part of it is all
calls of the replay, and what makes tensors of what it gives. ``--fill 1`` puts as many steps of a random policy into
the replay as it has room for, before training begins, and learns at once: what a step takes then is what it takes when
a training has gone on for long.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import mean, median, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np

_ROOT = Path(__file__).resolve().parent.parent
_REPLAYS = {
    "cleanrl": ("rollmill", "naive"),
    "sb3": ("rollmill", "naive", "own"),
    "rllib": ("rollmill", "rollmill, episodes", "own"),
}
_COMPARED_WITH = {"cleanrl": "naive", "sb3": "naive", "rllib": "own"}
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

    def interrupt(self) -> None:
        """Nothing follows from it: each transition has both of its observations."""

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


def _run_rllib(given: argparse.Namespace) -> dict[str, float]:
    import replay_in_rllib as example

    replay, capacity = given.one, given.capacity
    example.start_ray()
    _use_one_core()  # but Ray's own processes do not
    config = example.make_config("CartPole-v1", given.seed, given.n_step, capacity)
    if replay == "own":
        own = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": capacity, "alpha": 0.6, "beta": 0.4}
        config.training(replay_buffer_config=own)
    if replay != "rollmill":
        config.learners(learner_connector=None)
    if given.fill:
        config.training(num_steps_sampled_before_learning_starts=0)
    algorithm = config.build_algo()
    buffer, learner = algorithm.local_replay_buffer, algorithm.learner_group._learner
    if replay == "rollmill, episodes":
        arrays = buffer.sample
        buffer.sample = lambda *args, **kwargs: _episodes(arrays(*args, **kwargs)[0].columns)
    _fill(buffer, int(given.fill * capacity), given.seed)

    steps = _Clock(algorithm, "training_step")
    parts = [_Clock(buffer, name) for name in ("add", "sample", "update_priorities", "get_metrics")]
    parts.append(_Clock(learner, "_learner_connector"))
    returns = _collect_returns(buffer)
    begin = time.process_time()
    while algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"] < given.total_steps:
        pass
    seconds = time.process_time() - begin
    algorithm.stop()
    return {
        "return": float(np.mean(returns[-_LAST:])),
        "seconds": seconds,
        "step": steps.seconds / steps.calls,
        "replay": sum(part.seconds for part in parts) / steps.calls,
    }


def _collect_returns(buffer: Any) -> list[float]:
    """The returns of the episodes whose pieces the buffer is given."""
    returns: list[float] = []
    running: dict[str, float] = {}
    add = buffer.add

    def collect(pieces: list[Any]) -> None:
        for piece in pieces:
            running[piece.id_] = running.get(piece.id_, 0.0) + piece.get_return()
            if piece.is_done:
                returns.append(running.pop(piece.id_))
        add(pieces)

    buffer.add = collect
    return returns


class _Clock:
    """How often something is called, and how long it has the processor."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds, self.calls = 0.0, 0
        self._timed = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        result = self._timed(*args, **kwargs)
        self.seconds += time.process_time() - begin
        self.calls += 1
        return result


def _episodes(columns: dict[str, Any]) -> list[Any]:
    """A batch as RLlib's own replay gives it."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    names = ("obs", "new_obs", "actions", "rewards", "terminateds", "weights", "n_step")
    return [
        SingleAgentEpisode(
            observations=[obs, next_obs],
            actions=[action],
            rewards=[reward],
            terminated=bool(terminated),
            extra_model_outputs={"weights": [weight], "n_step": [n_step]},
            len_lookback_buffer=0,
        )
        for obs, next_obs, action, reward, terminated, weight, n_step in zip(
            *(columns[name] for name in names), strict=True
        )
    ]


def _fill(buffer: Any, steps: int, seed: int) -> None:
    """Adds episodes of a random policy, a thousand different ones."""
    import gymnasium as gym
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    env = gym.make("CartPole-v1")
    env.action_space.seed(seed)
    played: list[dict[str, Any]] = []
    added = 0
    while added < steps:
        if len(played) < 1000:
            obs, _ = env.reset(seed=seed + len(played))
            episode: dict[str, Any] = {"observations": [obs], "actions": [], "rewards": [], "terminated": False}
            while not episode["terminated"]:
                action = env.action_space.sample()
                obs, reward, episode["terminated"], _, _ = env.step(action)
                episode["observations"].append(obs)
                episode["actions"].append(action)
                episode["rewards"].append(reward)
            played.append(episode)
        else:
            played.append(episode := played.pop(0))
        buffer.add([SingleAgentEpisode(**episode, len_lookback_buffer=0).to_numpy()])
        added += len(episode["actions"])


def _use_core_at(path: str) -> None:
    """The native module of the interpreter that started this one, which need not have Rollmill installed."""
    spec = spec_from_file_location("rollmill.native._core", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])


def _use_one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _run_one(given: argparse.Namespace) -> dict[str, float]:
    """One training, in this process."""
    trainer, replay, seed, total_steps = given.trainer, given.one, given.seed, given.total_steps
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(_ROOT / "examples"))
    if trainer == "rllib":
        return _run_rllib(given)
    _use_one_core()
    if trainer == "cleanrl":
        import replay_in_cleanrl

        make = {"make_replay": NaiveReplay} if replay == "naive" else {}
        begin = time.process_time()
        result = replay_in_cleanrl.train(total_steps=total_steps, seed=seed, **make)
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
    parser.add_argument("--replays", nargs="+", help="some of them only, the one to compare with among them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--total-steps", type=int, default=50_000)
    parser.add_argument("--capacity", type=int, default=100_000, help="of RLlib's replay")
    parser.add_argument("--n-step", type=int, default=1, help="RLlib only")
    parser.add_argument("--fill", type=float, default=0.0, help="how much of that is there before; RLlib only")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the trainer")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--core", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _use_core_at(given.core)
        result = _run_one(given)
        print(json.dumps(result), flush=True)
        return
    from rollmill.native import _core

    environment = {**os.environ, "PYTHONPATH": str(_ROOT / "src"), "OMP_NUM_THREADS": "1"}
    results: dict[str, list[dict[str, float]]] = {replay: [] for replay in given.replays or _REPLAYS[given.trainer]}
    for seed in range(given.seeds):
        for replay, found in results.items():
            command = [given.python, __file__, "--trainer", given.trainer, "--one", replay, "--seed", str(seed)]
            command += ["--core", str(_core.__file__)]
            for name in ("total_steps", "capacity", "fill", "n_step"):
                command += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"seed {seed}, {replay}: {found[-1]}", file=sys.stderr, flush=True)
    print(f"{given.trainer}, CartPole-v1, {given.total_steps:,} steps, {given.seeds} seeds", end="")
    details = f", n_step {given.n_step}, capacity {given.capacity:,}, {given.fill:.0%} filled\n"
    print(details if given.trainer == "rllib" else "\n")
    _print_table(results, _COMPARED_WITH[given.trainer])


def _print_table(results: dict[str, list[dict[str, float]]], compared_with: str) -> None:
    others = results[compared_with]
    has_steps = "step" in others[0]
    key = "step" if has_steps else "seconds"
    steps = " ms of a step | of which the replay |" if has_steps else ""
    print(f"| replay | return | processor seconds |{steps} as fast as {compared_with} |")
    print("|---|---:|---:|" + ("---:|---:|" if has_steps else "") + "---:|")
    for replay, found in results.items():
        returns = [run["return"] for run in found]
        spread = f" +- {stdev(returns):.0f}" if len(returns) > 1 else ""
        line = f"| {replay} | {mean(returns):.0f}{spread} | {median(run['seconds'] for run in found):.1f} |"
        if has_steps:
            line += "".join(f" {1000 * median(run[part] for run in found):.2f} |" for part in ("step", "replay"))
        print(line, f"{median(a[key] / b[key] for a, b in zip(others, found, strict=True)):.2f} |")


if __name__ == "__main__":
    main()
