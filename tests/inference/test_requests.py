"""Where the rows of a forward pass stand in the slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollmill.inference.observation_readers import SlotReader
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.inference.requests import Requests
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import slots

STEPS, ROWS, GROUPS = 3, 4, 3
SPEC = EnvSpec(
    name="test",
    observation={"obs": ArraySpec(shape=(2,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    agents=("ann", "bob"),
)


@pytest.fixture
def store() -> slots.SlotStore:
    topology = slots.Topology(
        rollout_length=STEPS,
        group_rows=ROWS,
        worker_of_group=(0,) * GROUPS,
        policy_worker_of_group=(0,) * GROUPS,
        slots_of_worker=(2 * GROUPS,),
        agents_per_env=2,
    )
    fields = slots.slot_fields(SPEC, rollout_length=STEPS, state_size=2)
    layout = ArenaLayout()
    slots.add_to_layout(layout, fields, topology)
    store = slots.SlotStore(Arena.create(layout), fields, topology, create=True)
    store.group_slot[:] = [4, 1, 3]
    store.group_step[:] = [0, 2, 1]
    store.group_previous_slot[:] = [slots.NO_SLOT, slots.NO_SLOT, slots.NO_SLOT]
    for slot in range(topology.num_slots):
        for step in range(STEPS + 1):
            for row in range(ROWS):
                store.observation["obs"][slot, step, row] = [100 * slot + 10 * step + row, -1]
    return store


def places(store: slots.SlotStore, groups: list[int]) -> list[tuple[int, int, int]]:
    """(slot, step, row) of every row that acts, in order, literally."""
    found = []
    for group in groups:
        slot, step = int(store.group_slot[group]), int(store.group_step[group])
        found += [(slot, step, row) for row in range(ROWS) if store.arrays["acts"][slot, step, row]]
    return found


@pytest.mark.parametrize("pattern", ["all", "some", "none"])
@pytest.mark.parametrize("groups", [[0], [2, 0], [0, 1, 2]])
def test_rows_that_act_are_read_and_written_where_they_stand(
    store: slots.SlotStore, groups: list[int], pattern: str
) -> None:
    random = np.random.default_rng(0)
    store.arrays["acts"][:] = {
        "all": True,
        "some": random.random(store.arrays["acts"].shape) < 0.5,
        "none": False,
    }[pattern]
    wanted = places(store, groups)
    requests = Requests(store, np.array(groups))
    assert requests.num_rows == len(wanted)
    assert (requests.rows is None) == (pattern == "all")
    observation = store.observation["obs"]
    np.testing.assert_array_equal(
        requests.read(observation), [observation[place] for place in wanted] or np.empty((0, 2))
    )
    reader = SlotReader(store, max_groups=GROUPS, device=torch.device("cpu"), may_view=True)
    np.testing.assert_array_equal(reader.read(requests)["obs"].numpy(), requests.read(observation))
    of_groups = np.array([7, 8, 9])[groups]
    per_row = [of_groups[groups.index(group)] for group in groups for _ in places(store, [group])]
    assert requests.per_row(of_groups).tolist() == per_row
    store.arrays["value"][:] = -5
    requests.write(store.arrays["value"], np.arange(len(wanted), dtype=np.float32))
    for index, place in enumerate(wanted):
        assert store.arrays["value"][place] == index
    assert int((store.arrays["value"] != -5).sum()) == len(wanted)


@pytest.mark.parametrize(("rows", "is_view"), [([0, 1, 2, 3], True), ([1, 2], True), ([3], True), ([0, 2], False)])
@pytest.mark.parametrize("may_view", [True, False])
def test_rows_side_by_side_in_one_group_are_read_in_place(
    store: slots.SlotStore, rows: list[int], is_view: bool, may_view: bool
) -> None:
    store.arrays["acts"][:] = True
    everything = Requests(store, np.array([1]))
    *_, (player, chosen, requests) = everything.by_player(np.isin(np.arange(ROWS), rows).astype(np.int32)).parts
    assert (player, np.flatnonzero(chosen).tolist()) == (1, rows)
    reader = SlotReader(store, max_groups=GROUPS, device=torch.device("cpu"), may_view=may_view)
    found = reader.read(requests)["obs"].numpy()
    np.testing.assert_array_equal(found, [store.observation["obs"][1, 2, row] for row in rows])
    assert np.shares_memory(found, store.observation["obs"]) == (is_view and may_view)


@pytest.mark.parametrize("acts", [1.0, 0.6])
@pytest.mark.parametrize("groups", [[1], [2, 0]])
def test_rows_are_split_by_who_plays_them(store: slots.SlotStore, groups: list[int], acts: float) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        store.arrays["acts"][:] = random.random(store.arrays["acts"].shape) < acts
        everything = Requests(store, np.array(groups))
        wanted = places(store, groups)
        players = random.integers(0, 3, len(wanted)).astype(np.int16)
        seen, in_parts = [], []
        split = everything.by_player(players)
        for player, chosen, part in split.parts:
            own = [place for place, other in zip(wanted, players, strict=True) if other == player]
            np.testing.assert_array_equal(chosen, players == player)
            assert part.num_rows == len(own)
            np.testing.assert_array_equal(
                part.read(store.observation["obs"]), [store.observation["obs"][place] for place in own]
            )
            numbers = np.arange(len(groups) * ROWS)
            of_all = [index for index, place in enumerate(everything.of_all(numbers)) if players[index] == player]
            assert part.of_all(numbers).tolist() == everything.of_all(numbers)[of_all].tolist()
            store.arrays["policy_version"][:] = -1
            part.fill(store.arrays["policy_version"], 4)
            store.arrays["value"][:] = -5
            part.write(store.arrays["value"], np.arange(len(own), dtype=np.float32))
            assert [store.arrays["value"][place] for place in own] == list(range(len(own)))
            assert [store.arrays["policy_version"][place] for place in own] == [4] * len(own)
            assert int((store.arrays["value"] != -5).sum()) == (store.arrays["policy_version"] == 4).sum() == len(own)
            seen.append(player)
            in_parts += own
        assert seen == np.unique(players).tolist()
        order = range(len(wanted)) if split.order is None else split.order.tolist()
        assert [in_parts[index] for index in order] == wanted


@pytest.mark.parametrize("acts_all", [True, False])
def test_values_behind_full_slots_are_written_for_rows_that_act(store: slots.SlotStore, acts_all: bool) -> None:
    store.group_step[:] = 0
    store.group_previous_slot[:] = [0, slots.NO_SLOT, 2]
    acts = store.arrays["acts"]
    acts[:] = True
    acts[store.group_slot[2], 0, 1] = acts_all
    wanted = places(store, [0, 1, 2])
    requests = Requests(store, np.arange(GROUPS))
    store.arrays["value"][:] = -5
    requests.write_behind(store.arrays["value"], np.arange(len(wanted), dtype=np.float32), STEPS)
    values = store.arrays["value"]
    for index, (slot, _, row) in enumerate(wanted):
        group = store.group_slot.tolist().index(slot)
        previous = int(store.group_previous_slot[group])
        if previous != slots.NO_SLOT:
            assert values[previous, STEPS, row] == index
    assert int((values != -5).sum()) == len(places(store, [0])) + len(places(store, [2]))


def test_the_recurrent_state_of_a_row_that_waits_stays(store: slots.SlotStore) -> None:
    store.group_step[:] = 1
    acts = store.arrays["acts"]
    acts[:] = True
    acts[store.group_slot[1], 1] = [True, False, False, True]
    states = RecurrentStates(store, range(GROUPS), state_size=2, device=torch.device("cpu"), is_shared=False)
    everything = Requests(store, np.array([0, 2]))
    states.keep(everything, torch.full((2 * ROWS, 2), 5.0))
    requests = Requests(store, np.array([1]))
    before = states.take(requests)
    assert before is not None
    assert before.shape == (2, 2)
    states.keep(requests, torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    acts[:] = True
    after = states.take(Requests(store, np.array([1, 0])))
    assert after is not None
    assert after[:, 0].tolist() == [1, 0, 0, 2, 5, 5, 5, 5]
