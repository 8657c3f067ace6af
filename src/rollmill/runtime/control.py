"""What the main process tells the children during a run: named numbers and requests, in shared memory.

It is the other direction of :mod:`rollmill.runtime.channel`, but without messages: a child that is busy for minutes
keeps nobody waiting, and looking for news costs a memory read::

    main process                     one child, the reader              every process
    change_numbers  --ring-->        take_changes, publish  --array-->  number
    request         --counters-->    requested

A number that is NaN is not set. The names are those of whoever uses the block; there is a block for each policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.native import atomic_add, atomic_load, atomic_store
from rollmill.runtime.arena import ArenaLayout

AT_ONCE = -1
"""Stands for a batch: the next one, whichever it is."""

NOT_SET = math.nan

_MOST_CHANGES = 1024
_WRITTEN, _READ, _BEGUN = range(3)


class ControlFullError(RuntimeError):
    """The reader has not read for so long that no further change has a place."""


class Change(NamedTuple):
    """A number to be set, or to be no longer set.

    Attributes:
        name: Which number.
        value: Its value; NaN says that it is no longer set.
        from_batch: The first batch, counted from 0, that it is for; ``AT_ONCE`` for the next one.
    """

    name: str
    value: float
    from_batch: int = AT_ONCE


def add_to_layout(layout: ArenaLayout, *, numbers: Sequence[str], requests: Sequence[str], policy: int = 0) -> None:
    """Reserves the block of one policy."""
    prefix = f"control/{policy}"
    layout.add(f"{prefix}/numbers", len(numbers), "int64", poisoned=False)
    layout.add(f"{prefix}/requests", len(requests), "int64", poisoned=False)
    layout.add(f"{prefix}/changes", (_MOST_CHANGES, 3), "int64", poisoned=False)
    layout.add(f"{prefix}/counters", 3, "int64", poisoned=False)


class ControlBlock:
    """The block of one policy, seen from any process.

    Args:
        arena: With the arrays of :func:`add_to_layout`.
        numbers: As given to it.
        requests: Likewise.
        policy: Likewise.
        create: Whether to initialise the block; in one process, before the others start.
    """

    def __init__(
        self,
        arena: Mapping[str, NDArray[Any]],
        *,
        numbers: Sequence[str],
        requests: Sequence[str],
        policy: int = 0,
        create: bool = False,
    ) -> None:
        self._names = tuple(numbers)
        self._place = {name: place for place, name in enumerate(numbers)}
        self._place_of_request = {name: place for place, name in enumerate(requests)}
        # Float64 as int64, which atomic operations take: a number is read and written whole.
        self._numbers = arena[f"control/{policy}/numbers"]
        self._requests = arena[f"control/{policy}/requests"]
        self._changes = arena[f"control/{policy}/changes"]
        self._counters = arena[f"control/{policy}/counters"]
        if create:
            self._numbers[:] = _bits(NOT_SET)
            self._counters[_BEGUN] = -1

    # --- The main process.

    def change_numbers(self, values: Mapping[str, float], from_batch: int = AT_ONCE) -> None:
        """Sets numbers, all from the same batch on; one thread of the main process.

        Args:
            values: Name -> number; NaN says that it is no longer set.
            from_batch: The first batch that they are for.

        Raises:
            ControlFullError: Too many changes wait for the reader.
        """
        written = atomic_load(self._counters, _WRITTEN)
        waiting = written - atomic_load(self._counters, _READ)
        if waiting + len(values) > _MOST_CHANGES:
            raise ControlFullError(
                f"{waiting} changes wait to be read and {_MOST_CHANGES} have room: change numbers once a report or less"
            )
        for place, (name, value) in enumerate(values.items(), written):
            self._changes[place % _MOST_CHANGES] = self._place[name], from_batch, _bits(value)
        atomic_store(self._counters, _WRITTEN, written + len(values))

    def request(self, name: str) -> None:
        """Counts a request."""
        atomic_add(self._requests, self._place_of_request[name], 1)

    @property
    def begun(self) -> int:
        """The newest batch that the reader has looked for changes for; -1 before the first."""
        return atomic_load(self._counters, _BEGUN)

    # --- The reader.

    def take_changes(self, batch: int) -> list[Change]:
        """The changes since the last call, in their order; called by one process.

        Args:
            batch: The one that is about to begin.
        """
        # Stored first: a change that this call does not see was written by one who can see that it may be late.
        atomic_store(self._counters, _BEGUN, batch)
        read, written = atomic_load(self._counters, _READ), atomic_load(self._counters, _WRITTEN)
        if read == written:
            return []
        rows = [self._changes[place % _MOST_CHANGES].tolist() for place in range(read, written)]
        atomic_store(self._counters, _READ, written)
        return [Change(self._names[place], _number(bits), batch) for place, batch, bits in rows]

    def publish(self, values: Mapping[str, float]) -> None:
        """Tells every process which numbers are in use; those that are not given are not set."""
        for name, place in self._place.items():
            atomic_store(self._numbers, place, _bits(values.get(name, NOT_SET)))

    # --- Every process.

    def number(self, name: str) -> float:
        """The number in use; NaN where none is set."""
        return _number(atomic_load(self._numbers, self._place[name]))

    def requested(self) -> list[int]:
        """How often each request was made, in the order of their names."""
        return [atomic_load(self._requests, place) for place in range(len(self._requests))]


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


def _number(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
