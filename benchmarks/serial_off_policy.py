"""Do the off-policy algorithms learn? One process, one environment, a plain replay ring: each paper's algorithm 1.

    python benchmarks/serial_off_policy.py                      # all tasks, one seed each
    python benchmarks/serial_off_policy.py pendulum_sac --seeds 1 2 3

Nothing of the runs' machinery takes part, so that a gate missed here is the algorithm's fault, and one missed only
there is not. Hyperparameters are the RL Zoo's. A line for each run: mean return of the evaluation at the end (ten
episodes of the greedy policy), whether it passed its gate, and the environment steps a second. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from rollmill.algorithms.base import Action, Explore, OffPolicyAlgorithm
from rollmill.algorithms.batches import TransitionBatch
from rollmill.algorithms.off_policy_config import off_policy_config_of
from rollmill.algorithms.registry import make_algorithm
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.learning.config import Adam, OptimiserConfig
from rollmill.learning.fast_path import PLAIN
from rollmill.learning.schedules import coefficient_schedule
from rollmill.learning.update import Update
from rollmill.models.config import ModelConfig
from rollmill.models.device import take_threads


@dataclass(frozen=True, kw_only=True)
class Task:
    """One claim.

    Attributes:
        env: Gymnasium id.
        gate: Mean return to reach.
        steps: Environment steps.
        batch_size: Transitions.
        learning_starts: Environment steps before the first update.
        update_interval: Environment steps from one round of updates to the next.
        updates: SGD steps of a round.
        capacity: Transitions of the ring.
        learning_rate: Of everything.
        discount: Gamma.
        n_step: Steps of the returns that are learned from.
        model: Networks.
        off_policy: Over the algorithm's defaults.
        optimiser: The optimiser's settings, where ``learning_rate`` does not say enough.
    """

    env: str
    gate: float
    steps: int
    batch_size: int = 256
    learning_starts: int = 1000
    update_interval: int = 1
    updates: int = 1
    capacity: int = 100_000
    learning_rate: float = 1e-3
    discount: float = 0.98
    n_step: int = 1
    model: ModelConfig = field(default_factory=lambda: ModelConfig(mlp_sizes=(256, 256)))
    off_policy: Mapping[str, Any] = field(default_factory=dict)
    optimiser: OptimiserConfig | None = None


_PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "gate": -200.0, "steps": 20_000}
_TD3_ZOO: dict[str, Any] = {**_PENDULUM, "learning_starts": 10_000, "model": ModelConfig(mlp_sizes=(400, 300))}

# https://github.com/DLR-RM/rl-baselines3-zoo/tree/master/hyperparams: dqn.yml, sac.yml, td3.yml, ddpg.yml. The zoo
# copies CartPole's network every 10 agent steps and learns every 256: once a round, whose SGD steps are counted here.
_CARTPOLE_DQN = Task(
    env="CartPole-v1",
    gate=475.0,
    steps=50_000,
    batch_size=64,
    learning_rate=2.3e-3,
    discount=0.99,
    update_interval=256,
    updates=128,
    off_policy={
        "algorithm": "dqn",
        "epsilon_fraction": 0.16,
        "epsilon_end": 0.04,
        "target_update_every": 128,
        "random_steps": 1000,
    },
)

TASKS = {
    "cartpole_dqn": _CARTPOLE_DQN,
    "cartpole_double_dueling_dqn": replace(
        _CARTPOLE_DQN, off_policy={**_CARTPOLE_DQN.off_policy, "double": True, "dueling": True}
    ),
    "cartpole_discrete_sac": Task(
        env="CartPole-v1",
        gate=475.0,
        steps=20_000,
        batch_size=64,
        learning_rate=1e-3,
        discount=0.99,
        model=ModelConfig(mlp_sizes=(64, 64)),
        off_policy={"algorithm": "sac", "target_entropy": 0.3},
    ),
    "pendulum_sac": Task(**_PENDULUM, discount=0.99, off_policy={"algorithm": "sac"}),
    "pendulum_td3": Task(**_TD3_ZOO, off_policy={"algorithm": "td3", "random_steps": 10_000}),
    "pendulum_ddpg": Task(**_TD3_ZOO, off_policy={"algorithm": "ddpg", "random_steps": 10_000}),
}


class Replay:
    """A ring of transitions in NumPy arrays, sampled uniformly.

    Args:
        capacity: Transitions.
        observation: Example of an observation.
        action: Example of an action, as stored.
    """

    def __init__(self, capacity: int, observation: NDArray[np.generic], action: NDArray[np.generic]) -> None:
        def ring(example: Any) -> NDArray[Any]:
            return np.zeros((capacity, *np.shape(example)), np.asarray(example).dtype)

        self.arrays = [ring(observation), ring(action), ring(np.float32(0)), ring(np.float32(0)), ring(observation)]
        self.capacity, self.count = capacity, 0

    def insert(self, *transition: Any) -> None:
        """``(observation, action, reward, discount, next_observation)``."""
        for array, value in zip(self.arrays, transition, strict=True):
            array[self.count % self.capacity] = value
        self.count += 1

    def sample(self, size: int, random: np.random.Generator) -> list[torch.Tensor]:
        """Each ``[size, ...]``."""
        index = random.integers(0, min(self.count, self.capacity), size)
        return [torch.from_numpy(array[index]) for array in self.arrays]


class Loop:
    """One run: acts, stores, learns.

    Args:
        task: What.
        seed: Of everything.
        precision: See :class:`rollmill.learning.fast_path.FastPath`.
    """

    def __init__(self, task: Task, seed: int, precision: Literal["fp32", "bf16", "fp64"] = "fp32") -> None:
        torch.manual_seed(seed)
        self.task = task
        self.env = gymnasium.make(task.env)
        self.observation_spec = observation_specs(self.env.observation_space)
        self.action_spec = action_spec(self.env.action_space)
        config = off_policy_config_of(task.off_policy.get("algorithm", "dqn"))(**task.off_policy)
        self.algorithm: OffPolicyAlgorithm = make_algorithm(self.observation_spec, self.action_spec, task.model, config)
        optimiser = task.optimiser or OptimiserConfig(
            learning_rate=task.learning_rate, max_grad_norm=10.0, method=Adam(eps=1e-8)
        )
        self.updater = Update(self.algorithm, optimiser, replace(PLAIN, precision=precision))
        self.learning_rate = optimiser.learning_rate
        self.schedule = coefficient_schedule(
            "linear" if optimiser.schedule.name == "linear" else "constant", 1.0, task.steps
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.random = np.random.default_rng(seed)
        self.seed = seed
        self.steps = 0

    def run(self) -> None:
        """All steps of the task."""
        task = self.task
        x, _ = self.env.reset(seed=self.seed)
        is_discrete = self.action_spec.num_discrete > 0
        shape = (1,) if is_discrete else (self.action_spec.num_continuous,)
        replay = Replay(task.capacity, x, np.zeros(shape, np.int32 if is_discrete else np.float32))
        is_first = True
        window: deque[tuple[NDArray[Any], NDArray[Any], float]] = deque()
        for self.steps in range(task.steps):  # it is what explore() reads
            action = self.act(x, self.explore(is_first))
            following, reward, terminated, truncated, _ = self.env.step(self.to_env(action))
            is_first = terminated or truncated
            window.append((x, action, float(reward)))
            while len(window) == task.n_step or (window and is_first):
                value = sum(task.discount**k * each for k, (_, _, each) in enumerate(window))
                discount = 0.0 if terminated else task.discount ** len(window)
                replay.insert(*window.popleft()[:2], value, discount, following)
            x = self.env.reset()[0] if is_first else following
            if self.steps >= task.learning_starts and self.steps % task.update_interval == 0:
                for _ in range(task.updates):
                    self.learn(replay)
        self.updater.check()

    def learn(self, replay: Replay) -> None:
        """One SGD step."""
        x, action, reward, discount, following = replay.sample(self.task.batch_size, self.random)
        is_discrete = self.action_spec.num_discrete > 0
        self.updater.set_learning_rate(self.learning_rate * self.schedule.value(self.steps))
        batch = TransitionBatch(
            {"obs": x},
            action if is_discrete else None,
            None if is_discrete else action,
            reward,
            discount,
            {"obs": following},
            None,
            None,
            torch.ones(len(x)),
        )
        self.updater.centre_pictures(batch)
        self.updater.step([batch])

    def explore(self, is_first: bool) -> Explore:
        """Of the one row."""
        reset = torch.tensor([is_first])
        return Explore(self.steps, self.task.steps, torch.zeros(1, dtype=torch.int64), 1, reset, self.generator)

    def act(self, x: NDArray[Any], explore: Explore | None) -> NDArray[Any]:
        """The action as it is stored."""
        action: Action = self.algorithm.act({"obs": torch.from_numpy(x[None])}, None, explore)
        stored = action.continuous if action.discrete is None else action.discrete
        assert stored is not None
        return stored[0].numpy()

    def to_env(self, action: NDArray[Any]) -> Any:
        """The action as the environment wants it."""
        space = self.env.action_space
        if not isinstance(space, gymnasium.spaces.Box):
            return int(action[0])
        return space.low + (space.high - space.low) * (action + 1.0) / 2.0

    def evaluate(self, episodes: int = 10) -> float:
        """Mean return of the greedy policy."""
        return play(self.env, lambda x: self.to_env(self.act(x, None)), episodes)


def play(env: gymnasium.Env[Any, Any], act: Callable[[NDArray[Any]], Any], episodes: int) -> float:
    """Mean return of a policy over episodes with the same start states for every policy.

    Args:
        env: One environment.
        act: Its observation to its action.
        episodes: How many.
    """
    returns = []
    for episode in range(episodes):
        x, _ = env.reset(seed=10_000 + episode)
        total, is_over = 0.0, False
        while not is_over:
            x, reward, terminated, truncated, _ = env.step(act(x))
            total += float(reward)
            is_over = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main() -> int:
    """Runs the command line; 1 if a gate was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds (default: 1)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of the updates")
    arguments = parser.parse_args()
    unknown = set(arguments.tasks) - set(TASKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(TASKS)}")
    take_threads(1)
    results: dict[str, dict[int, float]] = {}
    passed = True
    for name in arguments.tasks or TASKS:
        task = TASKS[name]
        for seed in arguments.seeds:
            start = time.perf_counter()
            loop = Loop(task, seed, arguments.precision)
            loop.run()
            speed = task.steps / (time.perf_counter() - start)
            mean = loop.evaluate()
            results.setdefault(name, {})[seed] = mean
            passed &= mean >= task.gate
            verdict = "passed" if mean >= task.gate else "MISSED"
            print(f"{name}, seed {seed}: {mean:.1f} (gate {task.gate:g}: {verdict}), {speed:,.0f} steps/s", flush=True)
    print(json.dumps(results))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
