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
from numpy.typing import NDArray

from rollmill.learning.batch_loader import POLL_S
from rollmill.learning.trajectories import Trajectories, gather_trajectories_of
from rollmill.runtime.definitions import Registry
from rollmill.storage.slots import POLICY_ID, SlotStore

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

    With several agents or policies, rows have fewer than T samples each. A batch then takes rows until it has
    ``num_trajectories`` x T samples, but at most ``num_trajectories`` x the number of agents x that of policies.

    A slot that crosses the end of a batch is split: its remaining rows open the next batch, and it gets one more
    reference. See :class:`Admission`.
    """

    def __init__(self, store: SlotStore, num_trajectories: int) -> None:
        """``num_trajectories`` is the batch size in samples divided by T."""
        self._store = store
        self._wanted = num_trajectories * store.topology.rollout_length
        self._agents = store.topology.agents_per_env
        self._policies = store.topology.players.policies
        self._most_rows = num_trajectories * self._agents * self._policies
        # (slot, first row, samples of each row from that one on)
        self._segments: deque[tuple[int, int, NDArray[np.int64]]] = deque()

    def add(self, slot: int) -> None:
        """Append a completed slot. The rule takes ownership of its reference."""
        topology = self._store.topology
        samples = np.full(topology.group_rows, topology.rollout_length)
        if self._agents > 1 or self._policies > 1:
            counts = self._store.arrays["valid"][slot]
            if (policies := self._store.arrays.get(POLICY_ID)) is not None:
                counts = counts & (policies[slot, :-1] == self._store.policy)
            samples = np.count_nonzero(counts, axis=0)
        self._segments.append((slot, 0, samples))

    def take(self) -> Trajectories | None:
        """Return the next batch, or None while there are too few samples."""
        chosen: list[tuple[int, int, int, int]] = []
        column = samples = 0
        for slot, first_row, of_rows in self._segments:
            enough = int(np.searchsorted(np.cumsum(of_rows), self._wanted - samples)) + 1
            # Whole environments, so that the rows of a match stay together.
            enough = -(-enough // self._agents) * self._agents
            used = min(enough, len(of_rows), self._most_rows - column)
            chosen.append((slot, first_row, used, column))
            column += used
            samples += int(of_rows[:used].sum())
            if samples >= self._wanted or column >= self._most_rows:
                return self._cut(chosen)
        return None

    def _cut(self, chosen: list[tuple[int, int, int, int]]) -> Trajectories:
        for _, _, used, _ in chosen:
            slot, first_row, of_rows = self._segments.popleft()
            if used < len(of_rows):
                self._store.retain(slot)
                self._segments.appendleft((slot, first_row + used, of_rows[used:]))
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
        self._completed = store.completed[store.policy]
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
