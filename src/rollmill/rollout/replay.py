"""The rollout worker in the replay regime: steps go into the replay as they are made, and slots are never given back.

A step of a group is *committed* when it and x_{t+1} stand in the slot: from then on it can be drawn, without waiting
for the slot's end. When a slot is full the group goes on in a free one, or writes over a completed one, which leaves
the replay first. Before each step the rate limiter is asked; where it says no, the group is held until a learner has
drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.views import ObservationView, OutcomeView, SavableGroup
from rollmill.roles import RolloutPhase
from rollmill.rollout.worker import HostedGroup, RolloutWorker
from rollmill.runtime.child import ChildContext
from rollmill.specs import ActionSpec
from rollmill.storage.episodes import pack_episode
from rollmill.storage.removers import Remover, take_out
from rollmill.storage.replay import ReplayStore
from rollmill.storage.slots import NO_SLOT, decode

_POLL_S = 0.2
# A learner wakes who is held; should that go wrong, this is how long it costs.
_HELD_POLL_S = 0.05


@dataclass
class _Aside:
    """What a group has beside its slots.

    Attributes:
        pending: int64 ``[B]``: steps of each row that wait for later ones; see ``ReplayStore.commit``.
        episode_return: float32 ``[B]``.
        episode_length: int32 ``[B]``.
    """

    pending: NDArray[np.int64]
    episode_return: NDArray[np.float32]
    episode_length: NDArray[np.int32]


class ReplayRolloutWorker(RolloutWorker):
    """Steps its groups into the replay.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots, as a replay.
        worker: Which rollout worker this is.
        make_group: Builds the environments of a group, given its index.
        action: The action spec.
        random_steps: How many steps with random actions a group takes before its first slot, given its index.
        random: The stream of a group's random actions.
        remover: Chooses which completed slot is written over.
    """

    _store: ReplayStore

    def __init__(
        self,
        context: ChildContext,
        store: ReplayStore,
        worker: int,
        make_group: Callable[[int], SavableGroup],
        *,
        action: ActionSpec,
        random_steps: Callable[[int], int],
        random: Callable[[HostedGroup], np.random.Generator],
        remover: Remover,
    ) -> None:
        """Builds the environments; leaves alone what a replay that goes on holds in the worker's slots."""
        self._limiter = store.limiter
        self._remover = remover
        self._held: deque[HostedGroup] = deque()
        self._unsent: deque[int] = deque()
        rows = store.topology.group_rows
        self._aside = {
            group: _Aside(np.zeros(rows, np.int64), np.zeros(rows, np.float32), np.zeros(rows, np.int32))
            for group in store.topology.groups_of_worker(worker)
        }
        super().__init__(context, store, worker, make_group, action=action, random_steps=random_steps, random=random)
        # A worker's groups share its slots.
        (self._pool,) = self._pools
        self._completed = deque(store.take_over(self._pool.free))
        kept = set(self._completed)
        self._pool.free = deque(slot for slot in self._pool.free if slot not in kept)

    def _start(self, group: HostedGroup) -> None:
        group.slot = self._take_slot()
        self._store.begin(group.slot, NO_SLOT)
        self._begin_episodes(group, group.slot)
        self._store.keep_newest_frames(group.index, group.slot, 0)
        self._ask(group)

    def _serve_inbox(self) -> None:
        self._resume_held()
        all_held = len(self._held) == len(self._groups)
        self._ledger.enter(RolloutPhase.WAITING_FOR_LEARNER if all_held else RolloutPhase.WAITING_FOR_ACTIONS)
        count = self._inbox.get_many(self._messages, _HELD_POLL_S if self._held or self._unsent else _POLL_S)
        self._ledger.enter(RolloutPhase.BOOKKEEPING)
        for message in self._messages[:count].tolist():
            _, index = decode(message)
            self._go_on(self._groups[index])
        self._send_episodes()

    def _go_on(self, group: HostedGroup) -> None:
        """a_t has come: steps the environments, commits the step, and asks for the next one."""
        self._step(group)
        self._commit(group)
        if group.step == self._rollout_length:
            self._turn_page(group)
        self._ask(group)

    def _commit(self, group: HostedGroup) -> None:
        """Makes the step part of the replay, and tells the learner of episodes that ended."""
        store, slot, step = self._store, group.slot, group.step - 1
        aside = self._aside[group.index]
        store.keep_newest_frames(group.index, slot, step + 1)
        valid = store.commit(slot, step, aside.pending)
        self._limiter.insert(valid, reserved=len(aside.pending))
        for row in np.flatnonzero(aside.episode_length).tolist():
            self._unsent.append(pack_episode(float(aside.episode_return[row]), int(aside.episode_length[row])))
        self._send_episodes()
        if self._limiter.learners_waiting and self._limiter.may_draw:
            store.wake_learners()

    def _send_episodes(self) -> None:
        """To the learner that keeps the run's counts; what its ring has no room for is sent later."""
        while self._unsent and self._store.completed[0].put(self._worker, self._unsent[0]):
            self._unsent.popleft()

    def _turn_page(self, group: HostedGroup) -> None:
        """Goes on in another slot, whose x_0 is the full one's x_T."""
        full = group.slot
        slot = self._take_slot()
        self._completed.append(full)
        self._store.begin(slot, full)
        self._carry_over(full, slot)
        group.slot, group.step = slot, 0

    def _take_slot(self) -> int:
        """A free slot, or a completed one that has just left the replay."""
        if self._pool.free:
            return self._pool.free.popleft()
        slot = take_out(self._remover, self._completed)
        self._store.evict(slot)
        return slot

    def _ask(self, group: HostedGroup) -> None:
        """Asks for actions if the group may make a step; else holds it."""
        rows = self._store.topology.group_rows
        if not self._held and self._limiter.try_reserve(rows):
            self._submit(group)
            return
        self._held.append(group)
        self._store.park(group.index)

    def _resume_held(self) -> None:
        """Lets the groups go on that may; says before the last look that somebody waits, so that no wake is missed."""
        if not self._held:
            return
        self._store.set_held(self._worker, True)
        rows = self._store.topology.group_rows
        while self._held and self._limiter.try_reserve(rows):
            group = self._held.popleft()
            self._store.group_is_parked[group.index] = False
            self._submit(group)
        if not self._held:
            self._store.set_held(self._worker, False)

    def _observation_at(self, group: HostedGroup, slot: int, step: int) -> ObservationView:
        return (
            super()._observation_at(group, slot, step)._replace(observation=self._store.shown(group.index, slot, step))
        )

    def _outcome_at(self, group: HostedGroup, slot: int, step: int) -> OutcomeView:
        arrays, aside = self._store.arrays, self._aside[group.index]
        return OutcomeView(
            arrays["reward"][slot, step],
            arrays["terminated"][slot, step],
            arrays["truncated"][slot, step],
            arrays["valid"][slot, step],
            aside.episode_return,
            aside.episode_length,
        )
