"""Which slot a group writes into next, what happens to a full one, and which groups wait: one class for each rule.

The worker calls a slot policy at these points of a group's life::

    begin --> x_0 --> advance --> request ... answer --> accept --> step, x_{t+1} --> advance --> request ...
                         |                                              |
                         +--> parked ... reclaim or                     +--> (no step where V(x_T) came alone)
                                         resume --> request
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable

import numpy as np

from rollmill.roles import RolloutPhase
from rollmill.rollout.group_checkpoints import GroupCheckpoints
from rollmill.rollout.slot_views import HostedGroup, ReplayViews, SlotViews
from rollmill.storage.episodes import pack_episode, pack_match
from rollmill.storage.matches import matches_of
from rollmill.storage.removers import Remover, pop_evicted
from rollmill.storage.replay import ReplayStore
from rollmill.storage.slots import MATCH_RETURN, NO_SLOT, POLICY_ID, SlotStore


class SlotPolicy(ABC):
    """Gives the groups of one rollout worker their slots, and parks groups that must wait.

    Args:
        store: The slots.

    Attributes:
        views: Where the groups read and write.
        parked_phase: What parked groups wait for.
    """

    parked_phase = RolloutPhase.WAITING_FOR_SLOT

    def __init__(self, store: SlotStore) -> None:
        self.views = SlotViews(store)
        self._store = store
        self._rollout_length = store.topology.rollout_length
        self._parked: dict[int, HostedGroup] = {}

    @property
    def num_parked(self) -> int:
        """How many groups are parked."""
        return len(self._parked)

    @abstractmethod
    def begin(self, group: HostedGroup) -> bool:
        """Give a group its first slot; returns whether x_0 stands in it already (restored)."""

    def accept(self, group: HostedGroup) -> bool:
        """Handle the answer to a group's request; returns whether it holds a_t, or V(x_T) alone."""
        return True

    @abstractmethod
    def advance(self, group: HostedGroup) -> bool:
        """Handle a newly written observation; returns whether to request its answer, or the group is parked."""

    @abstractmethod
    def reclaim(self, slot: int) -> HostedGroup | None:
        """Take back a slot that the learner has released; returns the parked group that resumes in it."""

    def resume(self) -> Iterable[HostedGroup]:
        """Take out the parked groups that may go on without a message."""
        return ()

    def must_poll(self) -> bool:
        """Send what a full ring has kept back; returns whether to call this and :meth:`resume` again soon."""
        return False

    def _park(self, group: HostedGroup) -> None:
        self._parked[group.index] = group
        self._store.park(group.index)


class PooledSlots(SlotPolicy):
    """All groups of a worker share its slots (the async regime); with several tasks, those of one pool.

    V(x_T) of a full slot comes with the actions for x_0 of the next one, which is the same observation. Until then the
    full slot stays the group's ``previous_slot``; the answer completes it.

    The slot that was released last is the first to be used again: its memory may still be in a cache, and slots that
    are needed only when a learner is late stay untouched.

    Args:
        store: The slots.
        worker: Which rollout worker this is.
    """

    def __init__(self, store: SlotStore, worker: int) -> None:
        super().__init__(store)
        self._pool_of_slot = store.topology.pool_of_slot()
        self._pool_of_group = store.topology.pool_of_group
        # Pool -> its free slots.
        self._free: dict[int, list[int]] = {}
        for slot in reversed(store.topology.free_slots_of(worker)):
            self._free.setdefault(self._pool_of_slot[slot], []).append(slot)

    def begin(self, group: HostedGroup) -> bool:
        """Give a group its first slot."""
        group.slot = self._free_of(group).pop()
        self._store.number(group.slot)
        return False

    def accept(self, group: HostedGroup) -> bool:
        """Complete the previous slot if its V(x_T) came with this answer."""
        if group.previous_slot != NO_SLOT:
            self._store.complete(group.previous_slot)
            group.previous_slot = NO_SLOT
        return True

    def advance(self, group: HostedGroup) -> bool:
        """Move a group whose slot is full to a free slot, or park it until there is one."""
        if group.step < self._rollout_length:
            return True
        if free := self._free_of(group):
            self._begin_slot(group, free.pop())
            return True
        self._park(group)
        return False

    def reclaim(self, slot: int) -> HostedGroup | None:
        """Give a released slot to the group that has been parked longest, of those that may use it."""
        pool = self._pool_of_slot[slot]
        waiting = next((index for index in self._parked if self._pool_of_group(index) == pool), None)
        if waiting is None:
            self._free[pool].append(slot)
            return None
        group = self._parked.pop(waiting)
        self._begin_slot(group, slot)
        return group

    def _free_of(self, group: HostedGroup) -> list[int]:
        return self._free[self._pool_of_group(group.index)]

    def _begin_slot(self, group: HostedGroup, slot: int) -> None:
        self._store.number(slot)
        self._store.carry_over(group.slot, slot)
        group.previous_slot, group.slot, group.step = group.slot, slot, 0
        group.iteration += 1
        self._store.group_is_parked[group.index] = False


class GroupSlots(SlotPolicy):
    """Each group has slots of its own, one for each iteration that may be under way (the lockstep regime).

    V(x_T) and the action at x_0 of the next slot, which is the same observation, are computed with two versions of the
    policy. So V(x_T) has a request of its own, and a slot is completed before the next one begins::

        x_0 .. x_{T-1}: actions         x_T: value, by the same version         completed --> x_0 of the next iteration

    Args:
        store: The slots.
        worker: Which rollout worker this is.
        checkpoints: Saves, restores and rebuilds groups between iterations; None: no group is.
    """

    def __init__(self, store: SlotStore, worker: int, checkpoints: GroupCheckpoints | None = None) -> None:
        super().__init__(store)
        self._checkpoints = checkpoints
        topology = store.topology
        self._free = {group: deque(topology.slots_of_group(group)) for group in topology.groups_of_worker(worker)}
        self._group_of_slot = {slot: group for group, slots in self._free.items() for slot in slots}

    def begin(self, group: HostedGroup) -> bool:
        """Give a group its first slot; in a resumed run, with the observation that it was interrupted at."""
        group.slot = self._free[group.index].popleft()
        return self._checkpoints is not None and self._checkpoints.restore(group)

    def accept(self, group: HostedGroup) -> bool:
        """Complete a full slot, whose V(x_T) is the whole answer."""
        if group.step < self._rollout_length:
            return True
        if self._checkpoints is not None:
            self._checkpoints.save_if_due(group)
        self._store.complete(group.slot)
        group.previous_slot, group.slot = group.slot, NO_SLOT
        return False

    def advance(self, group: HostedGroup) -> bool:
        """Move a group whose slot is completed to its next slot, or park it until there is one."""
        if group.slot != NO_SLOT:
            return True
        free = self._free[group.index]
        if free:
            self._begin_slot(group, free.popleft())
            return True
        self._park(group)
        return False

    def reclaim(self, slot: int) -> HostedGroup | None:
        """Give a released slot to its group."""
        index = self._group_of_slot[slot]
        group = self._parked.pop(index, None)
        if group is None:
            self._free[index].append(slot)
        else:
            self._begin_slot(group, slot)
        return group

    def _begin_slot(self, group: HostedGroup, slot: int) -> None:
        full, group.previous_slot = group.previous_slot, NO_SLOT
        group.slot, group.step = slot, 0
        group.iteration += 1
        if self._checkpoints is None or not self._checkpoints.rebuild_if_due(group, self.views):
            self._store.carry_over(full, slot)
        self._store.group_is_parked[group.index] = False


class EvictingSlots(SlotPolicy):
    """Steps are committed to the replay as they are made, and slots are never released (the replay regime).

    A step is committed when it and x_{t+1} stand in the slot: from then on it can be drawn. A full slot is followed by
    a free one or, when none is free, by a completed one, which is evicted from the replay first. Groups are parked
    while the replay's rate limiter allows no steps, until a learner has drawn.

    Args:
        store: The replay; what an earlier run left in it stays until it is evicted.
        worker: Which rollout worker this is.
        remover: Chooses which completed slot is evicted.
    """

    views: ReplayViews
    parked_phase = RolloutPhase.WAITING_FOR_LEARNER
    _store: ReplayStore

    def __init__(self, store: ReplayStore, worker: int, remover: Remover) -> None:
        groups, slots = store.topology.groups_of_worker(worker), store.topology.slots_owned_by(worker)
        super().__init__(store)
        self.views = ReplayViews(store, groups)
        self._worker = worker
        self._remover = remover
        self._rows = store.topology.group_rows
        completed = store.take_over(slots)
        self._completed = deque(completed)
        self._free = deque(sorted(set(slots).difference(completed)))
        # Group -> [B]: steps of each row that wait for later ones; see ``ReplayStore.commit``.
        self._pending = {group: np.zeros(self._rows, np.int64) for group in groups}
        policies = store.topology.players.policies
        # Group -> rows of each policy whose steps are under way.
        self._reserved: dict[int, list[int]] = {}
        self._counts = np.zeros(policies, np.int64)
        self._unsent: list[deque[int]] = [deque() for _ in range(policies)]
        self._players = store.arrays.get(POLICY_ID)
        self._match_returns = store.arrays.get(MATCH_RETURN)

    def begin(self, group: HostedGroup) -> bool:
        """Give a group its first slot."""
        group.slot = self._take_slot()
        self._store.begin(group.slot, NO_SLOT)
        return False

    def advance(self, group: HostedGroup) -> bool:
        """Commit the step that led to this observation, and move a group whose slot is full to another one.

        Counts the group's next steps as under way, or parks it.
        """
        self._store.keep_newest_frames(group.index, group.slot, group.step)
        if group.step:
            self._commit(group, group.step - 1)
        if group.step == self._rollout_length:
            self._begin_slot(group)
        if not self._parked and self._try_reserve(group):
            return True
        self._park(group)
        return False

    def reclaim(self, slot: int) -> HostedGroup | None:
        """Use this slot before one is evicted."""
        self._free.append(slot)
        return None

    def resume(self) -> Iterable[HostedGroup]:
        """Take out the parked groups that may step now, first in, first out.

        The wish to be woken is published before the limiter is looked at, so that no wake-up is missed.
        """
        if not self._parked:
            return ()
        resumed = []
        self._store.set_parked(self._worker, True)
        for group in list(self._parked.values()):
            if not self._try_reserve(group):
                if self._players is None:
                    break
                continue  # Other policies may play in the groups behind it.
            del self._parked[group.index]
            self._store.group_is_parked[group.index] = False
            resumed.append(group)
        if not self._parked:
            self._store.set_parked(self._worker, False)
        return resumed

    def must_poll(self) -> bool:
        """Send finished episodes to the learner that keeps the run's counts; whether some, or groups, are left."""
        self._send_episodes()
        return bool(any(self._unsent) or self._parked)

    def _send_episodes(self) -> None:
        for unsent, ring in zip(self._unsent, self._store.completed, strict=False):
            while unsent and ring.put(self._worker, unsent[0]):
                unsent.popleft()

    def _try_reserve(self, group: HostedGroup) -> bool:
        """Count the group's next steps as under way, if all policies that play in it may make them."""
        if self._players is None:
            return self._store.limiter.try_reserve(self._rows)
        rows = self._store.rows_of_policies(group.slot, group.step)
        if not self._store.try_reserve(rows):
            return False
        self._reserved[group.index] = rows
        return True

    def _commit(self, group: HostedGroup, step: int) -> None:
        store, pending = self._store, self._pending[group.index]
        if self._players is None:
            store.limiter.insert(store.commit(group.slot, step, pending), reserved=self._rows)
        else:
            store.commit(group.slot, step, pending, self._counts)
            under_way = self._reserved[group.index]
            for limiter, valid, reserved in zip(store.limiters, self._counts.tolist(), under_way, strict=True):
                if reserved:
                    limiter.insert(valid, reserved=reserved)
        self._take_episodes(group, step)
        self._send_episodes()
        store.wake_learners()

    def _take_episodes(self, group: HostedGroup, step: int) -> None:
        """Tell the learners of the policies that played which episodes, and which of their matches, have ended."""
        returns, lengths = self.views.episodes[group.index]
        ended = np.flatnonzero(lengths).tolist()
        if not ended:
            return
        players = None if self._players is None else self._players[group.slot, step]
        tasks = self._store.topology.tasks
        task = group.index % tasks if tasks else None
        for row in ended:
            policy = 0 if players is None else int(players[row])
            if policy < len(self._unsent):
                self._unsent[policy].append(pack_episode(float(returns[row]), int(lengths[row]), task))
        if players is None or self._match_returns is None:
            return
        of_matches = self._match_returns[group.slot, step + 1]
        for policy, unsent in enumerate(self._unsent):
            matches = matches_of(players[None], of_matches[None], self._store.topology.agents_per_env, policy=policy)
            unsent.extend(map(pack_match, matches))

    def _begin_slot(self, group: HostedGroup) -> None:
        full, slot = group.slot, self._take_slot()
        self._completed.append(full)  # not before, or it might be evicted to succeed itself
        self._store.begin(slot, full)
        self._store.carry_over(full, slot)
        group.slot, group.step = slot, 0
        group.iteration += 1

    def _take_slot(self) -> int:
        """A free slot, or a completed one that has just left the replay."""
        if self._free:
            return self._free.popleft()
        slot = pop_evicted(self._remover, self._completed)
        self._store.evict(slot)
        return slot
