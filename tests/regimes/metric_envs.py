"""Environments that give numbers in ``info["metrics"]``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from rollmill import register_env


class Metered(gymnasium.Env[np.ndarray, int]):
    """Ten steps an episode; gives a constant at every step, a number at some, and what is no number."""

    observation_space = gymnasium.spaces.Box(-20.0, 20.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        metrics: dict[str, Any] = {"constant": 2.5, "map": "caves"}
        if self.steps == 10:
            metrics["length"] = self.steps
        return np.full(3, self.steps, np.float32), 1.0, self.steps == 10, False, {"metrics": metrics}


def make_vector(num_envs: int) -> gymnasium.vector.SyncVectorEnv:
    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    return gymnasium.vector.SyncVectorEnv([Metered] * num_envs, autoreset_mode=mode)


register_env("test/metered", Metered)
register_env("test/metered-vector", make_vector, vector=True)
