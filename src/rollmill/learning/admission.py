"""Admission: which completed slots form the learner's next batch of trajectories.

A custom rule is a class with ``add`` and ``take``; ``examples/windowed_admission.py`` is a complete example::

    rollmill.register_admission("windowed", WindowedFirstInFirstOut)

and then ``--import windowed_admission.py --admission windowed``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np

from rollmill.learning.batch_loader import POLL_S
from rollmill.learning.trajectories import Trajectories, gather_trajectories_of
from rollmill.runtime.definitions import Registry
from rollmill.storage.slots import SlotStore

Prepared = TypeVar("Prepared")


class Admission(Protocol):
    """A rule that forms batches from completed slots. Not thread-safe; the loader's thread owns it."""

    def add(self, slot: int) -> None:
        """Append a completed slot. The rule takes ownership of its reference."""
        ...

    def take(self) -> Trajectories | None:
        """Return the next batch, or None while it is incomplete."""
        ...


class FirstInFirstOut:
    """Cuts the stream of completed slots into batches of exactly ``num_trajectories`` rows.

    A slot that crosses the end of a batch is split: its remaining rows open the next batch, and it gets one more
    reference. See :class:`Admission`.
    """

    def __init__(self, store: SlotStore, num_trajectories: int) -> None:
        """``num_trajectories`` is the batch size in samples divided by T."""
        self._store = store
        self._num_trajectories = num_trajectories
        self._segments: deque[tuple[int, int, int]] = deque()
        self._rows = 0

    def add(self, slot: int) -> None:
        """Append a completed slot. The rule takes ownership of its reference."""
        self._segments.append((slot, 0, self._store.topology.group_rows))
        self._rows += self._store.topology.group_rows

    def take(self) -> Trajectories | None:
        """Return the next batch, or None while there are too few rows."""
        if self._rows < self._num_trajectories:
            return None
        chosen: list[tuple[int, int, int, int]] = []
        column = 0
        while column < self._num_trajectories:
            slot, first_row, rows = self._segments.popleft()
            used = min(rows, self._num_trajectories - column)
            if used < rows:
                self._store.retain(slot)
                self._segments.appendleft((slot, first_row + used, rows - used))
            chosen.append((slot, first_row, used, column))
            column += used
        self._rows -= self._num_trajectories
        return gather_trajectories_of(self._store, np.array(chosen, np.int64))


class Iterations:
    """Batch i is the i-th slot of every group, in the order of the groups. See :class:`Admission`."""

    def __init__(self, store: SlotStore) -> None:
        """The store's slots must belong to groups."""
        self._store = store
        self._group_of_slot = store.topology.group_of_slot()
        self._waiting: list[deque[int]] = [deque() for _ in range(store.topology.num_groups)]

    def add(self, slot: int) -> None:
        """Append a completed slot. A group's slots arrive in the order of their iterations."""
        self._waiting[self._group_of_slot[slot]].append(slot)

    def take(self) -> Trajectories | None:
        """Return the next iteration's batch, or None while a group's slot is missing."""
        if not all(self._waiting):
            return None
        rows = self._store.topology.group_rows
        chosen = [(slots.popleft(), 0, rows, group * rows) for group, slots in enumerate(self._waiting)]
        return gather_trajectories_of(self._store, np.array(chosen, np.int64))


AdmissionFactory = Callable[[SlotStore, int], Admission]

ADMISSIONS: Registry[AdmissionFactory] = Registry(
    "admission rule", {"fifo": FirstInFirstOut}, register="register_admission"
)


def register_admission(name: str, factory: AdmissionFactory) -> None:
    """Make ``admission=name`` use ``factory(store, num_trajectories)`` in the learner of the async regime.

    The learner must know it, so register it in a module that is imported everywhere (``--import``).

    Args:
        name: A new name.
        factory: Builds an :class:`Admission` from the slots and the number of trajectories in a batch.

    Raises:
        ValueError: The name is taken by another factory.
    """
    ADMISSIONS.register(name, factory)


class CompletedSlots(Generic[Prepared]):
    """A source of batches for a :class:`rollmill.learning.batch_loader.BatchLoader`.

    Args:
        store: The slots.
        admission: Forms batches of the slots.
        prepare: Called in the loader's thread for every batch, for work that does not need the weights.
    """

    def __init__(self, store: SlotStore, admission: Admission, prepare: Callable[[Trajectories], Prepared]) -> None:
        self._admission = admission
        self._prepare = prepare
        self._completed = store.completed[0]
        self._messages = np.empty(store.topology.num_slots, np.int64)

    def collect(self) -> Iterator[Prepared]:
        """See :class:`rollmill.learning.batch_loader.Source`."""
        for slot in self._messages[: self._completed.get_many(self._messages, POLL_S)].tolist():
            self._admission.add(slot)
        while (batch := self._admission.take()) is not None:
            yield self._prepare(batch)

    def while_full(self) -> None:
        """Do nothing while a batch waits for the learner."""

    def wake(self) -> None:
        """See :class:`rollmill.learning.batch_loader.Source`."""
        self._completed.wake()
