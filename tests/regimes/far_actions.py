"""An environment whose actions have another scale than a policy's first ones."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

TARGET = 700.0


class FarActions(gymnasium.Env[np.ndarray, np.ndarray]):
    """Ten guesses of a number between 0 and 1000; each costs its distance from 700, in thousandths."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(0.0, 1000.0, (1,), np.float32)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.steps += 1
        return np.zeros(1, np.float32), -abs(float(action[0]) - TARGET) / 1000.0, self.steps == 10, False, {}
