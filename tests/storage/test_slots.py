"""The slot store: fields, ownership, references and generations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.slots import (
    FREE_SLOT,
    SlotStore,
    Topology,
    add_to_layout,
    decode,
    encode,
    slot_fields,
    slots_needed,
)


def make_store(
    topology: Topology, spec: EnvSpec, *, rollout_length: int = 4, state_size: int = 0, has_players: bool = False
) -> SlotStore:
    fields = slot_fields(spec, rollout_length=rollout_length, state_size=state_size, has_players=has_players)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology)
    return SlotStore(Arena.create(layout), fields, topology, create=True)


@pytest.fixture
def topology() -> Topology:
    return Topology(
        rollout_length=4,
        group_rows=3,
        worker_of_group=(0, 1, 0),
        policy_worker_of_group=(0, 0, 1),
        slots_of_worker=(5, 3),
        num_policy_workers=2,
    )


SPEC = EnvSpec(
    name="test",
    observation={"image": ArraySpec(shape=(2, 5, 5), dtype="uint8"), "vector": ArraySpec(shape=(7,), dtype="float64")},
    action=ActionSpec(
        heads=(CategoricalHead(n=3), BoxHead(low=(-1.0, -1.0), high=(1.0, 1.0), shape=(2,))), structure="tuple"
    ),
    has_action_mask=True,
)


def test_messages_survive_packing() -> None:
    for kind in (0, 1):
        for index in (0, 1, 2**31):
            assert decode(encode(kind, index)) == (kind, index)


def test_ownership_is_consecutive_and_complete(topology: Topology) -> None:
    assert list(topology.slots_owned_by(0)) == [0, 1, 2, 3, 4]
    assert list(topology.slots_owned_by(1)) == [5, 6, 7]
    assert topology.groups_of_worker(0) == [0, 2]
    assert topology.groups_of_policy_worker(1) == [2]


def literal_task_of_slot(topology: Topology, each: int) -> list[int]:
    """The task of each slot: workers one after another, of each its groups, of each ``each`` slots."""
    found = []
    for worker in range(topology.num_workers):
        for group, owner in enumerate(topology.worker_of_group):
            if owner == worker:
                found += [group % topology.tasks] * each
    return found


@pytest.mark.parametrize("kind", ["slots_per_group", "slots_per_task_group"])
@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_slots_have_the_task_of_the_groups_that_they_are_for(kind: str, tasks: int, workers: int) -> None:
    groups = 12
    owners = tuple(group % workers for group in range(groups))
    topology = Topology(
        rollout_length=4,
        group_rows=3,
        worker_of_group=owners,
        policy_worker_of_group=(0,) * groups,
        slots_of_worker=tuple(5 * owners.count(worker) for worker in range(workers)),
        tasks=tasks,
    )
    topology = replace(topology, slots_per_group=5) if kind == "slots_per_group" else topology
    topology = replace(topology, slots_per_task_group=5) if kind == "slots_per_task_group" else topology
    found = topology.task_of_slot()
    assert found is not None
    assert found.dtype == np.int64
    assert found.tolist() == literal_task_of_slot(topology, 5)
    assert np.bincount(found).tolist() == [topology.num_slots // tasks] * tasks
    if kind == "slots_per_group":
        for group in range(groups):
            assert set(found[topology.slots_of_group(group)].tolist()) == {group % tasks}
    store = make_store(topology, SPEC)
    assert store.task_of_slot is not None
    assert store.task_of_slot.tolist() == found.tolist()
    assert store.task_seconds.shape == (workers, tasks)
    assert not store.task_seconds.any()


def test_slots_have_no_task_where_there_is_one(topology: Topology) -> None:
    assert topology.task_of_slot() is None
    assert make_store(topology, SPEC).task_of_slot is None
    assert topology.pool_of_slot() == [0] * 8
    assert [topology.pool_of_group(group) for group in range(3)] == [0] * 3
    # In a replay, slots are those of any task.
    assert replace(topology, tasks=3).task_of_slot() is None
    assert replace(topology, tasks=3).pool_of_slot() == [0] * 8


@pytest.mark.parametrize("policies", [1, 2, 3])
@pytest.mark.parametrize("tasks", [2, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_groups_share_slots_exactly_where_they_have_one_task_and_one_policy(
    policies: int, tasks: int, workers: int
) -> None:
    groups = 2 * tasks * policies
    owners = tuple(group % workers for group in range(groups))
    topology = Topology(
        rollout_length=4,
        group_rows=3,
        worker_of_group=owners,
        policy_worker_of_group=(0,) * groups,
        slots_of_worker=tuple(3 * owners.count(worker) for worker in range(workers)),
        players=PlayerIds(policies=policies),
        tasks=tasks,
        slots_per_task_group=3,
    )
    # Policies have blocks of groups, one after another, and in each of them every task twice.
    who = [(group % tasks, group // (2 * tasks)) for group in range(groups)]
    pools = [topology.pool_of_group(group) for group in range(groups)]
    for first in range(groups):
        for second in range(groups):
            assert (pools[first] == pools[second]) == (who[first] == who[second])
    pool_of_slot, task_of_slot = topology.pool_of_slot(), topology.task_of_slot()
    assert task_of_slot is not None
    for worker in range(workers):
        of_worker = topology.groups_of_worker(worker)
        owned = [pool_of_slot[slot] for slot in topology.slots_owned_by(worker)]
        assert sorted(owned) == sorted(3 * [pools[group] for group in of_worker])
    for slot, pool in enumerate(pool_of_slot):
        assert task_of_slot[slot] == who[pools.index(pool)][0]


def test_arrays_have_the_time_axis_of_the_specs(topology: Topology) -> None:
    store = make_store(topology, SPEC, state_size=6)
    arrays = store.arrays
    assert store.observation["image"].shape == (8, 5, 3, 2, 5, 5)
    assert store.observation["image"].dtype == np.uint8
    assert store.observation["vector"].dtype == np.float64
    assert arrays["action_mask"].shape == (8, 5, 3, 3)
    assert arrays["action_discrete"].shape == (8, 4, 3, 1)
    assert arrays["action_continuous"].shape == (8, 4, 3, 2)
    assert arrays["value"].shape == (8, 5, 3)
    assert arrays["reward"].shape == (8, 4, 3)
    assert arrays["rnn_state"].shape == (8, 3, 6)


def test_a_block_of_observations_is_contiguous(topology: Topology) -> None:
    store = make_store(topology, SPEC)
    assert store.observation["image"][3, 2].flags["C_CONTIGUOUS"]


def test_the_last_release_gives_the_slot_back_to_its_owner_with_a_new_generation(topology: Topology) -> None:
    store = make_store(topology, SPEC)
    slot = 6  # of worker 1
    store.retain(slot)
    store.retain(slot)
    messages = np.zeros(16, np.int64)
    store.release(slot)
    assert store.inboxes[1].get_many(messages, 0.0) == 0
    assert store.generation[slot] == 0
    store.release(slot)
    assert store.inboxes[1].get_many(messages, 0.0) == 1
    assert decode(int(messages[0])) == (FREE_SLOT, slot)
    assert store.generation[slot] == 1
    assert store.inboxes[0].get_many(messages, 0.0) == 0


def test_slots_needed_leaves_room_for_two_batches_beside_every_group_s_own_and_for_no_more() -> None:
    for num_groups, rows, steps, batch in [(1, 1, 1, 1), (4, 16, 32, 1024), (2, 8, 20, 4000), (300, 10, 32, 2048)]:
        needed, at_first = slots_needed(num_groups=num_groups, group_rows=rows, rollout_length=steps, batch_size=batch)
        assert at_first == needed, "one policy's learner holds nothing back"
        slot = rows * steps
        whole_slots = -(-batch // slot)
        assert (needed - num_groups) * slot >= 2 * batch
        # At any time a batch may lie over one slot more than its samples fill, where slots do not divide it.
        assert needed - num_groups == 2 * (whole_slots if batch % slot == 0 else whole_slots + 1)


def test_policies_that_are_drawn_leave_rows_in_more_slots() -> None:
    sizes = {"num_groups": 4, "group_rows": 16, "rollout_length": 32, "batch_size": 1024}
    assert slots_needed(**sizes, num_policies=3).total == 4 + 3 * 4
    assert slots_needed(**sizes, num_policies=3, draws_policies=True).total == 4 + 3 * 5
    assert slots_needed(**sizes, draws_policies=True).total == 4 + 4, "one policy is always drawn"


def test_workers_of_several_policies_begin_with_two_batches() -> None:
    sizes = {"num_groups": 4, "group_rows": 16, "rollout_length": 32, "batch_size": 1024}
    assert slots_needed(**sizes, num_policies=3).at_first == 4 + 2 * 2
    assert slots_needed(**sizes, num_policies=3, draws_policies=True).at_first == 4 + 2 * 2


def test_slots_are_completed_for_the_policies_that_play_in_them(topology: Topology) -> None:
    store = make_store(replace(topology, players=PlayerIds(policies=3, places=2)), SPEC, has_players=True)
    messages = np.zeros(16, np.int64)
    policies = store.arrays["policy_id"]
    policies[...] = 1
    policies[6, :-1] = 2
    policies[6, 1, 0] = 4  # a past self
    store.complete(6)
    assert [ring.get_many(messages, 0.0) for ring in store.completed] == [0, 0, 1]
    policies[6, 0, 1] = 0
    store.complete(6)
    assert [ring.get_many(messages, 0.0) for ring in store.completed] == [1, 0, 1]
    assert store.references[6] == 3


def test_in_lockstep_every_policy_gets_every_slot(topology: Topology) -> None:
    in_lockstep = replace(topology, players=PlayerIds(policies=2), slots_per_group=1)
    store = make_store(in_lockstep, SPEC, has_players=True)
    store.arrays["policy_id"][...] = 1
    store.complete(0)
    messages = np.zeros(16, np.int64)
    assert [ring.get_many(messages, 0.0) for ring in store.completed] == [1, 1]
    assert store.references[0] == 2
