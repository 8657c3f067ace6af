"""The rollout worker's loop: take a group whose actions have come, step it into its slot, ask for the next actions.

V(x_T) of a full slot comes with the actions for x_0 of the next one, which is the same observation.

With two or more groups on a worker the sampling is double-buffered: while a policy worker computes one group's actions
the worker steps another one (Sample Factory, section 3.2). Work is done for a group at a time; the environments write
straight into the slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import ObservationView, OutcomeView, SavableGroup
from rollmill.roles import RolloutCounter, RolloutPhase
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.slots import ACTIONS, NO_SLOT, SlotStore, decode

_POLL_S = 0.2


@dataclass
class SlotPool:
    """Free slots, and the groups that wait for one of them."""

    free: deque[int]
    parked: deque[HostedGroup] = field(default_factory=deque)


@dataclass
class HostedGroup:
    """Where one group stands.

    Attributes:
        index: Which group.
        environments: Its environments.
        pool: Where its slots come from.
        iteration: In lockstep, which one its slot belongs to.
        slot: Where it writes.
        step: Where in the slot; T while it waits for another one.
        previous_slot: The full one whose V(x_T) has not come yet.
    """

    index: int
    environments: SavableGroup
    pool: SlotPool
    iteration: int = 0
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
        random_steps: How many steps with random actions a group takes before its first slot, given its index.
        random: The stream of a group's random actions.
    """

    def __init__(
        self,
        context: ChildContext,
        store: SlotStore,
        worker: int,
        make_group: Callable[[int], SavableGroup],
        *,
        action: ActionSpec,
        random_steps: Callable[[int], int],
        random: Callable[[HostedGroup], np.random.Generator],
    ) -> None:
        """Builds the environments, until told to stop; their constructors' errors come out of here."""
        self._context = context
        self._ledger = context.ledger
        self._store = store
        self._worker = worker
        self._rollout_length = store.topology.rollout_length
        self._inbox = store.inboxes[worker]
        self._messages = np.empty(store.topology.num_groups + store.topology.num_slots, np.int64)
        arrays = store.arrays
        self._mask = arrays.get("action_mask")
        self._discrete = arrays.get("action_discrete")
        self._continuous = arrays.get("action_continuous")
        self._action = action
        self._random_steps = random_steps
        self._random = random
        self._groups: dict[int, HostedGroup] = {}
        self._pool_of_slot: dict[int, SlotPool] = {}
        self._pools: list[SlotPool] = []
        self._build(make_group)

    def _build(self, make_group: Callable[[int], SavableGroup]) -> None:
        """Builds the groups in the order of their indices, until told to stop."""
        pool_of_group: dict[int, SlotPool] = {}
        for groups, slots in self._store.topology.pools_of_worker(self._worker):
            pool = SlotPool(deque(slots))
            self._pools.append(pool)
            self._pool_of_slot |= dict.fromkeys(slots, pool)
            pool_of_group |= dict.fromkeys(groups, pool)
        for index in self._store.topology.groups_of_worker(self._worker):
            if self._context.stop.is_set():
                break
            self._ledger.enter(RolloutPhase.BUILDING)  # Again for each group: a sign of life.
            self._groups[index] = HostedGroup(index, make_group(index), pool_of_group[index])

    def run(self) -> None:
        """Samples until the stop flag is set, then closes the environments.

        After an exception they stay open: a ``close`` that blocks would keep the exception from being reported, and
        what simulators have started ends with this process anyway.
        """
        try:
            for group in self._groups.values():
                if self._context.stop.is_set():
                    break
                self._start(group)
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
        parked = sum(len(pool.parked) for pool in self._pools)
        all_parked = parked and parked == len(self._groups)
        self._ledger.enter(RolloutPhase.WAITING_FOR_SLOT if all_parked else RolloutPhase.WAITING_FOR_ACTIONS)
        count = self._inbox.get_many(self._messages, _POLL_S)
        self._ledger.enter(RolloutPhase.BOOKKEEPING)
        for message in self._messages[:count].tolist():
            kind, index = decode(message)
            if kind == ACTIONS:
                self._go_on(self._groups[index])
            elif (pool := self._pool_of_slot[index]).parked:
                self._begin_slot(pool.parked.popleft(), index)
            else:
                pool.free.append(index)

    def _report_failures(self) -> None:
        """Says in the log, and counts, which environments failed and were mended."""
        for group in self._groups.values():
            failures = group.environments.failures
            if failures:
                for failure in failures:
                    self._context.log.warning("%s", failure)
                self._ledger.add(RolloutCounter.FAILURES_REPAIRED, len(failures))
                failures.clear()

    def _start(self, group: HostedGroup) -> None:
        """Submits a group's first observation."""
        group.slot = group.pool.free.popleft()
        self._begin_episodes(group, group.slot)
        self._submit(group)

    def _begin_episodes(self, group: HostedGroup, slot: int) -> None:
        """Resets a group, and lets it run ahead with random actions; what it shows then is x_0 of the slot."""
        first, scratch = self._observation_at(group, slot, 0), self._outcome_at(group, slot, 0)
        self._ledger.enter(RolloutPhase.BUILDING)
        group.environments.reset(first)
        self._ledger.enter(RolloutPhase.SIMULATING)
        random = self._random(group)
        for _ in range(self._random_steps(group.index)):
            if self._context.stop.is_set():
                break
            # Into x_0 again and again: only what the last of these steps leaves there is ever looked at.
            actions = random_actions(self._action, first.action_mask, len(first.reset), random)
            group.environments.step(*actions, first, scratch)
            self._ledger.enter(RolloutPhase.SIMULATING)
        self._ledger.enter(RolloutPhase.BOOKKEEPING)

    def _go_on(self, group: HostedGroup) -> None:
        """a_t has come: completes the previous slot if its V(x_T) came with it, and steps the environments."""
        if group.previous_slot != NO_SLOT:
            self._complete(group.previous_slot)
            group.previous_slot = NO_SLOT
        self._step(group)
        if group.step < self._rollout_length:
            self._submit(group)
        else:
            self._begin_or_park(group)

    def _step(self, group: HostedGroup) -> None:
        """Steps the environments by a_t."""
        slot, step = group.slot, group.step
        actions = self._actions_at(slot, step)
        into, outcome = self._observation_at(group, slot, step + 1), self._outcome_at(group, slot, step)
        self._ledger.enter(RolloutPhase.SIMULATING)
        group.environments.step(*actions, into, outcome)
        self._ledger.enter(RolloutPhase.BOOKKEEPING)
        self._ledger.add(RolloutCounter.AGENT_STEPS, int(np.count_nonzero(outcome.valid)))
        group.step = step + 1

    def _begin_or_park(self, group: HostedGroup) -> None:
        """Goes on in a free slot, or waits for one."""
        if group.pool.free:
            self._begin_slot(group, group.pool.free.popleft())
        else:
            group.pool.parked.append(group)
            self._store.park(group.index)

    def _begin_slot(self, group: HostedGroup, slot: int) -> None:
        """Goes on in a new slot, whose x_0 is the full one's x_T."""
        self._carry_over(group.slot, slot)
        group.previous_slot, group.slot, group.step = group.slot, slot, 0
        self._store.group_is_parked[group.index] = False
        self._submit(group)

    def _carry_over(self, full: int, slot: int) -> None:
        """x_T of a full slot becomes x_0 of another one, or of the same."""
        for name in self._store.carried:
            array = self._store.arrays[name]
            array[slot, 0] = array[full, self._rollout_length]

    def _submit(self, group: HostedGroup) -> None:
        """Asks the group's policy worker for actions; the table says where the observation stands."""
        self._context.inject_delay()
        store = self._store
        store.group_slot[group.index] = group.slot
        store.group_step[group.index] = group.step
        store.group_previous_slot[group.index] = group.previous_slot
        store.group_generation[group.index] = store.generation[group.slot]
        policy_worker = store.topology.policy_worker_of_group[group.index]
        delivered = store.requests[policy_worker].put(self._worker, group.index)
        assert delivered, "the request ring holds a place for every group"

    def _complete(self, slot: int) -> None:
        """Hands a slot, now whole, to the learner, with one reference for it."""
        store = self._store
        store.retain(slot)
        delivered = store.completed[0].put(self._worker, slot)
        assert delivered, "the completion ring holds a place for every slot"

    def _observation_at(self, group: HostedGroup, slot: int, step: int) -> ObservationView:
        """The place of a group's x_t, t = ``step``."""
        mask = self._mask
        return ObservationView(
            {name: array[slot, step] for name, array in self._store.observation.items()},
            None if mask is None else mask[slot, step],
            self._store.arrays["reset"][slot, step],
        )

    def _outcome_at(self, group: HostedGroup, slot: int, step: int) -> OutcomeView:
        """The place of what a_t caused, t = ``step``."""
        arrays = self._store.arrays
        return OutcomeView(*[arrays[name][slot, step] for name in OutcomeView._fields])

    def _actions_at(self, slot: int, step: int) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
        """The place of a_t, t = ``step``."""
        discrete, continuous = self._discrete, self._continuous
        return (
            None if discrete is None else discrete[slot, step],
            None if continuous is None else continuous[slot, step],
        )
