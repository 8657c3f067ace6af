"""Whether environments repeat, and can be saved: found out by trying, because neither a seed nor pickle tells."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np

from rollmill.envs.errors import FAILURES
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import Array, SavableGroup, own_views
from rollmill.specs import EnvSpec

__all__ = ["Trial", "try_out"]

# Steps of each part. Two parts are played twice: seconds, of the slowest environments.
_STEPS = 24


class Trial(NamedTuple):
    """What was found.

    Attributes:
        repeats: No difference was seen between two groups with the same seeds that were given the same actions.
        can_be_saved: A group went on from another one's snapshot exactly as that one did.
    """

    repeats: bool
    can_be_saved: bool


def try_out(make_group: Callable[[], SavableGroup], spec: EnvSpec) -> Trial:
    """Plays a few steps with random actions in a group, and again in another one, and compares every bit.

    The second lives in the same process after the first, so that what environments share, such as the generator of
    their module, is found. What comes later than these steps is not. An environment that fails meanwhile is not
    reported: the run that is about to begin will do that.

    Args:
        make_group: Builds the same group, with the same seeds, at every call.
        spec: The environments'.
    """
    repeats = True
    try:
        with closing(make_group()) as group:
            begin = _play(group, spec, 0)
            snapshot = group.snapshot()
            rest = _play(group, spec, 1)
        with closing(make_group()) as group:
            repeats = _are_equal(begin, _play(group, spec, 0))
            if snapshot is None:
                return Trial(repeats, can_be_saved=False)
            group.restore(snapshot)
            return Trial(repeats, _are_equal(rest, _play(group, spec, 1)))
    except FAILURES:
        return Trial(repeats, can_be_saved=False)


def _play(group: SavableGroup, spec: EnvSpec, part: int) -> list[Array]:
    """The first part begins with a reset. Returns copies of all that the group has written."""
    into, outcome = own_views(spec, group.num_rows)
    random = np.random.default_rng(part)
    seen: list[Array] = []
    if part == 0:
        group.reset(into)
    for _ in range(_STEPS):
        group.step(*random_actions(spec.action, into.action_mask, group.num_rows, random), into, outcome)
        shown = [*into.observation.values(), into.reset, *outcome]
        seen += [array.copy() for array in (shown if into.action_mask is None else [*shown, into.action_mask])]
    return seen


def _are_equal(one: list[Array], other: list[Array]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
