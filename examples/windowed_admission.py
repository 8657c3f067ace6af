"""Windowed first-in-first-out: an admission rule of your own.

    rollmill train atari/pong --import examples/windowed_admission.py --admission windowed

The built-in rule takes slots in the order in which they are completed, so any number of other slots may pass the one of
a slow environment (a straggler), whose samples grow old meanwhile. This rule goes by the order in which slots were
*begun*, and lets at most W - 1 younger slots pass one that is not complete yet.

**Bound on the lag.** Let N be the number of slots, n the slots of a batch (a whole number), and S the SGD steps of a
batch. The lag of a sample, in SGD steps, is the learner's version when it admits the sample minus the version that
chose the action. It is at most ``S * floor((N + W - 2) / n) + publish_every``. Proof, for a slot with ticket t:

1. When it begins, every older slot that has not been learned from occupies one of the other N - 1 slots, because slots
   are free only after they were learned from.
2. While it is not admitted, the oldest slot that is not admitted has a ticket of at most t. So a younger slot is
   admitted only if its ticket is below t + W: there are W - 1 of these.
3. So at most (N - 1) + (W - 1) slots are learned from between the beginning of slot t and its own batch. These are at
   most floor((N + W - 2) / n) whole batches before its own, of S SGD steps each.
4. The policy worker uses the newest published version, which is less than ``publish_every`` SGD steps older than the
   learner's, and may have loaded it one SGD step ago.

**It cannot stop for good.** Its groups hold the slots that are waited for and need nothing else to complete them.
"""

from __future__ import annotations

import rollmill
from rollmill.learning.admission import FirstInFirstOut
from rollmill.learning.trajectories import Trajectories
from rollmill.storage.slots import SlotStore

WINDOW = 8


def lag_bound(num_slots: int, slots_per_batch: int, sgd_steps_per_batch: int, publish_every: int, window: int) -> int:
    """The largest lag of an admitted sample, in SGD steps."""
    return sgd_steps_per_batch * ((num_slots + window - 2) // slots_per_batch) + publish_every


class WindowedFirstInFirstOut:
    """See the module. The learner's loader thread owns it.

    Args:
        store: The slots, which have tickets.
        num_trajectories: Trajectories of a batch.
        window: W; 1 lets nothing pass.
    """

    def __init__(self, store: SlotStore, num_trajectories: int, window: int = WINDOW) -> None:
        self._store = store
        self._admitted = FirstInFirstOut(store, num_trajectories)
        self._window = window
        self._completed: dict[int, int] = {}  # ticket -> slot, not admitted yet
        self._oldest = 0  # the smallest ticket that is not admitted
        self._passed: set[int] = set()  # younger tickets that are

    def add(self, slot: int) -> None:
        """Takes in a completed slot, and admits those that the window allows."""
        self._completed[int(self._store.ticket[slot])] = slot
        while allowed := [ticket for ticket in self._completed if ticket < self._oldest + self._window]:
            ticket = min(allowed)
            self._admitted.add(self._completed.pop(ticket))
            self._passed.add(ticket)
            while self._oldest in self._passed:
                self._passed.remove(self._oldest)
                self._oldest += 1

    def take(self) -> Trajectories | None:
        """The next batch of admitted slots, or None while it is not complete."""
        return self._admitted.take()


rollmill.register_admission("windowed", WindowedFirstInFirstOut)
