"""The slots as a replay: a ring of slots, a sum tree over their steps, and a rate limiter.

Steps are not copied into the replay: the slots that the environments write into are the replay. A step's leaf in the
tree is 0 while it is written, gets the largest priority when the last step that it needs is committed, and is 0 again
before any part of it is overwritten; the generation of a slot shows whether a reference to it is outdated.
``cpp/core/replay_slots.h`` describes the life of a leaf, and docs/replay.md why learners never use torn or dead steps.

Each of several policies has a tree and a rate limiter of its own, over the same slots: a step is live in the tree of
the policy that acted at it. Steps of guests and of past selves are in none.

Slots keep only the newest frame of each stack of frames (:class:`rollmill.specs.FrameStack`). Policy workers read whole
stacks from an array outside the slots that holds the latest observation of each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.native import ReplaySlots, SumTree, atomic_load, atomic_store
from rollmill.runtime.arena import ArenaLayout
from rollmill.specs import ArraySpec, EnvSpec, FrameStack
from rollmill.storage import rate_limiter
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.rate_limiter import RateLimiter, RateLimits
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.slots import (
    ACTS,
    POLICY_ID,
    RNN_STATE,
    SlotField,
    SlotStore,
    Topology,
    add_slots_to_layout,
    add_tables_to_layout,
    slot_fields,
)

# As cpp/core/replay_slots.cpp packs them.
_NO_LINK = -1
_SLOT_OF_LINK = (1 << 32) - 1

# Fields that only on-policy learners use.
_NOT_KEPT = ("value", "log_prob", "episode_return", "episode_length")


def replay_fields(
    spec: EnvSpec, *, rollout_length: int, state_size: int = 0, stride: int = 1, has_players: bool = False
) -> list[SlotField]:
    """The arrays of a slot of the replay, with one frame of each stack and without what only on-policy learners need.

    Args:
        spec: The environment.
        rollout_length: T.
        state_size: S of the recurrent state, which a slot keeps from before every ``stride``-th step.
        stride: Steps from the start of one sequence to the next.
        has_players: Whether there are several players, so that a slot says who plays each row.
    """
    fields = [
        field._replace(item=_kept(field.item, rollout_length))
        for field in slot_fields(spec, rollout_length=rollout_length, state_size=state_size, has_players=has_players)
        if field.name not in _NOT_KEPT
    ]
    return [field._replace(time=rollout_length // stride) if field.name == RNN_STATE else field for field in fields]


def stacked_entries(spec: EnvSpec, rollout_length: int) -> dict[str, FrameStack]:
    """Name -> stacking, for those entries of the observation of which slots keep one frame.

    A stack that spans more than two slots is kept whole.
    """
    return {
        name: item.stack
        for name, item in spec.observation.items()
        if item.stack is not None and item.stack.depth - 1 <= rollout_length
    }


def _kept(item: ArraySpec, rollout_length: int) -> ArraySpec:
    if item.stack is None or item.stack.depth - 1 > rollout_length:
        return item
    return replace(item, shape=item.shape[1:], stack=None)


def add_to_layout(layout: ArenaLayout, fields: list[SlotField], topology: Topology, config: ReplayConfig) -> None:
    """Reserves the replay: its slots, their links and generations, the trees, and the counters."""
    add_slots_to_layout(layout, fields, topology)
    for name in ("replay/next", "replay/previous", "replay/begun"):
        layout.add(name, (topology.num_slots,), "int64")
    for policy in range(topology.players.policies):
        layout.add(_tree_of(policy), (_tree_nbytes(topology, config),), "uint8", page_aligned=True, poisoned=False)
    rate_limiter.add_to_layout(layout, topology.players.policies)


def add_beside_to_layout(layout: ArenaLayout, spec: EnvSpec, fields: list[SlotField], topology: Topology) -> None:
    """Reserves the shared arrays that do not outlive the processes."""
    add_tables_to_layout(layout, fields, topology)
    for name in stacked_entries(spec, topology.rollout_length):
        item = spec.observation[name]
        layout.add(f"shown/{name}", (topology.num_groups, topology.group_rows, *item.shape), item.dtype)
    layout.add("replay/worker_is_parked", (topology.num_workers,), "int64", poisoned=False)


def _leaves(topology: Topology) -> int:
    return topology.num_slots * topology.rollout_length * topology.group_rows


def _tree_nbytes(topology: Topology, config: ReplayConfig) -> int:
    return SumTree.nbytes(_leaves(topology), config.fanout, minimum=_keeps_minimum(config))


def _tree_of(policy: int) -> str:
    return f"replay/tree/{policy}" if policy else "replay/tree"


def _attach_tree(
    arrays: Mapping[str, NDArray[Any]], topology: Topology, config: ReplayConfig, policy: int, *, create: bool = False
) -> SumTree:
    return SumTree(
        arrays[_tree_of(policy)],
        _leaves(topology),
        fanout=config.fanout,
        minimum=_keeps_minimum(config),
        create=create,
    )


def _keeps_minimum(config: ReplayConfig) -> bool:
    return config.is_prioritised and config.weights == "global"


def damage_of(arrays: Mapping[str, NDArray[Any]], topology: Topology, config: ReplayConfig) -> str:
    """Describes damage to a replay that an earlier session left; empty if there is none.

    It finds everything that would crash, hang or stop the processes of this run. Observations are not checked.

    Args:
        arrays: The arrays that :func:`add_to_layout` has reserved, not used by other processes.
        topology: Of the replay.
        config: Of the replay.
    """
    if damage := rate_limiter.damage_of(arrays, topology.players.policies):
        return damage
    for name in ("replay/next", "replay/previous"):
        links = arrays[name]
        if ((links != _NO_LINK) & ((links < 0) | ((links & _SLOT_OF_LINK) >= topology.num_slots))).any():
            return f"{name} names nonexistent slots"
    of_trees = (_damage_of_tree(arrays, topology, config, policy) for policy in range(topology.players.policies))
    return next(filter(None, of_trees), "")


def _damage_of_tree(arrays: Mapping[str, NDArray[Any]], topology: Topology, config: ReplayConfig, policy: int) -> str:
    leaves = np.empty(_leaves(topology), np.float32)
    try:
        tree = _attach_tree(arrays, topology, config, policy)
        tree.rebuild()
        tree.priorities(leaves)
        greatest = tree.max_priority
    except (ValueError, RuntimeError) as error:
        return f"its tree cannot be used ({error})"
    if not (np.isfinite(leaves).all() and (leaves >= 0.0).all() and np.isfinite(greatest) and greatest > 0.0):
        return "it contains invalid priorities"
    return ""


class ReplayStore(SlotStore):
    """A process's view of the replay. Build one in each process from the same arrays, specs and numbers.

    Args:
        arrays: The shared memory, by name.
        spec: The environment.
        topology: The same in every process.
        config: The same in every process.
        limits: Of the rate limiters, for each policy, or for all alike.
        state_size: Width of the recurrent state; 0 without one.
        policy: In a learner, the policy that it learns.
        own_state_size: In a learner, S of this policy's recurrent state; None is that of the slots.
        create: True in exactly one process, before the others start.
        is_kept: With ``create``: the slots hold what an earlier session left, and keep it.

    Attributes:
        limiters: For each policy, keeps the ratio of its agent steps to its SGD steps.
        trees: For each policy, the sum tree over all steps of all slots: leaf = (slot * T + t) * B + row.
        limiter: That of the learner's policy.
        tree: Likewise.
        stacks: Name -> stacking, for the entries of which slots keep one frame.
        stride: Steps of a slot from one that has a leaf and a recurrent state to the next.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        spec: EnvSpec,
        topology: Topology,
        config: ReplayConfig,
        limits: RateLimits | Sequence[RateLimits],
        *,
        state_size: int = 0,
        policy: int = 0,
        own_state_size: int | None = None,
        create: bool = False,
        is_kept: bool = False,
    ) -> None:
        """Builds the views, and in the creating process the contents that others rely on."""
        fields = replay_fields(
            spec,
            rollout_length=topology.rollout_length,
            state_size=state_size,
            stride=config.stride,
            has_players=topology.players != PlayerIds(),
        )
        super().__init__(
            arrays, fields, topology, policy=policy, state_size=own_state_size, create=create, is_kept=is_kept
        )
        policies = topology.players.policies
        self._next, self._previous = arrays["replay/next"], arrays["replay/previous"]
        self._begun = arrays["replay/begun"]
        self._worker_is_parked = arrays["replay/worker_is_parked"]
        self.stride = config.stride
        self.stacks = stacked_entries(spec, topology.rollout_length)
        self._shown = {name: arrays[f"shown/{name}"] for name in self.stacks}
        of_each = [limits] * policies if isinstance(limits, RateLimits) else limits
        self.limiters = [
            RateLimiter(arrays, of_policy, policy=index, policies=policies) for index, of_policy in enumerate(of_each)
        ]
        self.limiter = self.limiters[policy]
        self.trees = [
            _attach_tree(arrays, topology, config, index, create=create and not is_kept) for index in range(policies)
        ]
        self.tree = self.trees[policy]
        self._policy_id = self.arrays.get(POLICY_ID)
        # How many steps of a slot count, only the slot tells.
        self._counts_evicted = ACTS in self.arrays or self._policy_id is not None
        if create:
            self._worker_is_parked[:] = 0
        if create and not is_kept:
            self._next[:] = self._previous[:] = -1
            self._begun[:] = 0
            for limiter in self.limiters:
                limiter.begin()
            if self._counts_evicted:
                self.arrays["valid"][:] = False  # counted when a slot is evicted, whether or not it was written
        if create and is_kept:
            # A process that held a tree's lock may have died.
            for tree in self.trees:
                tree.rebuild()
            if self._counts_evicted:
                # It may have died between a step's flags and its count.
                held = np.sum([self._steps_of(slot) for slot in range(topology.num_slots)], axis=0)
                for limiter, steps in zip(self.limiters, held.tolist(), strict=True):
                    limiter.hold(steps)
        self.slots = ReplaySlots(
            [arrays[_tree_of(index)] for index in range(policies)],
            rollout_length=topology.rollout_length,
            rows=topology.group_rows,
            n_step=config.n_step,
            history=max((stack.depth for stack in self.stacks.values()), default=1) - 1,
            reward=self.arrays["reward"],
            terminated=self.arrays["terminated"],
            truncated=self.arrays["truncated"],
            valid=self.arrays["valid"],
            reset=self.arrays["reset"],
            generation=self.generation,
            next=self._next,
            previous=self._previous,
            window=config.window,
            stride=config.stride,
            acts=self.arrays.get(ACTS),
            policy=self._policy_id,
        )

    @property
    def size(self) -> int:
        """Agent steps of the policy that the replay holds, with the last ones of episodes, which cannot be drawn."""
        return min(max(0, self.limiter.held), self.tree.capacity)

    # --- The rollout worker that owns the slot.

    def begin(self, slot: int, previous: int) -> None:
        """Begins a free slot as the successor of ``previous`` (``NO_SLOT``: of none)."""
        self._begun[slot] = self.limiter.inserted_by_all
        self.slots.begin(slot, previous)

    def commit(self, slot: int, step: int, pending: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> int:
        """Commits step ``step``, which is in the slot with the observation after it: samples that are complete go live.

        Args:
            slot: The slot.
            step: Which of its steps.
            pending: int64 ``[B]``, kept by the caller for each group: steps of each row that wait for later ones; 0 at
                first.
            counts: int64 ``[policies]``, gets the number of each policy's rows whose step is a transition; None with
                one policy.

        Returns:
            The number of rows whose step is a transition, of all policies.
        """
        return self.slots.commit(slot, step, pending, counts)

    def evict(self, slot: int) -> None:
        """Removes a slot from the replay, so that it may be overwritten."""
        self.slots.evict(slot)
        if self._counts_evicted:
            for limiter, steps in zip(self.limiters, self._steps_of(slot), strict=True):
                limiter.forget(steps)
            # The slot must not tell again if it is left half written.
            self.arrays["valid"][slot] = False

    def _steps_of(self, slot: int) -> list[int]:
        """Count each policy's agent steps in a slot."""
        valid = self.arrays["valid"][slot]
        if self._policy_id is None:
            return [int(np.count_nonzero(valid))]
        return self._of_policies(self._policy_id[slot, :-1][valid])

    def _of_policies(self, ids: NDArray[np.int16]) -> list[int]:
        """Count how often each policy is among these players."""
        policies = len(self.limiters)
        counts: list[int] = np.bincount(ids[(ids >= 0) & (ids < policies)], minlength=policies).tolist()
        return counts

    def shown(self, group: int, slot: int, step: int) -> dict[str, NDArray[Any]]:
        """Where the environments of a group write x_t: in the slot, except for stacks of frames."""
        return {
            name: self._shown[name][group] if name in self._shown else array[slot, step]
            for name, array in self.observation.items()
        }

    def keep_newest_frames(self, group: int, slot: int, step: int) -> None:
        """Copies the newest frame of each of the group's stacks into the slot, as x_t."""
        for name, shown in self._shown.items():
            self.observation[name][slot, step] = shown[group][:, -1]

    def take_over(self, slots: Iterable[int]) -> list[int]:
        """Takes over slots that an earlier session has filled, before any of them is written.

        They can be drawn from, and have to be evicted like any completed slot. A slot without live steps is evicted
        here, because the last steps of the slot before it may refer to it.

        Returns:
            The slots with live steps, the one that was begun first in front.
        """
        pairs = zip(self.limiters, self.trees, strict=True)
        if all(limiter.held <= 0 and tree.total() == 0.0 for limiter, tree in pairs):
            return []
        completed = []
        for slot in slots:
            if self.priority_of(slot) > 0.0:
                completed.append(slot)
            else:
                self.evict(slot)
        return sorted(completed, key=lambda slot: (int(self._begun[slot]), slot))

    def priority_of(self, slot: int) -> float:
        """Sum of the priorities of a slot's steps, of all policies."""
        per_slot = self.topology.rollout_length * self.topology.group_rows
        priorities = np.empty(per_slot, np.float32)
        total = 0.0
        for tree in self.trees:
            tree.priorities(priorities, slot * per_slot)
            total += float(priorities.sum(dtype=np.float64))
        return total

    # --- Waiting for each other.

    def rows_of_policies(self, slot: int, step: int) -> list[int]:
        """How many rows each policy plays at x_t of a slot; with several players."""
        assert self._policy_id is not None, "one policy plays all rows"
        return self._of_policies(self._policy_id[slot, step])

    def try_reserve(self, rows: Sequence[int]) -> bool:
        """Whether a group may step in which the policies play so many rows; if so, these steps count as under way."""
        for policy, count in enumerate(rows):
            if count and not self.limiters[policy].try_reserve(count, with_others=sum(rows[:policy])):
                for earlier in range(policy):
                    self.limiters[earlier].release(rows[earlier])
                return False
        return any(rows) or not self.limiter.is_full

    def set_parked(self, worker: int, is_parked: bool) -> None:
        """Publishes whether the rate limiter parks any group of this rollout worker."""
        atomic_store(self._worker_is_parked, worker, int(is_parked))

    def wake_parked(self) -> None:
        """Wakes the rollout workers with parked groups, so that they check the rate limiter again."""
        for worker in range(self.topology.num_workers):
            if atomic_load(self._worker_is_parked, worker):
                self.inboxes[worker].wake()

    def wake_learners(self) -> None:
        """Wakes the learners that wait for steps and may draw now."""
        for policy, limiter in enumerate(self.limiters):
            if limiter.learners_waiting and limiter.may_draw:
                # Those of several policies have a ring each; one policy may have several learners.
                for ring in self.completed if len(self.limiters) == 1 else (self.completed[policy],):
                    ring.wake()

    # --- The policy worker.

    def keep_rnn_state(self, slots: NDArray[np.int64], steps: NDArray[np.int64], state: NDArray[np.float32]) -> None:
        """Stores the recurrent state from before x_t where a sequence may begin.

        Args:
            slots: ``[n]``.
            steps: ``[n]``, t of each.
            state: ``[n, B, S]``.
        """
        begins = steps % self.stride == 0
        self.arrays[RNN_STATE][slots[begins], steps[begins] // self.stride] = state[begins]

    def shown_to(self, groups: NDArray[np.int64], slots: NDArray[np.int64], steps: NDArray[np.int64]) -> dict[str, Any]:
        """Copies of x_t of some groups, name -> ``[n, B, ...]``, with whole stacks."""
        return {
            name: self._shown[name][groups] if name in self._shown else array[slots, steps]
            for name, array in self.observation.items()
        }
