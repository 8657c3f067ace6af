"""DQN on Pong in the manner of CleanRL's ``dqn_atari.py``: one environment, one process, PyTorch without tricks.

Written for this benchmark with CleanRL's hyperparameters. Faster than the original: ALE's vector environment resizes
and stacks in C++, and the ring keeps each stack once. Learning starts after ``--learning-starts`` steps and exploration
is the final one from the beginning, because this measures the speed with learning and acting by the network.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn
from window import Window, make_parser, report

_GAMMA, _EPSILON, _BATCH, _TRAIN_FREQUENCY, _TARGET_FREQUENCY = 0.99, 0.01, 32, 4, 1000


def _make_net(num_actions: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, num_actions),
    )


class _Ring:
    """Transitions; the next observation of a slot is that of the next slot."""

    def __init__(self, capacity: int) -> None:
        self._obs = np.zeros((capacity, 4, 84, 84), np.uint8)
        self._action = np.zeros(capacity, np.int64)
        self._reward = np.zeros(capacity, np.float32)
        self._terminated = np.zeros(capacity, np.float32)
        self._capacity, self._count = capacity, 0

    def add(self, obs: np.ndarray, action: int, reward: float, terminated: bool) -> None:
        slot = self._count % self._capacity
        self._obs[slot], self._action[slot] = obs, action
        self._reward[slot], self._terminated[slot] = reward, terminated
        self._count += 1

    def sample(self, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        # The newest transition has no next observation yet. NumPy's global generator is CleanRL's.
        oldest = max(self._count - self._capacity, 0)
        slots = np.random.randint(oldest, self._count - 1, batch) % self._capacity  # noqa: NPY002
        following = (slots + 1) % self._capacity
        arrays = (self._obs[slots], self._action[slots], self._reward[slots], self._obs[following])
        obs, action, reward, next_obs = (torch.from_numpy(array) for array in arrays)
        return obs, action, reward, next_obs, torch.from_numpy(self._terminated[slots])


def train(arguments: Any, window: Window) -> None:
    """Trains until the window is full."""
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    envs = AtariVectorEnv(
        "pong",
        num_envs=1,
        num_threads=1,
        reward_clipping=True,
        episodic_life=True,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    num_actions = int(envs.single_action_space.n)
    net, target = _make_net(num_actions), _make_net(num_actions)
    target.load_state_dict(net.state_dict())
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-4)
    ring = _Ring(arguments.capacity)
    observation = envs.reset(seed=1)[0]
    steps = 0
    while not window.is_full:
        if steps > arguments.learning_starts and steps % _TRAIN_FREQUENCY == 0:
            window.update(steps)
        if random.random() < _EPSILON:
            action = random.randrange(num_actions)
        else:
            with torch.no_grad():
                action = int(net(torch.from_numpy(observation).float() / 255).argmax(1))
        seen, reward, terminated, _, _ = envs.step(np.array([action]))
        ring.add(observation[0], action, reward[0], terminated[0])
        observation = seen
        steps += 1
        if steps <= arguments.learning_starts or steps % _TRAIN_FREQUENCY:
            continue
        obs, taken, rewards, next_obs, ended = ring.sample(_BATCH)
        with torch.no_grad():
            best = target(next_obs.float() / 255).amax(1)
            wanted = rewards + _GAMMA * (1 - ended) * best
        value = net(obs.float() / 255).gather(1, taken[:, None]).squeeze(1)
        loss = F.mse_loss(value, wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if steps % _TARGET_FREQUENCY == 0:
            target.load_state_dict(net.state_dict())
    envs.close()


def main() -> None:
    parser = make_parser(__doc__ or "", ("pong-dqn",))
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--learning-starts", type=int, default=1000, help="steps")
    parser.add_argument("--capacity", type=int, default=100_000)
    arguments = parser.parse_args()
    window = Window(arguments.seconds, arguments.warm_up)
    train(arguments, window)
    report(
        "cleanrl-style",
        arguments.env,
        window.steps_per_second,
        frameskip=4,
        precision="fp32, channels first",
        config={
            "threads": arguments.threads,
            "buffer_size": arguments.capacity,
            "batch_size": _BATCH,
            "train_freq": _TRAIN_FREQUENCY,
            "gradient_steps": 1,
        },
        packages=("torch", "gymnasium", "ale-py"),
        steps_per_cpu_second=window.steps_per_cpu_second,
    )


if __name__ == "__main__":
    main()
