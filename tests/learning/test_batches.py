"""Admission: each row in exactly one batch, matching observations, slots released when unused."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.learning.admission import CompletedSlots, FirstInFirstOut
from rollmill.learning.batch_loader import BatchLoader, ReadyBatches
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.slot_reserve import SlotReserve
from rollmill.storage.slots import POLICY_ID, SlotStore, Topology, add_to_layout, slot_fields

T, B, SLOTS = 5, 4, 6
SPEC = EnvSpec(
    name="counting",
    observation={"obs": ArraySpec(shape=(2,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete"),
)


def make_store(*, slots: int = SLOTS, agents: int = 1, policies: int = 1) -> SlotStore:
    topology = Topology(
        rollout_length=T,
        group_rows=B,
        worker_of_group=(0,),
        policy_worker_of_group=(0,),
        slots_of_worker=(slots,),
        agents_per_env=agents,
        players=PlayerIds(policies=policies),
    )
    fields = slot_fields(SPEC, rollout_length=T, state_size=3, has_players=policies > 1)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology)
    store = SlotStore(Arena.create(layout), fields, topology, create=True)
    slot, step, row = np.meshgrid(np.arange(slots), np.arange(T + 1), np.arange(B), indexing="ij")
    ticket = slot * 10_000 + step * 100 + row
    store.observation["obs"][...] = ticket[..., None]
    store.arrays["value"][...] = ticket
    store.arrays["reward"][...] = ticket[:, :T]
    store.arrays["rnn_state"][...] = (np.arange(slots)[:, None] * 100 + np.arange(B))[..., None]
    store.arrays["valid"][...] = True
    store.arrays["episode_length"][...] = 0
    return store


@pytest.fixture
def store() -> SlotStore:
    return make_store()


def flat_observations(store: SlotStore) -> np.ndarray:
    obs = store.observation["obs"]
    return obs.reshape(-1, *obs.shape[3:])


@pytest.mark.parametrize("num_trajectories", [1, 3, 4, 6, 8, 10])
def test_every_row_is_in_exactly_one_batch(store: SlotStore, num_trajectories: int) -> None:
    admission = FirstInFirstOut(store, num_trajectories)
    seen: list[int] = []
    for slot in range(SLOTS):
        store.retain(slot)
        admission.add(slot)
        while (batch := admission.take()) is not None:
            assert batch.num_trajectories == num_trajectories
            seen += batch.arrays["reward"][0].astype(int).tolist()
            for of_batch in batch.slots:
                store.release(of_batch)
    expected = [slot * 10_000 + row for slot in range(SLOTS) for row in range(B)]
    assert seen == expected[: len(expected) // num_trajectories * num_trajectories]
    # Slots with rows left are still held; all others were released once.
    rows_left = SLOTS * B - len(seen)
    held = [slot for slot in range(SLOTS) if store.references[slot] > 0]
    assert len(held) == -(-rows_left // B)
    assert (store.references >= 0).all()


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("num_trajectories", [1, 2, 3, 7])
def test_a_batch_of_one_of_several_policies_is_as_full_as_it_can_be(num_trajectories: int, agents: int) -> None:
    slots, wanted = 40, num_trajectories * T
    store = make_store(slots=slots, agents=agents, policies=8)  # two of which play
    random = np.random.default_rng(num_trajectories)
    # Rows change hands once at most, where an episode ends.
    begins, first = random.integers(0, T + 2, (slots, 1, B)), random.integers(0, 2, (slots, 1, B))
    store.arrays[POLICY_ID][...] = np.where(np.arange(T + 1)[:, None] < begins, first, 1 - first)
    store.arrays["terminated"][...] = np.diff(store.arrays[POLICY_ID], axis=1) != 0
    own = store.arrays[POLICY_ID][:, :T] == store.policy
    of_env = np.count_nonzero(own, axis=1).reshape(slots, B // agents, agents).sum(axis=2)
    admission = FirstInFirstOut(store, num_trajectories)
    seen: list[int] = []
    sizes: list[int] = []
    for slot in range(slots):
        store.retain(slot)
        admission.add(slot)
        while (batch := admission.take()) is not None:
            valid = batch.arrays["valid"].astype(bool)
            sizes.append(int(valid.sum()))
            seen += batch.arrays["reward"][valid].astype(int).tolist()
            for of_batch in batch.slots:
                store.release(of_batch)
    expected = {int(x) for x in store.arrays["reward"][own]}
    assert len(seen) == len(set(seen))
    assert set(seen) <= expected
    assert len(expected) - len(seen) < wanted
    assert min(sizes) > 0
    assert all(size <= max(wanted, of_env.max()) for size in sizes)
    # One more environment would not have fitted.
    assert all(size > wanted - of_env.max() for size in sizes)
    assert (store.references >= 0).all()


def test_an_environment_with_more_than_a_batch_is_a_batch() -> None:
    store = make_store(agents=2, policies=2)
    store.arrays[POLICY_ID][...] = [1, 1, 0, 0]  # The first environment of each slot belongs to the other policy.
    store.arrays["terminated"][...] = True
    admission = FirstInFirstOut(store, 1)
    for slot in (0, 1):
        store.retain(slot)
        admission.add(slot)
        batch = admission.take()
        assert batch is not None
        assert np.count_nonzero(batch.arrays["valid"]) == 2 * T
        assert admission.take() is None


def test_arrays_match_their_observations(store: SlotStore) -> None:
    admission = FirstInFirstOut(store, 6)
    for slot in (4, 1):
        store.retain(slot)
        admission.add(slot)
    batch = admission.take()
    assert batch is not None
    observed = flat_observations(store)[batch.observation_index][..., 0]
    np.testing.assert_array_equal(observed, batch.arrays["value"])
    np.testing.assert_array_equal(batch.arrays["reward"], batch.arrays["value"][:T])
    np.testing.assert_array_equal(batch.arrays["rnn_state"][:, 0], [400, 401, 402, 403, 100, 101])
    assert batch.slots == (4, 1)


def test_episodes_are_reported_with_the_rows_they_ended_in(store: SlotStore) -> None:
    store.arrays["episode_length"][2, 3, 1] = 17
    store.arrays["episode_return"][2, 3, 1] = 4.5
    store.arrays["episode_length"][2, 0, 3] = 9
    store.arrays["episode_return"][2, 0, 3] = -1.0
    admission = FirstInFirstOut(store, 2)
    store.retain(2)
    admission.add(2)
    first, second = admission.take(), admission.take()
    assert first is not None
    assert second is not None
    assert [(e.episode_return, e.episode_length) for e in first.episodes] == [(4.5, 17)]
    assert [(e.episode_return, e.episode_length) for e in second.episodes] == [(-1.0, 9)]


def test_the_loader_prepares_in_the_background_and_keeps_the_order(store: SlotStore) -> None:
    admission = FirstInFirstOut(store, B)
    ready = ReadyBatches()
    loader = BatchLoader(CompletedSlots(store, admission, lambda batch: (batch, "prepared"), SlotReserve(store)), ready)
    try:
        assert ready.count == 0
        for slot in (3, 0, 5):
            store.retain(slot)
            assert store.completed[0].put(0, slot)
        slots = []
        assert ready.arrived.wait(10.0)
        assert ready.count == 1
        for _ in range(3):
            prepared = loader.next(timeout_s=10.0)
            assert prepared is not None
            assert prepared[1] == "prepared"
            slots.append(prepared[0].slots)
        assert slots == [(3,), (0,), (5,)]
        assert loader.next(timeout_s=0.05) is None
        assert ready.count == 0
    finally:
        loader.close()


def test_an_incomplete_batch_needs_half_of_the_mean_of_all_queues() -> None:
    store = make_store(slots=13, policies=3)  # one of them is the group's
    store.arrays[POLICY_ID][...] = 1
    store.arrays[POLICY_ID][..., 0] = store.policy
    admission = FirstInFirstOut(store, 100)
    for slot in (4, 2):
        assert admission.take_incomplete() is None
        store.retain(slot)
        admission.add(slot)
    batch = admission.take_incomplete()
    assert batch is not None
    assert batch.slots == (4, 2)
    assert batch.arrays["valid"].sum() == 2 * T
    assert admission.take_incomplete() is None


def test_a_shortage_of_slots_makes_an_incomplete_batch() -> None:
    store = make_store(policies=2)
    store.arrays[POLICY_ID][...] = store.policy
    reserve = SlotReserve(store)
    loader = BatchLoader(CompletedSlots(store, FirstInFirstOut(store, 100 * B), lambda batch: batch, reserve))
    try:
        for slot in (1, 3):
            store.retain(slot)
            assert store.completed[0].put(0, slot)
        assert loader.next(timeout_s=0.5) is None
        reserve.shortages += 1
        batch = loader.next(timeout_s=10.0)
        assert batch is not None
        assert batch.slots == (1, 3)
        assert loader.next(timeout_s=0.5) is None
    finally:
        loader.close()


def test_an_error_in_the_loader_s_thread_reaches_the_learner(store: SlotStore) -> None:
    def fail(batch: object) -> object:
        raise ZeroDivisionError("in the thread")

    loader = BatchLoader(CompletedSlots(store, FirstInFirstOut(store, B), fail, SlotReserve(store)))
    try:
        store.retain(0)
        assert store.completed[0].put(0, 0)
        with pytest.raises(ZeroDivisionError, match="in the thread"):
            loader.next(timeout_s=10.0)
    finally:
        loader.close()
