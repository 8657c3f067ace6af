"""Admission: which completed slots form the learner's next batch of trajectories.

A custom rule is a class with ``add`` and ``take``; ``examples/windowed_admission.py`` is a complete example::

    rollmill.register_admission("windowed", WindowedFirstInFirstOut)

and then ``--import windowed_admission.py --admission windowed``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.batch_loader import POLL_S
from rollmill.learning.trajectories import Trajectories, gather_trajectories_of
from rollmill.runtime.definitions import Registry
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.slot_reserve import SlotReserve
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


@runtime_checkable
class TakesIncomplete(Protocol):
    """A rule of :class:`Admission` that can form a smaller batch, where several policies hold all slots."""

    def take_incomplete(self) -> Trajectories | None:
        """Return a batch of what there is, although it is too small; None to wait for more."""
        ...


class FirstInFirstOut:
    """Cuts the stream of completed slots into batches of exactly ``num_trajectories`` rows.

    With several agents or policies, rows have fewer than T samples each. A batch then takes whole environments as long
    as it has at most ``num_trajectories`` x T samples, and ``num_trajectories`` x the number of agents x that of
    policies as rows. One more environment would make its minibatches slightly larger than the parts that are computed
    at once, so that each had to be computed in two.

    A slot that crosses the end of a batch is split: its remaining rows open the next batch, and it gets one more
    reference. See :class:`Admission`.
    """

    def __init__(self, store: SlotStore, num_trajectories: int) -> None:
        """``num_trajectories`` is the batch size in samples divided by T."""
        self._store = store
        self._num_trajectories = num_trajectories
        self._agents = store.topology.agents_per_env
        # With several tasks, all rows of a slot are one policy's.
        self._policies = 1 if store.topology.tasks else store.topology.players.policies
        # (slot, first row, samples of each row from that one on)
        self._segments: deque[tuple[int, int, NDArray[np.int64]]] = deque()

    def add(self, slot: int) -> None:
        """Append a completed slot. The rule takes ownership of its reference."""
        topology = self._store.topology
        samples = np.full(topology.group_rows, topology.rollout_length)
        if self._agents > 1 or self._policies > 1:  # rows have fewer samples
            counts = self._store.arrays["valid"][slot]
            if (policies := self._store.arrays.get(POLICY_ID)) is not None:
                counts = counts & (policies[slot, :-1] == self._store.policy)
            samples = np.count_nonzero(counts, axis=0)
        self._segments.append((slot, 0, samples))

    def take(self) -> Trajectories | None:
        """Return the next batch, or None while there are too few samples."""
        chosen = self.choose(self._num_trajectories)
        if chosen is None:
            return None
        self.cut(chosen)
        return gather_trajectories_of(self._store, np.array(chosen, np.int64))

    def take_incomplete(self) -> Trajectories | None:
        """Return all that there is, if it lies in at least half as many slots as the mean queue of a policy holds.

        Where all slots are held, the longest queue has the mean at least, so that one policy always goes on.
        """
        topology = self._store.topology
        held = len(self._segments)
        if not held or 2 * held * self._policies < topology.num_slots - topology.num_groups:
            return None
        chosen, column = [], 0
        while self._segments:
            slot, first_row, of_rows = self._segments.popleft()
            chosen.append((slot, first_row, len(of_rows), column))
            column += len(of_rows)
        return gather_trajectories_of(self._store, np.array(chosen, np.int64))

    def choose(self, num_trajectories: int) -> list[tuple[int, int, int, int]] | None:
        """Return what makes a batch of this size, as ``[(slot, first row, rows, first trajectory)]``; None if too few.

        Args:
            num_trajectories: Its samples divided by T.
        """
        wanted = num_trajectories * self._store.topology.rollout_length
        most_rows = num_trajectories * self._agents * self._policies
        chosen: list[tuple[int, int, int, int]] = []
        column = samples = 0
        if not wanted:
            return chosen
        for slot, first_row, of_rows in self._segments:
            fitting = int(np.searchsorted(np.cumsum(of_rows), wanted - samples, side="right"))
            # Whole environments, so that the rows of a match stay together.
            used = min(fitting // self._agents * self._agents, most_rows - column)
            if not samples and used < len(of_rows) and not of_rows[:used].any() and column + used < most_rows:
                used += self._agents  # This environment alone has more than a batch.
            if used:
                chosen.append((slot, first_row, used, column))
            column += used
            samples += int(of_rows[:used].sum())
            if samples >= wanted or column >= most_rows or used < len(of_rows):
                return chosen
        return None

    def cut(self, chosen: list[tuple[int, int, int, int]]) -> None:
        """Take out what :meth:`choose` has returned."""
        for _, _, used, _ in chosen:
            slot, first_row, of_rows = self._segments.popleft()
            if used < len(of_rows):
                self._store.retain(slot)
                self._segments.appendleft((slot, first_row + used, of_rows[used:]))


class EqualShares:
    """Takes as many samples of each of several tasks, each task's first in, first out. See :class:`Admission`.

    A batch has R trajectories. Where the tasks do not divide it, they take turns with the remainder: of batch k, task t
    of n gets ``floor(((k + 1) R + t) / n) - floor((k R + t) / n)``, which sum up to R by Hermite's identity. Where
    episodes are short, a trajectory has fewer samples, because final observations are none: while one task has had
    more than T samples more than another one, a trajectory of the next batch goes from the first to the second.
    """

    def __init__(self, store: SlotStore, num_trajectories: int) -> None:
        """``num_trajectories`` is the batch size in samples divided by T."""
        tasks = store.topology.task_of_slot()
        assert tasks is not None, "the run has several tasks"
        self._store = store
        self._task_of_slot = tasks
        self._queues = [FirstInFirstOut(store, num_trajectories) for _ in range(store.topology.tasks)]
        self._num_trajectories = num_trajectories
        self._batches = 0
        self._samples = np.zeros(len(self._queues), np.int64)

    def add(self, slot: int) -> None:
        """Append a completed slot. The rule takes ownership of its reference."""
        self._queues[self._task_of_slot[slot]].add(slot)

    def take(self) -> Trajectories | None:
        """Return the next batch, or None while a task's share is incomplete."""
        chosen: list[tuple[int, int, int, int]] = []
        parts = [queue.choose(share) for queue, share in zip(self._queues, self._shares(), strict=True)]
        if any(part is None for part in parts):
            return None
        self._batches += 1
        for task, (queue, part) in enumerate(zip(self._queues, parts, strict=True)):
            assert part is not None
            first = sum(rows for _, _, rows, _ in chosen)
            chosen += [(slot, row, rows, first + column) for slot, row, rows, column in part]
            self._samples[task] += sum(self._samples_of(slot, row, rows) for slot, row, rows, _ in part)
            queue.cut(part)
        return gather_trajectories_of(self._store, np.array(chosen, np.int64))

    def _shares(self) -> list[int]:
        """Return the trajectories of each task in the next batch."""
        before, after = self._batches * self._num_trajectories, (self._batches + 1) * self._num_trajectories
        tasks, length = len(self._queues), self._store.topology.rollout_length
        shares = [(after + task) // tasks - (before + task) // tasks for task in range(tasks)]
        # No share is more than twice the usual one, for which there are slots enough.
        most = -(-self._num_trajectories // tasks) + self._num_trajectories // tasks
        had = self._samples.copy()
        while True:
            giving = max((task for task in range(tasks) if shares[task]), key=had.__getitem__)
            taking = min((task for task in range(tasks) if shares[task] < most), key=had.__getitem__)
            if had[giving] - had[taking] <= length:  # A move would only turn the difference around.
                return shares
            shares[giving] -= 1
            shares[taking] += 1
            had[giving] -= length
            had[taking] += length

    def _samples_of(self, slot: int, first: int, rows: int) -> int:
        """Return the number of samples in some rows of a slot."""
        return int(np.count_nonzero(self._store.arrays["valid"][slot, :, first : first + rows]))


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


FIFO = "fifo"
AdmissionFactory = Callable[[SlotStore, int], Admission]

ADMISSIONS: Registry[AdmissionFactory] = Registry(
    "admission rule", {FIFO: FirstInFirstOut}, register="register_admission", error=ConfigError
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
        reserve: Tells of shortages of slots.
    """

    def __init__(
        self,
        store: SlotStore,
        admission: Admission,
        prepare: Callable[[Trajectories], Prepared],
        reserve: SlotReserve,
    ) -> None:
        self._admission = admission
        self._reserve = reserve
        self._shortages = reserve.shortages
        self._prepare = prepare
        self._completed = store.completed[store.policy]
        self._messages = np.empty(store.topology.num_slots, np.int64)

    def collect(self) -> Iterator[Prepared]:
        """See :class:`rollmill.learning.batch_loader.Source`."""
        for slot in self._messages[: self._completed.get_many(self._messages, POLL_S)].tolist():
            self._admission.add(slot)
        while (batch := self._admission.take()) is not None:
            yield self._prepare(batch)
        if (shortages := self._reserve.shortages) != self._shortages:
            self._shortages = shortages
            rule = self._admission
            if isinstance(rule, TakesIncomplete) and (batch := rule.take_incomplete()) is not None:
                yield self._prepare(batch)

    def while_full(self) -> None:
        """Do nothing while a batch waits for the learner."""

    def wake(self) -> None:
        """See :class:`rollmill.learning.batch_loader.Source`."""
        self._completed.wake()
