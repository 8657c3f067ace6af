"""Removers choose the completed slot that a rollout worker evicts and overwrites when none is free.

A user-defined remover::

    class Youngest:  # keeps the oldest slots
        def choose(self, completed):
            return len(completed) - 1


    rollmill.register_remover("youngest", lambda random, priority: Youngest())

and then ``--import my_module.py --replay.remover youngest``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from rollmill.runtime.definitions import Registry

_CANDIDATES = 16


class Remover(Protocol):
    """A rule for eviction. Each rollout worker has its own remover."""

    def choose(self, completed: deque[int]) -> int:
        """The index, in ``completed``, of the slot to evict.

        Args:
            completed: At least one slot, in the order of completion, without the one that the new slot continues.
                Evicting the last one of another group also loses those of its steps that need what the group does next.
        """
        ...


RemoverFactory = Callable[[np.random.Generator, Callable[[int], float]], Remover]


class UnknownRemoverError(ValueError):
    """No remover is registered under this name."""


class _Fifo:
    """Evicts the oldest slot."""

    def choose(self, completed: deque[int]) -> int:
        return 0


class _Uniform:
    """Evicts any slot."""

    def __init__(self, random: np.random.Generator, priority: Callable[[int], float]) -> None:
        self._random = random

    def choose(self, completed: deque[int]) -> int:
        return int(self._random.integers(len(completed)))


class _LowestPriority:
    """Evicts the slot with the smallest sum of priorities, of sixteen drawn at random: checking all takes too long."""

    def __init__(self, random: np.random.Generator, priority: Callable[[int], float]) -> None:
        self._random = random
        self._priority = priority

    def choose(self, completed: deque[int]) -> int:
        candidates: list[int] = self._random.integers(len(completed), size=_CANDIDATES).tolist()
        return min(set(candidates), key=lambda place: (self._priority(completed[place]), place))


REMOVERS: Registry[RemoverFactory] = Registry(
    "remover",
    {"fifo": lambda random, priority: _Fifo(), "uniform": _Uniform, "lowest_priority": _LowestPriority},
    register="register_remover",
    error=UnknownRemoverError,
)


def register_remover(name: str, factory: RemoverFactory) -> None:
    """Make ``replay.remover=name`` use ``factory(random, priority)`` in each rollout worker.

    Every rollout worker must know it, so register it in a module that is imported everywhere (``--import``).

    Args:
        name: A new name.
        factory: Makes a :class:`Remover` from a random stream and a function that returns the sum of a slot's
            priorities.

    Raises:
        ValueError: The name is taken by another factory.
    """
    REMOVERS.register(name, factory)


def make_remover(name: str, random: np.random.Generator, priority: Callable[[int], float]) -> Remover:
    """The remover of this name.

    Args:
        name: Built in or registered.
        random: The stream that it may draw from.
        priority: Returns the sum of a slot's priorities.

    Raises:
        UnknownRemoverError: No remover has this name.
    """
    return REMOVERS.find(name, "replay.remover")(random, priority)


def pop_evicted(remover: Remover, completed: deque[int]) -> int:
    """Removes the slot that the remover chooses from the completed ones.

    Raises:
        ValueError: It chose an index out of range.
    """
    index = remover.choose(completed)
    if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not 0 <= index < len(completed):
        raise ValueError(
            f"{type(remover).__name__}.choose returned {index!r}; there are {len(completed)} completed slots: return "
            f"an index of 0 to {len(completed) - 1}"
        )
    slot = completed[index]
    del completed[index]
    return slot
