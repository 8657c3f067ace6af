"""Which observations are stacks of the last frames, so that a replay need keep only the newest one of each."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces, wrappers

from rollmill.specs import FrameStack

__all__ = ["stack_of"]

# Wrappers that show what they were shown.
_TRANSPARENT: tuple[type[Any], ...] = (
    wrappers.TimeLimit,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RecordEpisodeStatistics,
    gymnasium.ActionWrapper,
    gymnasium.RewardWrapper,
)
# A subclass with a way of its own may show something of its own.
_KINDS: tuple[Any, ...] = (gymnasium.Wrapper, *_TRANSPARENT)
_RESETS = {kind.reset for kind in _KINDS}
_STEPS = {kind.step for kind in _KINDS[1:]}


def stack_of(env: Any) -> FrameStack | None:
    """How a ``gymnasium.Env`` stacks its observation; None where it does not, or something may change the stack.

    What merely looks like a stack is not taken for one: it might cease to be.
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
    """Whether Gymnasium's padding is zeros: in a space that has no 0 it takes the number next to it."""
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
