"""Turns of agents: trajectories without the steps at which an agent does not act.

See "Several agents" in :mod:`rollmill.specs`. Everything behind this module sees trajectories in which every step is a
turn, so that no algorithm, loss or recurrent core has to know of steps that are transparent, and none is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.storage.slots import ACTS, REWARD_TERMS, RNN_STATE

# Arrays of a step whose values of all steps of a turn are joined.
_REWARDS = ("reward", REWARD_TERMS)
_JOINED = (*_REWARDS, "terminated", "truncated")


class TurnsOnly(NamedTuple):
    """Trajectories of turns, padded behind their ends to the length of the longest one.

    Attributes:
        arrays: Arrays ``[P(+1), M, ...]``, as in a slot, without ``acts``; padding is not valid.
        step: int64 ``[P + 1, M]``: the step of the slot at which each turn begins.
        column: int64 ``[M]``: the trajectory that each one is a part of; those without a turn are left out.
    """

    arrays: dict[str, NDArray[Any]]
    step: NDArray[np.int64]
    column: NDArray[np.int64]


def turns_only(arrays: Mapping[str, NDArray[Any]], own: NDArray[np.bool_] | None = None) -> TurnsOnly:
    """Keep the turns of trajectories.

    A turn begins at a step at which the agent acts, and lasts until the next such step. Its reward is the sum of the
    rewards until then, but not beyond the end of the episode. It is valid if what follows it is known: the episode
    ended, or the next turn (or the final observation) is in the trajectory.

    Args:
        arrays: Arrays ``[T(+1), N, ...]`` of a batch, see :mod:`rollmill.specs`; ``rnn_state`` is ``[N, S]``.
        own: bool ``[T + 1, N]``, whether the policy plays the row; None if it always does. Turns of others are left
            out, but the turn before them lasts no longer than until the first: where an environment fails, the next
            episode may be another player's, without an end of the one before it.
    """
    acts_of_all = arrays[ACTS]
    acts = acts_of_all if own is None else acts_of_all & own
    column = np.flatnonzero(acts.any(axis=0))
    acts = acts[:, column]
    steps, count = len(acts) - 1, acts.sum(axis=0)
    joined = _join({name: arrays[name][:, column] for name in _JOINED if name in arrays}, acts_of_all[:, column])
    # The steps with turns of each trajectory, in order, before the others.
    order = np.argsort(~acts, axis=0, kind="stable")
    ended = joined["terminated"] | joined["truncated"]
    last = np.take_along_axis(order, count[None] - 1, axis=0)[0]
    is_last_known = np.take_along_axis(ended, np.minimum(last, steps - 1)[None], axis=0)[0] & (last < steps)
    # One place more for the end of each trajectory whose last turn ends its episode; at least one transition.
    length = max(2, int((count + is_last_known).max(initial=2)))
    place = np.arange(length)[:, None]
    is_padding = place >= count
    step = np.where(is_padding, last, order[: min(length, steps + 1)].take(np.minimum(place[:, 0], steps), axis=0))
    begins = np.minimum(step[:-1], steps - 1)
    result: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        if name == RNN_STATE:
            result[name] = array[column]
        elif name != ACTS:
            source = joined[name] if name in joined else array[:, column]
            index = begins if len(array) == steps else step
            result[name] = np.take_along_axis(source, index.reshape(*index.shape, *[1] * (source.ndim - 2)), axis=0)
    result["reset"][is_padding] = False
    unknown = (step[:-1] == steps) | is_padding[:-1]
    goes_on = ~is_padding[1:] & ~result["reset"][1:]
    result["valid"] &= ~unknown & (np.take_along_axis(ended, begins, axis=0) | goes_on)
    # What stands there was left by an earlier use of the slot.
    for name, array in arrays.items():
        if name in result and name != RNN_STATE and len(array) == steps:
            result[name][unknown] = 0
    _repeat_versions(result["policy_version"], unknown)
    return TurnsOnly(result, step, column)


def _repeat_versions(versions: NDArray[Any], unknown: NDArray[np.bool_]) -> None:
    """Let padding have the version of the turn before it, so that it does not count as a change of policy."""
    for place in range(1, len(versions)):
        np.copyto(versions[place], versions[place - 1], where=unknown[place])


def _join(arrays: Mapping[str, NDArray[Any]], acts: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """For each step, join what comes from it on until the next turn: the sum of rewards, and the flags of an end."""
    joined = {name: array.copy() for name, array in arrays.items()}
    terminated, truncated = joined["terminated"], joined["truncated"]
    rewards = [joined[name] for name in _REWARDS if name in joined]
    for t in range(len(terminated) - 2, -1, -1):
        # What follows belongs to this step's turn, unless it is a turn of its own or another episode's.
        follows = ~(acts[t + 1] | terminated[t] | truncated[t])
        for reward in rewards:
            reward[t] += np.where(follows.reshape(-1, *[1] * (reward.ndim - 2)), reward[t + 1], 0)
        terminated[t] |= follows & terminated[t + 1]
        truncated[t] |= follows & truncated[t + 1]
    return joined
