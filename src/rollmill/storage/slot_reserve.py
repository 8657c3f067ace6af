"""Slots that the learners of several policies hold back, so that no worker collects far ahead of them.

Each policy learns from batches of its own. In the worst case, every policy waits for the last rows of a batch while one
more batch of each lies between being collected and being learned from, and the run must go on: so many slots there are
(:func:`rollmill.storage.slots.slots_needed`). If all of them went round, however, rollout workers would collect two
batches for each policy before the first time that they wait: they would take processor time from a learner that is
late already, and samples would be older than they need be. So workers begin with the slots of a run of one policy, and
the learners hold the others in reserve::

    worker's free list --> ... --> completed --> learned from --> free list, or now and then back to the reserve
            ^                                                                        |
            +-- lent while no policy has a whole batch and groups wait for slots ----+

How many slots have to go round depends on how the policies' batches become complete: one after another, or all at about
the same time. So slots are lent as soon as they are missed, and taken back one by one.

A policy that plays a few rows in many slots would need more of them for a batch than there are. If several do, all
slots may wait in queues of which none has a whole batch. Then there is a shortage, and those policies learn from the
incomplete batches that they have.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from rollmill.storage.slots import SlotStore

# So long all groups must have waited while no batch was ready; one that is whole takes less to be loaded.
_SHORT_AFTER_S = 0.5


class SlotReserve:
    """The slots that the learners hold back; one for all learners of a process, used by one thread at a time.

    Args:
        store: The slots. The last ``topology.reserved_of_worker`` slots of each worker are in the reserve at first.

    Attributes:
        shortages: How often no policy had a whole batch, no slot was left and none was on its way, for half a second.
    """

    def __init__(self, store: SlotStore) -> None:
        self._store = store
        topology = store.topology
        self._worker_of_group = np.array(topology.worker_of_group, np.int64)
        self._num_policies = topology.players.policies
        self._late_batches = 0
        self.shortages = 0
        self._short_since: float | None = None
        self._held = [topology.reserved_slots_of(worker) for worker in range(topology.num_workers)]
        self._most = [len(held) for held in self._held]

    def release(self, slots: Iterable[int], *, is_late: bool) -> None:
        """Drop one reference on each slot; slots without references go to their workers, or to the reserve.

        Args:
            slots: Completed slots that were learned from.
            is_late: Whether another whole batch waits. After as many such batches as there are policies, one of the
                slots that were lent goes back to the reserve.
        """
        self._short_since = None
        self._late_batches += is_late
        for slot in slots:
            if not self._store.drop(slot):
                continue
            worker = self._store.owner_of(slot)
            if self._late_batches >= self._num_policies and len(self._held[worker]) < self._most[worker]:
                self._held[worker].append(slot)
                self._late_batches = 0
            else:
                self._store.give(slot)

    def lend(self, *, has_batch: bool = False) -> None:
        """Give each group that waits for a slot one of the reserve; call it while no policy has a whole batch.

        Workers that have unread messages are left out: a slot may be among these.

        Args:
            has_batch: Whether one was just taken, so that its slots are about to be released.
        """
        if has_batch:
            self._short_since = None
        elif self._num_policies > 1:
            self._notice_shortage()
        if not any(self._held):
            return
        store = self._store
        # Read once, as weights: as an index it would be counted first, and may change before it is read again.
        waiting = np.bincount(self._worker_of_group, weights=store.group_is_parked, minlength=len(self._held))
        for worker, held in enumerate(self._held):
            if not len(store.inboxes[worker]):
                for _ in range(min(int(waiting[worker]), len(held))):
                    store.give(held.pop())

    def _notice_shortage(self) -> None:
        store, now = self._store, time.monotonic()
        is_short = not any(self._held) and store.group_is_parked.all() and not any(map(len, store.inboxes))
        if not is_short:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        elif now - self._short_since >= _SHORT_AFTER_S:
            self._short_since = None
            self.shortages += 1
            for completed in store.completed:
                completed.wake()
