"""An environment that fails at its fiftieth step, to be one of several tasks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from rollmill import register_env


class Broken(gymnasium.Env[Any, Any]):
    """Raises at its fiftieth step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 50:
            raise RuntimeError("the fiftieth step")
        return np.zeros(2, np.float32), 0.0, False, False, {}


register_env("test/broken_task", Broken)
