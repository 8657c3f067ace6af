"""Check whether an environment's seed determines its first steps."""

from __future__ import annotations

import copy
import time
from typing import Any

from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from rollmill.envs.errors import failures

# Of each of two episodes.
_STEPS = 20
_LONGEST_S = 10.0


def repeats(env: Any) -> bool | None:
    """Whether the same seed and the same actions give the same episodes.

    Args:
        env: A ``gymnasium.Env`` without action masks.

    Returns:
        None if that is undecided: the environment failed (training reports it), took too long, or returned values that
            cannot be compared.
    """
    deadline = time.monotonic() + _LONGEST_S
    try:
        one, other = _play(env, deadline), _play(env, deadline)
        length = min(len(one), len(other))
        if length < 2:
            return None
        # Raises for values that cannot be compared, such as tensors.
        return all(data_equivalence(a, b, exact=True) for a, b in zip(one[:length], other[:length], strict=True))
    except failures():
        return None


def _play(env: Any, deadline: float) -> list[Any]:
    space = env.action_space  # A property may make a new one each time.
    space.seed(0)
    seen = [copy.deepcopy(env.reset(seed=0)[0])]
    for step in range(2 * _STEPS):
        if time.monotonic() > deadline:
            break
        if step == _STEPS:
            # Training gives a seed to the first reset alone. A generator that is made at each reset is random from
            # the second one on.
            seen.append(copy.deepcopy(env.reset()[0]))
        action = space.sample()
        # In training a choice is a Python integer, too.
        observation, reward, terminated, truncated, _ = env.step(
            int(action) if isinstance(space, spaces.Discrete) else action
        )
        seen.append(copy.deepcopy((observation, reward, terminated, truncated)))
        if terminated or truncated:
            seen.append(copy.deepcopy(env.reset()[0]))
    return seen
