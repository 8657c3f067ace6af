"""The rollout worker's loop: take a group whose actions are ready, step it into its slot, request the next actions.

With two or more groups on a worker the sampling is double-buffered: while a policy worker computes one group's actions
the worker steps another one (Sample Factory, section 3.2). Work is done for a group at a time; the environments write
straight into the slot.

The regimes differ in the slot policy (:mod:`rollmill.rollout.slot_policies`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from rollmill.envs.info_metrics import EnvMetrics
from rollmill.roles import RolloutCounter, RolloutPhase
from rollmill.rollout.agent_returns import AgentReturns
from rollmill.rollout.group_builder import GroupBuilder
from rollmill.rollout.matchmaker import Matchmaker
from rollmill.rollout.slot_policies import SlotPolicy
from rollmill.rollout.slot_views import HostedGroup
from rollmill.runtime.child import ChildContext
from rollmill.storage.slots import ACTIONS, SlotStore, decode

_POLL_S = 0.2
# A learner wakes the groups that the rate limiter parks; a missed wake-up would cost this long. Episodes that a full
# ring has kept back are sent again after it.
_SHORT_POLL_S = 0.05
_METRICS_EVERY_S = 1.0


class RolloutWorker:
    """Steps the groups of one worker until the stop flag is set.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots.
        worker: Which rollout worker this is; its lane in every ring.
        builder: Builds and resets the environments.
        slots: Where groups write, what happens to a full slot, and which groups wait.
        matchmaker: Says who plays each row; None where the policy that learns plays all.
        first_iteration: The iteration that the groups begin or resume with; 0 outside lockstep.
        agents: Names of an environment's agents, whose returns are told; empty for ordinary environments.
    """

    def __init__(
        self,
        *,
        context: ChildContext,
        store: SlotStore,
        worker: int,
        builder: GroupBuilder,
        slots: SlotPolicy,
        matchmaker: Matchmaker | None = None,
        first_iteration: int = 0,
        agents: Sequence[str] = (),
    ) -> None:
        self._context = context
        self._ledger = context.ledger
        self._store = store
        self._worker = worker
        self._builder = builder
        self._slots = slots
        self._matchmaker = matchmaker
        self._views = slots.views
        self._first_iteration = first_iteration
        self._agent_returns = AgentReturns(agents)
        self._inbox = store.inboxes[worker]
        self._messages = np.empty(store.topology.num_groups + store.topology.num_slots, np.int64)
        self._groups: dict[int, HostedGroup] = {}
        self._metrics_sent_at = -math.inf

    def run(self) -> None:
        """Build the environments, sample until the stop flag is set, and close the environments.

        After an exception they stay open: a ``close`` that blocks would keep the exception from being reported, and
        what simulators have started ends with this process anyway.
        """
        stop, groups = self._context.stop, self._groups
        for index in self._store.topology.groups_of_worker(self._worker):
            if stop.is_set():
                break
            environments = self._builder.build(index, self._first_iteration)
            groups[index] = HostedGroup(index=index, environments=environments, iteration=self._first_iteration)
        while self._matchmaker is not None and not stop.is_set() and not self._matchmaker.is_ready(_POLL_S):
            self._ledger.enter(RolloutPhase.WAITING_FOR_ACTIONS)  # a sign of life
        try:
            for group in groups.values():
                if stop.is_set():
                    break
                self._start(group)
            while not stop.is_set():
                self._serve_inbox()
                self._builder.report_failures(groups.values())
                if time.monotonic() - self._metrics_sent_at >= _METRICS_EVERY_S:
                    self._send_metrics()
        finally:
            self._builder.report_failures(groups.values())
        self._send_metrics()
        for group in groups.values():
            group.environments.close()
        self._builder.report_failures(groups.values())

    def _send_metrics(self) -> None:
        """Send the main process what environments have given in ``info["metrics"]``, and returns of agents, if any."""
        self._metrics_sent_at = time.monotonic()
        given = [group.environments.metrics.take() for group in self._groups.values()]
        metrics = EnvMetrics.merged([*given, self._agent_returns.take()])
        if metrics.sums or metrics.refused or metrics.returns:
            self._context.send(metrics)

    def _start(self, group: HostedGroup) -> None:
        """Write x_0 of a group's first slot, and request its action."""
        if not self._slots.begin(group):
            self._builder.reset(group, self._views.observation(group, 0), self._views.outcome(group, 0))
            if self._matchmaker is not None:
                self._matchmaker.write(group, 0)
        self._go_on(group)

    def _serve_inbox(self) -> None:
        """Handle all messages: step every group whose actions are ready, and reuse every released slot."""
        for group in self._slots.resume():
            self._request(group)
        polls_soon = self._slots.must_poll()
        all_parked = self._slots.num_parked == len(self._groups)
        self._ledger.enter(self._slots.parked_phase if all_parked else RolloutPhase.WAITING_FOR_ACTIONS)
        count = self._inbox.get_many(self._messages, _SHORT_POLL_S if polls_soon else _POLL_S)
        self._ledger.enter(RolloutPhase.BOOKKEEPING)
        for message in self._messages[:count].tolist():
            kind, index = decode(message)
            if kind == ACTIONS:
                group = self._groups[index]
                if self._slots.accept(group):
                    self._step(group)
                self._go_on(group)
            elif (parked := self._slots.reclaim(index)) is not None:
                self._request(parked)

    def _step(self, group: HostedGroup) -> None:
        """Step the environments by a_t."""
        views, step = self._views, group.step
        actions = views.actions(group, step)
        into, outcome = views.observation(group, step + 1), views.outcome(group, step)
        self._ledger.enter(RolloutPhase.SIMULATING)
        group.environments.step(*actions, into, outcome)
        self._ledger.enter(RolloutPhase.BOOKKEEPING)
        self._ledger.add(RolloutCounter.AGENT_STEPS, int(np.count_nonzero(outcome.valid)))
        self._agent_returns.add(outcome.episode_return)
        group.step = step + 1
        if self._matchmaker is not None:
            self._matchmaker.write(group, group.step, outcome.episode_return)

    def _go_on(self, group: HostedGroup) -> None:
        """Request the answer to a newly written observation, unless the group is parked first."""
        if self._slots.advance(group):
            self._request(group)

    def _request(self, group: HostedGroup) -> None:
        """Ask the group's policy worker for actions; the table says where the observation stands."""
        self._context.inject_delay()
        store, index = self._store, group.index
        store.group_slot[index] = group.slot
        store.group_step[index] = group.step
        store.group_previous_slot[index] = group.previous_slot
        store.group_iteration[index] = group.iteration
        policy_worker = store.topology.policy_worker_of_group[index]
        delivered = store.requests[policy_worker].put(self._worker, index)
        assert delivered, "the request ring holds a place for every group"
