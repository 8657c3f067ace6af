"""An environment with all kinds of observations and actions, and a mask."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Machine(gymnasium.Env[Any, Any]):
    """Observes a picture, numbers and a choice; acts by a choice, which is not always there, and numbers."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            picture=spaces.Box(0, 255, (40, 40, 1), np.uint8),
            numbers=spaces.Box(-np.inf, np.inf, (3,), np.float32),
            choice=spaces.Discrete(3),
            action_mask=spaces.Box(0, 1, (4,), np.int8),
        )
        self.action_space = spaces.Tuple((spaces.Discrete(4), spaces.Box(-2.0, 2.0, (2, 1), np.float32)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.mask[action[0]]
        self.time += 1
        reward = float(action[0] == 1) - float(np.abs(action[1]).sum())
        return self._observed(), reward, self.time == 9, False, {}

    def _observed(self) -> dict[str, Any]:
        self.mask = np.array([1, *self.np_random.integers(2, size=3)], np.int8)
        return {
            "picture": np.full((40, 40, 1), 20 * self.time, np.uint8),
            "numbers": self.np_random.normal(size=3).astype(np.float32),
            "choice": self.time % 3,
            "action_mask": self.mask,
        }
