"""Which completed slot of a rollout worker is written over when it needs one and none is free.

A rule of one's own::

    class Youngest:  # keeps what was collected first
        def choose(self, completed):
            return len(completed) - 2 if len(completed) > 1 else 0


    rollmill.register_remover("youngest", lambda random, priority: Youngest())

and then ``--import my_module.py --replay.remover youngest``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from rollmill.runtime.definitions import is_same_definition

__all__ = [
    "Remover",
    "RemoverFactory",
    "UnknownRemoverError",
    "install_remover",
    "make_remover",
    "pop_evicted",
    "register_remover",
    "registered_removers",
]

_CANDIDATES = 16


class Remover(Protocol):
    """A rule; one for each rollout worker, called by it alone."""

    def choose(self, completed: deque[int]) -> int:
        """The place, in the completed slots, of the one that is written over.

        Args:
            completed: Slots in the order in which they were completed; one at least. The last one's group goes on from
                it, and loses its last steps with it.
        """
        ...


RemoverFactory = Callable[[np.random.Generator, Callable[[int], float]], Remover]


class UnknownRemoverError(ValueError):
    """A remover's name that nobody registered."""


class _Fifo:
    """The oldest."""

    def choose(self, completed: deque[int]) -> int:
        return 0


class _Uniform:
    """Any but the newest."""

    def __init__(self, random: np.random.Generator, priority: Callable[[int], float]) -> None:
        self._random = random

    def choose(self, completed: deque[int]) -> int:
        return int(self._random.integers(max(1, len(completed) - 1)))


class _LowestPriority:
    """The one with the smallest sum of priorities, of sixteen that are drawn at random: all would take too long."""

    def __init__(self, random: np.random.Generator, priority: Callable[[int], float]) -> None:
        self._random = random
        self._priority = priority

    def choose(self, completed: deque[int]) -> int:
        candidates: list[int] = self._random.integers(max(1, len(completed) - 1), size=_CANDIDATES).tolist()
        return min(set(candidates), key=lambda place: (self._priority(completed[place]), place))


_removers: dict[str, RemoverFactory] = {
    "fifo": lambda random, priority: _Fifo(),
    "uniform": _Uniform,
    "lowest_priority": _LowestPriority,
}
_BUILT_IN = frozenset(_removers)


def register_remover(name: str, factory: RemoverFactory) -> None:
    """Make ``replay.remover=name`` use ``factory(random, priority)`` in each rollout worker.

    Every rollout worker must know it, so register it in a module that is imported everywhere (``--import``).

    Args:
        name: A new name.
        factory: Gives a :class:`Remover`, of a random stream of its own and a function that says the sum of a slot's
            priorities.

    Raises:
        ValueError: The name is taken by another factory.
    """
    if not is_same_definition(_removers.get(name, factory), factory):
        raise ValueError(f"remover {name!r} exists already; choose a name other than {', '.join(_removers)}")
    _removers[name] = factory


def is_registered_remover(name: str) -> bool:
    """Whether :func:`register_remover` was given this name."""
    return name in _removers.keys() - _BUILT_IN


def registered_removers() -> dict[str, RemoverFactory]:
    """What :func:`register_remover` was given in this process, by name."""
    return {name: factory for name, factory in _removers.items() if name not in _BUILT_IN}


def install_remover(name: str, factory: RemoverFactory) -> None:
    """Take over a registration of the process that started this one, unless this one has the name already."""
    _removers.setdefault(name, factory)


def make_remover(name: str, random: np.random.Generator, priority: Callable[[int], float]) -> Remover:
    """The remover of this name.

    Args:
        name: Built in or registered.
        random: The stream that it may draw from.
        priority: Gives the sum of a slot's priorities.

    Raises:
        UnknownRemoverError: There is none.
    """
    if name not in _removers:
        raise UnknownRemoverError(
            f"replay.remover={name!r}: choose one of {', '.join(_removers)}; one of your own has to be registered by a "
            "module that every process imports (--import): rollmill.register_remover"
        )
    return _removers[name](random, priority)


def pop_evicted(remover: Remover, completed: deque[int]) -> int:
    """Takes the slot that the remover chooses out of the completed ones.

    Raises:
        ValueError: It chose a place that there is not.
    """
    place = remover.choose(completed)
    if isinstance(place, bool) or not isinstance(place, (int, np.integer)) or not 0 <= place < len(completed):
        raise ValueError(
            f"{type(remover).__name__}.choose gave {place!r}; there are {len(completed)} completed slots: give a place "
            f"of 0 to {len(completed) - 1}"
        )
    slot = completed[place]
    del completed[place]
    return slot
