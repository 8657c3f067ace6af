"""Which completed slot of a rollout worker is written over when it needs one and none is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from rollmill.storage.replay_config import Remover as RemoverName

__all__ = ["Fifo", "LowestPriority", "Remover", "Uniform", "make_remover"]

_CANDIDATES = 16


class Remover(Protocol):
    """A rule; one for each rollout worker, called by it alone."""

    def choose(self, completed: deque[int]) -> int:
        """Takes one slot out of the completed ones, which are in the order in which they were completed."""
        ...


class Fifo:
    """The oldest."""

    def choose(self, completed: deque[int]) -> int:
        """See :class:`Remover`."""
        return completed.popleft()


class Uniform:
    """Any but the newest, which the group goes on from.

    Args:
        random: The stream to draw from.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def choose(self, completed: deque[int]) -> int:
        """See :class:`Remover`."""
        return _take(completed, int(self._random.integers(max(1, len(completed) - 1))))


class LowestPriority:
    """The one with the smallest sum of priorities, of sixteen that are drawn at random: all would take too long.

    Args:
        random: The stream to draw from.
        priority: Gives the sum of a slot's priorities.
    """

    def __init__(self, random: np.random.Generator, priority: Callable[[int], float]) -> None:
        self._random = random
        self._priority = priority

    def choose(self, completed: deque[int]) -> int:
        """See :class:`Remover`."""
        candidates = self._random.integers(max(1, len(completed) - 1), size=_CANDIDATES).tolist()
        return _take(completed, min(set(candidates), key=lambda place: (self._priority(completed[place]), place)))


def make_remover(name: RemoverName, random: np.random.Generator, priority: Callable[[int], float]) -> Remover:
    """The remover of this name."""
    if name == "fifo":
        return Fifo()
    return Uniform(random) if name == "uniform" else LowestPriority(random, priority)


def _take(completed: deque[int], place: int) -> int:
    slot = completed[place]
    del completed[place]
    return slot
