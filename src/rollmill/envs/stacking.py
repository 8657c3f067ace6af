"""Detection of frame stacks, of which a replay stores only the newest frame."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces, wrappers

from rollmill.specs import FrameStack

# Wrappers that do not change observations.
_TRANSPARENT: tuple[type[Any], ...] = (
    wrappers.TimeLimit,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RecordEpisodeStatistics,
    gymnasium.ActionWrapper,
    gymnasium.RewardWrapper,
)
# A subclass with its own method may change observations.
_KINDS: tuple[Any, ...] = (gymnasium.Wrapper, *_TRANSPARENT)
_RESETS = {kind.reset for kind in _KINDS}
_STEPS = {kind.step for kind in _KINDS[1:]}


def stack_of(env: Any) -> FrameStack | None:
    """Return the frame stack of a ``gymnasium.Env``; None without one, or if something may change the stack.

    Only known wrappers count: an observation that merely looks like a stack may cease to be one.
    """
    while isinstance(env, gymnasium.Wrapper):
        if type(env) is wrappers.FrameStackObservation:
            if env.stack_size < 2 or env.padding_type not in ("reset", "zero"):
                return None
            if env.padding_type == "zero" and not _may_be_zero(env.env.observation_space):
                return None
            return FrameStack(depth=env.stack_size, padding="repeat" if env.padding_type == "reset" else "zero")
        if type(env).reset not in _RESETS or type(env).step not in _STEPS:
            return None
        env = env.env
    return None


def _may_be_zero(frame: gymnasium.Space[Any]) -> bool:
    """Whether Gymnasium's padding is zeros. In a space without 0 it is the nearest number."""
    match frame:
        case spaces.MultiDiscrete():
            return not frame.start.any()
        case spaces.Box():
            return bool((frame.low <= 0).all() and (frame.high >= 0).all())
        case spaces.Dict():
            return all(map(_may_be_zero, frame.spaces.values()))
        case spaces.Tuple():
            return all(map(_may_be_zero, frame.spaces))
        case _:
            return True
