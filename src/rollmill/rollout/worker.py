"""The rollout worker's loop: take a group whose actions have come, step it into its slot, ask for the next actions.

With two or more groups on a worker the sampling is double-buffered: while a policy worker computes one group's actions
the worker steps another one (Sample Factory, section 3.2). Work is done for a group at a time; the environments write
straight into the slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import Group, ObservationView, OutcomeView
from rollmill.rollout.phases import BOOKKEEPING, BUILDING, SIMULATING, WAITING_FOR_ACTIONS, WAITING_FOR_SLOT
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.slots import ACTIONS, NO_SLOT, SlotStore, decode

_POLL_S = 0.2


@dataclass
class _HostedGroup:
    """Where one group stands. ``slot`` is NO_SLOT while the group waits for a free one."""

    index: int
    environments: Group
    slot: int = NO_SLOT
    step: int = 0
    previous_slot: int = NO_SLOT


class RolloutWorker:
    """Steps the groups of one worker until the stop flag is set.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots.
        worker: Which rollout worker this is; its lane in every ring.
        make_group: Builds the environments of a group, given its index.
        action: The action spec, for the random actions of decorrelation.
        decorrelate_steps: Steps with random actions that the last group takes before its first slot; the first group
            takes none, those between are spread evenly.
        random: The worker's own stream.
    """

    def __init__(
        self,
        context: ChildContext,
        store: SlotStore,
        worker: int,
        make_group: Callable[[int], Group],
        *,
        action: ActionSpec,
        decorrelate_steps: int,
        random: np.random.Generator,
    ) -> None:
        """Builds the environments, until told to stop; their constructors' errors come out of here."""
        self._context = context
        self._ledger = context.ledger
        self._store = store
        self._worker = worker
        self._inbox = store.inboxes[worker]
        self._messages = np.empty(store.topology.num_groups + store.topology.num_slots, np.int64)
        arrays = store.arrays
        self._mask = arrays.get("action_mask")
        self._discrete = arrays.get("action_discrete")
        self._continuous = arrays.get("action_continuous")
        self._outcome_arrays = [arrays[name] for name in OutcomeView._fields]
        self._free = deque(store.topology.slots_owned_by(worker))
        self._parked: deque[_HostedGroup] = deque()
        self._action = action
        self._random = random
        self._groups: dict[int, _HostedGroup] = {}
        for index in store.topology.groups_of_worker(worker):
            if context.stop.is_set():
                break
            self._ledger.enter(BUILDING)  # Again for each group: a sign of life.
            self._groups[index] = _HostedGroup(index, make_group(index))
        self._decorrelate_steps = decorrelate_steps

    def run(self) -> None:
        """Samples until the stop flag is set, then closes the environments.

        After an exception they stay open: a ``close`` that blocks would keep the exception from being reported, and
        what simulators have started ends with this process anyway.
        """
        try:
            for place, group in enumerate(self._groups.values()):
                if self._context.stop.is_set():
                    break
                self._start(group, random_steps=self._decorrelate_steps * place // max(1, len(self._groups) - 1))
            while not self._context.stop.is_set():
                self._serve_inbox()
                self._report_failures()
        finally:
            self._report_failures()
        for group in self._groups.values():
            group.environments.close()
        self._report_failures()

    def _serve_inbox(self) -> None:
        """Handles what has come: every group whose actions are there is stepped, every free slot is used."""
        self._ledger.enter(
            WAITING_FOR_SLOT if self._parked and len(self._parked) == len(self._groups) else WAITING_FOR_ACTIONS
        )
        count = self._inbox.get_many(self._messages, _POLL_S)
        self._ledger.enter(BOOKKEEPING)
        for message in self._messages[:count].tolist():
            kind, index = decode(message)
            if kind == ACTIONS:
                self._step(self._groups[index])
            elif self._parked:
                self._begin_slot(self._parked.popleft(), index)
            else:
                self._free.append(index)

    def _report_failures(self) -> None:
        """Says in the log, and counts, which environments failed and were mended."""
        for group in self._groups.values():
            failures = group.environments.failures
            if failures:
                for failure in failures:
                    self._context.log.warning("%s", failure)
                self._ledger.add(1, len(failures))
                failures.clear()

    def _start(self, group: _HostedGroup, *, random_steps: int) -> None:
        """Resets a group, lets it run ahead with random actions, and submits its first observation."""
        slot = self._free.popleft()
        first, scratch = self._observation_at(slot, 0), self._outcome_at(slot, 0)
        self._ledger.enter(BUILDING)
        group.environments.reset(first)
        self._ledger.enter(SIMULATING)
        for _ in range(random_steps):
            if self._context.stop.is_set():
                break
            # Into x_0 again and again: only what the last of these steps leaves there is ever looked at.
            actions = random_actions(self._action, first.action_mask, len(first.reset), self._random)
            group.environments.step(*actions, first, scratch)
            self._ledger.enter(SIMULATING)
        self._ledger.enter(BOOKKEEPING)
        group.slot = slot
        self._submit(group)

    def _step(self, group: _HostedGroup) -> None:
        """a_t has come: completes the previous slot if its V(x_T) came with it, and steps the environments."""
        slot, step = group.slot, group.step
        if group.previous_slot != NO_SLOT:
            self._complete(group)
        actions = self._actions_at(slot, step)
        into, outcome = self._observation_at(slot, step + 1), self._outcome_at(slot, step)
        self._ledger.enter(SIMULATING)
        group.environments.step(*actions, into, outcome)
        self._ledger.enter(BOOKKEEPING)
        self._ledger.add(0, int(np.count_nonzero(outcome.valid)))
        group.step = step + 1
        if group.step < self._store.topology.rollout_length:
            self._submit(group)
        elif self._free:
            self._begin_slot(group, self._free.popleft())
        else:
            self._parked.append(group)
            self._store.park(group.index)

    def _begin_slot(self, group: _HostedGroup, slot: int) -> None:
        """Goes on in a new slot: x_T of the full one becomes x_0 of this one."""
        full, last = group.slot, self._store.topology.rollout_length
        arrays = self._store.arrays
        for array in self._store.observation.values():
            array[slot, 0] = array[full, last]
        for name in ("reset", "action_mask"):
            if name in arrays:
                arrays[name][slot, 0] = arrays[name][full, last]
        group.previous_slot, group.slot, group.step = full, slot, 0
        self._store.group_is_parked[group.index] = False
        self._submit(group)

    def _submit(self, group: _HostedGroup) -> None:
        """Asks the group's policy worker for actions; the table says where the observation stands."""
        store = self._store
        store.group_slot[group.index] = group.slot
        store.group_step[group.index] = group.step
        store.group_previous_slot[group.index] = group.previous_slot
        store.group_generation[group.index] = store.generation[group.slot]
        policy_worker = store.topology.policy_worker_of_group[group.index]
        delivered = store.requests[policy_worker].put(self._worker, group.index)
        assert delivered, "the request ring holds a place for every group"

    def _complete(self, group: _HostedGroup) -> None:
        """Hands the previous slot, now whole, to the learner, with one reference for it."""
        store = self._store
        store.retain(group.previous_slot)
        delivered = store.completed[0].put(self._worker, group.previous_slot)
        assert delivered, "the completion ring holds a place for every slot"
        group.previous_slot = NO_SLOT

    def _observation_at(self, slot: int, step: int) -> ObservationView:
        """The place of x_t, t = ``step``."""
        mask = self._mask
        return ObservationView(
            {name: array[slot, step] for name, array in self._store.observation.items()},
            None if mask is None else mask[slot, step],
            self._store.arrays["reset"][slot, step],
        )

    def _outcome_at(self, slot: int, step: int) -> OutcomeView:
        """The place of what a_t caused, t = ``step``."""
        return OutcomeView(*[array[slot, step] for array in self._outcome_arrays])

    def _actions_at(self, slot: int, step: int) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
        """The place of a_t, t = ``step``."""
        discrete, continuous = self._discrete, self._continuous
        return (
            None if discrete is None else discrete[slot, step],
            None if continuous is None else continuous[slot, step],
        )
