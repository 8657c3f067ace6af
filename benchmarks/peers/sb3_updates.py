"""Stable-Baselines3's own update, asked for through pipes; run by benchmarks/off_policy_updates.py.

Reads ``<task> <updates>`` lines and answers each with the CPU seconds that ``train()`` took for so many SGD steps.
"""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm


class Noise(gymnasium.Env[Any, Any]):
    """Random observations of a space."""

    def __init__(self, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, False, False, {}


CHEETAH = (gymnasium.spaces.Box(-1, 1, (17,), np.float32), gymnasium.spaces.Box(-1, 1, (6,), np.float32))
CARTPOLE = (gymnasium.spaces.Box(-1, 1, (4,), np.float32), gymnasium.spaces.Discrete(2))
ATARI = (gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8), gymnasium.spaces.Discrete(6))
MLP_256 = {"net_arch": [256, 256]}

TASKS: dict[str, tuple[type[OffPolicyAlgorithm], Any, str, dict[str, Any]]] = {
    "sac": (SAC, CHEETAH, "MlpPolicy", {"batch_size": 256, "policy_kwargs": MLP_256}),
    "td3": (TD3, CHEETAH, "MlpPolicy", {"batch_size": 256, "policy_kwargs": MLP_256}),
    "ddpg": (DDPG, CHEETAH, "MlpPolicy", {"batch_size": 256, "policy_kwargs": MLP_256}),
    "dqn_cartpole": (DQN, CARTPOLE, "MlpPolicy", {"batch_size": 64, "policy_kwargs": MLP_256}),
    "dqn_atari": (DQN, ATARI, "CnnPolicy", {"batch_size": 32}),
}


def build(name: str) -> OffPolicyAlgorithm:
    """A model whose buffer is full."""
    cls, spaces, policy, options = copy.deepcopy(TASKS[name])  # SB3 writes into policy_kwargs
    size = 500
    model = cls(policy, Noise(*spaces), buffer_size=size, learning_starts=size, device="cpu", **options)
    model.learn(size)
    return model


def main() -> None:
    """Answers until there are no questions."""
    torch.set_num_threads(1)
    models: dict[str, OffPolicyAlgorithm] = {}
    for line in sys.stdin:
        name, updates = line.split()
        if name not in models:
            models[name] = build(name)
            models[name].train(5, models[name].batch_size)
        start = time.process_time()
        models[name].train(int(updates), models[name].batch_size)
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
