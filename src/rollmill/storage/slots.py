"""The slot store: shared arrays ``[num_slots, T(+1), B, ...]``, their owners, and the rings that announce changes.

Three kinds of process meet here and nowhere else. Apart from the arrays they exchange integers in rings:

    rollout worker --group--> policy worker      (requests: the group's x_t is in its slot)
    policy worker  --group--> rollout worker     (inbox, ACTIONS: a_t is in the slot as well)
    rollout worker --slot---> learner            (completed: T steps and V(x_T) are in the slot)
    learner        --slot---> rollout worker     (inbox, FREE_SLOT: the slot has no readers)

A slot belongs to one rollout worker, so a free list has one consumer and needs no lock. A slot may also belong to one
group of that worker: the number of slots of a group then bounds how far it runs ahead of the learner (the lockstep
regime). The life of a slot::

    free --take--> filling (t = 0..T) --V(x_T) written--> completed --all references dropped--> free, generation + 1

Every ring has room for all messages that can exist at once, so a put never fails: there is at most one request or
reply for each group, and one completion or release for each slot. (In a replay no slot is completed. The ring carries
finished episodes instead, and rollout workers retry when it is full.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.native import LaneRing, atomic_add
from rollmill.runtime.arena import ArenaLayout
from rollmill.specs import ArraySpec, EnvSpec
from rollmill.storage.player_ids import PlayerIds

ACTIONS = 0
FREE_SLOT = 1
_KIND_SHIFT = 32
_INDEX_MASK = (1 << _KIND_SHIFT) - 1

NO_SLOT = -1


def encode(kind: int, index: int) -> int:
    """Packs an inbox message into one integer."""
    return kind << _KIND_SHIFT | index


def decode(message: int) -> tuple[int, int]:
    """Unpacks an inbox message into (kind, index)."""
    return message >> _KIND_SHIFT, message & _INDEX_MASK


class SlotField(NamedTuple):
    """One array of the slot store: ``[num_slots, time, B, *item.shape]``; ``time`` 0 means no time axis."""

    name: str
    item: ArraySpec
    time: int


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How many workers, groups and slots there are, and which belong together.

    Attributes:
        rollout_length: T, steps of a slot.
        group_rows: B, rows of a group.
        worker_of_group: Rollout worker of each group.
        policy_worker_of_group: Policy worker of each group.
        slots_of_worker: How many slots each rollout worker owns; they are numbered consecutively.
        slots_per_group: How many of them belong to each group; 0 where a worker's groups share all of them.
        groups_per_batch: How many consecutive groups are always inferred together; 0 where any groups may be.
        num_policy_workers: Policy workers.
        num_learners: Learners.
        agents_per_env: Rows of an environment.
        players: Who may play a row.
        tasks: Number of tasks; group g has task g modulo this. 0 where there is one.
        slots_per_task_group: With tasks, how many of a worker's slots there are for each of its groups. Groups of one
            worker share them only if they have the same task and policy: slots of another one may be needed to complete
            a batch. 0 where slots belong to groups, or are shared by all.
        reserved_of_worker: How many of each worker's slots, the last ones, the learners hold in reserve at first
            (:mod:`rollmill.storage.slot_reserve`); empty if none.
    """

    rollout_length: int
    group_rows: int
    worker_of_group: tuple[int, ...]
    policy_worker_of_group: tuple[int, ...]
    slots_of_worker: tuple[int, ...]
    slots_per_group: int = 0
    groups_per_batch: int = 0
    num_policy_workers: int = 1
    num_learners: int = 1
    agents_per_env: int = 1
    players: PlayerIds = field(default_factory=PlayerIds)
    tasks: int = 0
    slots_per_task_group: int = 0
    reserved_of_worker: tuple[int, ...] = ()

    @property
    def num_completed_rings(self) -> int:
        """Rings of completed slots: one for each policy; a replay's are for its learners."""
        return max(self.num_learners, self.players.policies)

    @property
    def num_workers(self) -> int:
        """Rollout workers."""
        return len(self.slots_of_worker)

    @property
    def num_groups(self) -> int:
        """Groups, over all workers."""
        return len(self.worker_of_group)

    @property
    def num_slots(self) -> int:
        """Slots, over all workers."""
        return sum(self.slots_of_worker)

    def slots_owned_by(self, worker: int) -> range:
        """The slots that this rollout worker owns."""
        first = sum(self.slots_of_worker[:worker])
        return range(first, first + self.slots_of_worker[worker])

    def free_slots_of(self, worker: int) -> list[int]:
        """The slots that this rollout worker begins with."""
        owned = self.slots_owned_by(worker)
        return list(owned[: len(owned) - self._num_reserved(worker)])

    def reserved_slots_of(self, worker: int) -> list[int]:
        """The slots of this rollout worker that the learners hold in reserve at first."""
        owned = self.slots_owned_by(worker)
        return list(owned[len(owned) - self._num_reserved(worker) :])

    def _num_reserved(self, worker: int) -> int:
        return self.reserved_of_worker[worker] if self.reserved_of_worker else 0

    def slots_of_group(self, group: int) -> range:
        """The slots that belong to this group, if slots belong to groups."""
        assert self.slots_per_group, "a worker's groups share its slots"
        worker = self.worker_of_group[group]
        first = self.groups_of_worker(worker).index(group) * self.slots_per_group
        return self.slots_owned_by(worker)[first : first + self.slots_per_group]

    def group_of_slot(self) -> list[int]:
        """For each slot, the group that it belongs to, if slots belong to groups."""
        owners = [0] * self.num_slots
        for group in range(self.num_groups):
            for slot in self.slots_of_group(group):
                owners[slot] = group
        return owners

    def task_of_slot(self) -> NDArray[np.int64] | None:
        """The task of each slot, int64 ``[num_slots]``; None without several tasks."""
        each = self.slots_per_group or self.slots_per_task_group
        if not self.tasks or not each:
            return None
        groups = [group for worker in range(self.num_workers) for group in self.groups_of_worker(worker)]
        return np.repeat(np.array(groups, np.int64) % self.tasks, each)

    def pool_of_group(self, group: int) -> int:
        """Which groups share slots, if a worker's groups do: those with the same number."""
        if not self.tasks:
            return 0
        return group % self.tasks + self.tasks * (group * self.players.policies // self.num_groups)

    def pool_of_slot(self) -> list[int]:
        """The pool of each slot; see :meth:`pool_of_group`."""
        if not self.slots_per_task_group:
            return [0] * self.num_slots
        groups = [group for worker in range(self.num_workers) for group in self.groups_of_worker(worker)]
        return [self.pool_of_group(group) for group in groups for _ in range(self.slots_per_task_group)]

    def groups_of_worker(self, worker: int) -> list[int]:
        """The groups that this rollout worker hosts."""
        return [group for group, owner in enumerate(self.worker_of_group) if owner == worker]

    def groups_of_policy_worker(self, policy_worker: int) -> list[int]:
        """The groups that this policy worker answers."""
        return [group for group, owner in enumerate(self.policy_worker_of_group) if owner == policy_worker]


OBSERVATION_PREFIX = "observation/"
RNN_STATE = "rnn_state"
ACTS = "acts"
POLICY_ID = "policy_id"
MATCH_RETURN = "match_return"
REWARD_TERMS = "reward_terms"
OBJECTIVE = "episode_objective"


def slot_fields(
    spec: EnvSpec,
    *,
    rollout_length: int,
    state_size: int,
    inferred: Literal["float32", "float64"] = "float32",
    has_players: bool = False,
    reward_terms: int = 0,
    has_objective: bool = False,
) -> list[SlotField]:
    """The arrays of a slot, as :mod:`rollmill.specs` defines them.

    Args:
        spec: The environment.
        rollout_length: T.
        state_size: S of the recurrent state; 0 without a core.
        inferred: Dtype of what a policy worker computes: values, log-probabilities and recurrent state. A network in
            double precision wants float64, since rounding would make differences of 1e-16 between batches of different
            sizes into differences of 1e-8.
        has_players: Whether there are several players, so that a slot says who plays each row, and with several agents
            how matches ended (:func:`rollmill.storage.matches.follow_matches`).
        reward_terms: Number of the parts of the reward that learners weigh.
        has_objective: Whether what episodes were worth by the task's own measure is kept.
    """
    steps = rollout_length

    def scalar(name: str, dtype: str, time: int = steps) -> SlotField:
        return SlotField(name, ArraySpec(shape=(), dtype=dtype), time)

    fields = [SlotField(OBSERVATION_PREFIX + name, item, steps + 1) for name, item in spec.observation.items()]
    if spec.has_action_mask:
        fields.append(SlotField("action_mask", ArraySpec(shape=(spec.action.mask_size,), dtype="bool"), steps + 1))
    if spec.action.num_discrete:
        fields.append(SlotField("action_discrete", ArraySpec(shape=(spec.action.num_discrete,), dtype="int32"), steps))
    if spec.action.num_continuous:
        fields.append(
            SlotField("action_continuous", ArraySpec(shape=(spec.action.num_continuous,), dtype="float32"), steps)
        )
    if spec.agents:
        fields.append(scalar(ACTS, "bool", steps + 1))
    if has_players:
        fields.append(scalar(POLICY_ID, "int16", steps + 1))
    if has_players and len(spec.agents) > 1:
        fields.append(scalar(MATCH_RETURN, "float32", steps + 1))
    fields += [
        scalar("reset", "bool", steps + 1),
        scalar("value", inferred, steps + 1),
        scalar("log_prob", inferred),
        scalar("policy_version", "int32"),
        scalar("reward", "float32"),
        scalar("terminated", "bool"),
        scalar("truncated", "bool"),
        scalar("valid", "bool"),
        scalar("episode_return", "float32"),
        scalar("episode_length", "int32"),
    ]
    if reward_terms:
        fields.append(SlotField(REWARD_TERMS, ArraySpec(shape=(reward_terms,), dtype="float32"), steps))
    if has_objective:
        fields.append(scalar(OBJECTIVE, "float32"))
    if state_size:
        fields.append(SlotField(RNN_STATE, ArraySpec(shape=(state_size,), dtype=inferred), 0))
    return fields


def add_to_layout(layout: ArenaLayout, fields: list[SlotField], topology: Topology) -> None:
    """Reserves the slot arrays, the group table and the rings in an arena that is being laid out."""
    add_slots_to_layout(layout, fields, topology)
    add_tables_to_layout(layout, fields, topology)


def add_slots_to_layout(layout: ArenaLayout, fields: list[SlotField], topology: Topology) -> None:
    """Reserves the slots, their generations and reference counts."""
    slots, rows = topology.num_slots, topology.group_rows
    for slot_field in fields:
        time = (slot_field.time,) if slot_field.time else ()
        layout.add(slot_field.name, (slots, *time, rows, *slot_field.item.shape), slot_field.item.dtype)
    for name in ("slot_generation", "slot_references"):
        layout.add(name, (slots,), "int64")


def add_tables_to_layout(layout: ArenaLayout, fields: list[SlotField], topology: Topology) -> None:
    """Reserves the position of each group, the order in which slots begin, and the rings."""
    rows = topology.group_rows
    for name in ("group_slot", "group_step", "group_previous_slot", "group_iteration"):
        layout.add(name, (topology.num_groups,), "int64")
    for slot_field in fields:
        if slot_field.name == RNN_STATE:
            layout.add("group_rnn_state", (topology.num_groups, rows, *slot_field.item.shape), slot_field.item.dtype)
    layout.add("group_is_parked", (topology.num_groups,), "bool")
    layout.add("slot_ticket", (topology.num_slots,), "int64")
    layout.add("next_ticket", (1,), "int64")
    layout.add("task_seconds", (topology.num_workers, max(1, topology.tasks)), "float64")
    for name, lanes, capacity in _ring_shapes(topology):
        layout.add(name, (LaneRing.nbytes(lanes, capacity),), "uint8")


def _ring_shapes(topology: Topology) -> list[tuple[str, int, int]]:
    """(name, lanes, capacity) of every ring, with a lane for each process that may put into it."""
    capacity = topology.num_groups + topology.num_slots
    inbox_lanes = topology.num_policy_workers + topology.num_learners
    return (
        [(f"ring/requests/{i}", topology.num_workers, capacity) for i in range(topology.num_policy_workers)]
        + [(f"ring/inbox/{i}", inbox_lanes, capacity) for i in range(topology.num_workers)]
        + [(f"ring/completed/{i}", topology.num_workers, capacity) for i in range(topology.num_completed_rings)]
    )


class SlotStore:
    """A process's view of the slots. Build one in each process from the same arena, fields and topology.

    Args:
        arena: Shared memory that was laid out with :func:`add_to_layout`.
        fields: What :func:`slot_fields` gave.
        topology: The same in every process.
        policy: In a learner, the policy that it learns.
        state_size: In a learner, S of this policy's recurrent state; None is that of the slots.
        create: True in exactly one process, before the others start: initialises rings, table and free lists.
        is_kept: With ``create``: the contents of the slots are kept.

    Attributes:
        policy: As given.
        state_size: As given.
        ticket: int64 ``[num_slots]``: the place of each slot among all slots in the order in which they were begun.
        task_of_slot: See :meth:`Topology.task_of_slot`.
        task_seconds: float64 ``[workers, tasks]``: how long each rollout worker has stepped the environments of a task.
    """

    def __init__(
        self,
        arena: Mapping[str, NDArray[Any]],
        fields: list[SlotField],
        topology: Topology,
        *,
        policy: int = 0,
        state_size: int | None = None,
        create: bool = False,
        is_kept: bool = False,
    ) -> None:
        """Builds the views, and in the creating process the contents that others rely on."""
        self.topology = topology
        self.policy = policy
        self.state_size = state_size
        self.arrays: dict[str, NDArray[Any]] = {f.name: arena[f.name] for f in fields}
        self.observation = {
            f.name.removeprefix(OBSERVATION_PREFIX): arena[f.name]
            for f in fields
            if f.name.startswith(OBSERVATION_PREFIX)
        }
        # The arrays that are copied from x_T of a slot to x_0 of the next one.
        shown = ("reset", "action_mask", ACTS, POLICY_ID, MATCH_RETURN)
        self.carried = [name for name in self.arrays if name.startswith(OBSERVATION_PREFIX) or name in shown]
        self.generation = arena["slot_generation"]
        self.references = arena["slot_references"]
        self.ticket = arena["slot_ticket"]
        self.task_of_slot = topology.task_of_slot()
        self.task_seconds = arena["task_seconds"]
        self._next_ticket = arena["next_ticket"]
        self.group_slot = arena["group_slot"]
        self.group_step = arena["group_step"]
        self.group_previous_slot = arena["group_previous_slot"]
        self.group_iteration = arena["group_iteration"]
        self.group_is_parked = arena["group_is_parked"]
        self.group_rnn_state: NDArray[np.floating[Any]] | None = (
            arena["group_rnn_state"] if RNN_STATE in self.arrays else None
        )
        rings = {
            name: LaneRing(arena[name], lanes, capacity, create=create)
            for name, lanes, capacity in _ring_shapes(topology)
        }
        self.requests = [rings[f"ring/requests/{i}"] for i in range(topology.num_policy_workers)]
        self.inboxes = [rings[f"ring/inbox/{i}"] for i in range(topology.num_workers)]
        self.completed = [rings[f"ring/completed/{i}"] for i in range(topology.num_completed_rings)]
        self._policy_workers_of_worker = [
            sorted({topology.policy_worker_of_group[group] for group in topology.groups_of_worker(worker)})
            for worker in range(topology.num_workers)
        ]
        self._owner = np.repeat(np.arange(topology.num_workers), topology.slots_of_worker)
        if create:
            self.group_slot[:] = NO_SLOT
            self.group_previous_slot[:] = NO_SLOT
            self.group_is_parked[:] = False
            self.group_iteration[:] = 0
            if self.group_rnn_state is not None:
                self.group_rnn_state[:] = 0.0
            if not is_kept:
                self.generation[:] = 0
            self.references[:] = 0
            self._next_ticket[:] = 0
            self.task_seconds[:] = 0.0

    def number(self, slot: int) -> None:
        """Gives a slot that a group begins to fill the next ticket: 0, 1, 2, ... over all groups."""
        self.ticket[slot] = atomic_add(self._next_ticket, 0, 1)

    def carry_over(self, full: int, slot: int) -> None:
        """Copies x_T of a full slot to x_0 of another one, or of the same."""
        for name in self.carried:
            array = self.arrays[name]
            array[slot, 0] = array[full, self.topology.rollout_length]

    def complete(self, slot: int) -> None:
        """Hands a complete slot to the learners of the policies that play in it, with one reference for each.

        In lockstep, where slots belong to groups, every learner gets it: it waits for the slots of all groups.
        """
        learners: Sequence[int] = range(self.topology.players.policies)
        if len(learners) > 1 and not self.topology.slots_per_group:
            players = np.unique(self.arrays[POLICY_ID][slot, : self.topology.rollout_length])
            # Somebody must return a slot that past selves alone have played in.
            learners = players[players < len(learners)].tolist() or [0]
        for _ in learners:  # All before the first message: the release of its receiver would otherwise be the last.
            self.retain(slot)
        for learner in learners:
            delivered = self.completed[learner].put(self.owner_of(slot), slot)
            assert delivered, "the completion ring holds a place for every slot"

    def retain(self, slot: int) -> None:
        """Takes one more reference on a completed slot, so that it is not reused while it is read."""
        atomic_add(self.references, slot, 1)

    def release(self, slot: int) -> None:
        """Drops one reference; the last one returns the slot to the rollout worker that owns it."""
        if self.drop(slot):
            self.give(slot)

    def drop(self, slot: int) -> bool:
        """Drops one reference; returns whether it was the last one, so that the slot may be given to its owner."""
        if atomic_add(self.references, slot, -1) != 1:
            return False
        atomic_add(self.generation, slot, 1)
        return True

    def give(self, slot: int) -> None:
        """Sends a slot without references to the rollout worker that owns it, which fills it again."""
        lane = self.topology.num_policy_workers  # the learner's
        self.inboxes[self.owner_of(slot)].put(lane, encode(FREE_SLOT, slot))

    def owner_of(self, slot: int) -> int:
        """The rollout worker that owns a slot."""
        return int(self._owner[slot])

    def park(self, group: int) -> None:
        """Marks a group that may not step, so that no policy worker waits for it.

        Its rollout worker may be idle now, which concerns every policy worker that has requests from it.
        """
        self.group_is_parked[group] = True
        worker = self.topology.worker_of_group[group]
        for policy_worker in self._policy_workers_of_worker[worker]:
            self.requests[policy_worker].wake()


class SlotsNeeded(NamedTuple):
    """How many slots a run has.

    Attributes:
        total: With which the run goes on in any case.
        at_first: With which rollout workers begin; the learners hold the others in reserve.
    """

    total: int
    at_first: int


def slots_needed(
    *,
    num_groups: int,
    group_rows: int,
    rollout_length: int,
    batch_size: int,
    num_policies: int = 1,
    draws_policies: bool = False,
) -> SlotsNeeded:
    """The number of slots with which no stage waits for storage, and no sample waits longer than necessary.

    Each group fills one slot; one batch is being learned from and another one is collected. More slots would only let
    samples grow old while the learner is the slower stage. Below ``num_groups + one batch's + 1`` the run could
    deadlock: every group would hold a full slot and wait for a free one, while the learner waits for a batch that
    cannot become complete.

    Each policy has batches of its own. All of them may wait for the last rows of a batch at the same time, but seldom
    do. So rollout workers begin with the slots of two batches, as with one policy.

    Where policies are drawn for episodes, the last rows of a policy lie in more slots than a batch needs, because its
    episodes end one by one, and they wait there until the policy is drawn again: one slot more for each policy.
    """
    slot_samples = rollout_length * group_rows
    # If slots do not divide a batch, the next batch begins in the middle of this one's last slot.
    batch_slots = -(-batch_size // slot_samples) + (batch_size % slot_samples != 0)
    last_rows = num_policies if draws_policies and num_policies > 1 else 0
    return SlotsNeeded(
        total=num_groups + 2 * batch_slots * num_policies + last_rows,
        at_first=num_groups + 2 * batch_slots,
    )
