"""The tasks of the PPO peers that take Gymnasium's environments: games, settings and vectors of environments.

Breakout has the preprocessing of the other peers: frame skip 4 with the maximum of two frames, 84 x 84 in grey, four
stacked frames, clipped rewards, and 30 no-ops at most. CartPole is Gymnasium's single environment in Python, as in
Rollmill's preset; Gymnasium's NumPy version of it, which computes all environments in one call, is other work.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward

VECTORS = ("sync", "async", "ale")


class Task(NamedTuple):
    """Settings of Rollmill's preset that a system can be given: the work for each sample depends on the first three."""

    batch: int
    minibatches: int
    epochs: int
    discount: float
    gae_lambda: float
    clip_range: float
    entropy_coef: float
    learning_rate: float
    frameskip: int

    @property
    def minibatch(self) -> int:
        return self.batch // self.minibatches


TASKS = {
    "atari": Task(1024, 8, 1, 0.99, 0.95, 0.1, 0.01, 8e-4, 4),
    "cartpole": Task(1024, 4, 4, 0.98, 0.8, 0.2, 0.0, 1e-3, 1),
}
VALUE_COEF, MAX_GRAD_NORM = 0.5, 0.5


def make_env(env: str) -> gymnasium.Env[Any, Any]:
    """One environment."""
    if env == "cartpole":
        return gymnasium.make("CartPole-v1", disable_env_checker=True)
    gymnasium.register_envs(ale_py)
    game = gymnasium.make(
        "ALE/Breakout-v5",
        frameskip=1,
        repeat_action_probability=0.0,
        disable_env_checker=True,
        max_episode_steps=27_000,
    )
    stacked = FrameStackObservation(AtariPreprocessing(game, noop_max=30, frame_skip=4), 4)
    return TransformReward(stacked, lambda reward: float(np.sign(reward)))


def make_vector(
    env: str, num_envs: int, kind: str, threads: int = 2, autoreset: AutoresetMode = AutoresetMode.SAME_STEP
) -> VectorEnv[Any, Any, Any]:
    """Many environments.

    Args:
        env: Which task.
        num_envs: How many.
        kind: ``sync``: in this process; ``async``: a process each, with shared memory; ``ale``: ALE's own in C++.
        threads: Of ``ale``.
        autoreset: By default an episode's first observation comes with the end of the one before it, so that no step
            is wasted on a reset.
    """
    if kind == "ale":
        return AtariVectorEnv("breakout", num_envs, num_threads=threads, autoreset_mode=autoreset)
    makers = [partial(make_env, env)] * num_envs
    if kind == "async":
        return AsyncVectorEnv(makers, shared_memory=True, autoreset_mode=autoreset)
    return SyncVectorEnv(makers, autoreset_mode=autoreset)
