"""Slots that learners of several policies hold back."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rollout.driven_worker import STEPS, driving, slot_store, topology_of

from rollmill.rollout.slot_policies import PooledSlots
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.slot_reserve import SlotReserve
from rollmill.storage.slots import FREE_SLOT, SlotStore, Topology, decode


def two_workers() -> Topology:
    """Two groups on worker 0, whose slots 3 and 4 are reserved, and one on worker 1, whose slot 7 is."""
    return replace(
        topology_of(groups=3, slots=5),
        worker_of_group=(0, 1, 0),
        slots_of_worker=(5, 3),
        reserved_of_worker=(2, 1),
    )


def given(store: SlotStore, worker: int) -> list[int]:
    """The slots that a worker has been given since it was last asked."""
    messages = np.zeros(64, np.int64)
    count = store.inboxes[worker].get_many(messages, 0.0)
    decoded = [decode(message) for message in messages[:count].tolist()]
    assert all(kind == FREE_SLOT for kind, _ in decoded)
    return [slot for _, slot in decoded]


def test_workers_begin_without_the_slots_that_are_reserved() -> None:
    topology = two_workers()
    assert [topology.free_slots_of(worker) for worker in (0, 1)] == [[0, 1, 2], [5, 6]]
    assert [topology.reserved_slots_of(worker) for worker in (0, 1)] == [[3, 4], [7]]
    without = replace(topology, reserved_of_worker=())
    assert [without.free_slots_of(worker) for worker in (0, 1)] == [[0, 1, 2, 3, 4], [5, 6, 7]]
    assert [without.reserved_slots_of(worker) for worker in (0, 1)] == [[], []]


def test_a_slot_is_lent_to_each_group_that_waits_and_to_no_worker_that_has_messages() -> None:
    store = slot_store(two_workers())
    reserve = SlotReserve(store)
    reserve.lend()
    assert given(store, 0) == given(store, 1) == [], "no group waits"
    store.group_is_parked[[1, 2]] = True
    store.retain(0)
    store.release(0)
    reserve.lend()
    assert given(store, 0) == [0], "the released slot is all that worker 0 has"
    assert given(store, 1) == [7]
    store.group_is_parked[0] = True
    reserve.lend()
    assert sorted(given(store, 0)) == [3, 4]
    assert given(store, 1) == [], "the reserve holds no more of its slots"
    reserve.lend()
    assert given(store, 0) == given(store, 1) == []


def test_slots_that_were_lent_go_back_one_by_one_while_other_batches_wait() -> None:
    store = slot_store(replace(two_workers(), players=PlayerIds(policies=2)))
    reserve = SlotReserve(store)
    store.group_is_parked[[0, 2]] = True
    reserve.lend()
    assert sorted(given(store, 0)) == [3, 4]
    store.group_is_parked[:] = False
    for slot in (0, 1, 2, 5):
        store.retain(slot)
    store.retain(1)
    generations = store.generation.copy()
    reserve.release([1], is_late=True)
    assert given(store, 0) == [], "another batch has samples of it"
    assert store.generation[1] == generations[1]
    reserve.release([5], is_late=True)
    assert given(store, 1) == [5], "nothing of worker 1 was lent"
    reserve.release([0, 1, 2], is_late=False)
    assert given(store, 0) == [1, 2], "slot 0 is kept after two batches behind which another one waited"
    assert (store.generation - generations).tolist() == [1, 1, 1, 0, 0, 1, 0, 0]
    for late in (False, True, False):
        store.retain(3)
        reserve.release([3], is_late=late)
        assert given(store, 0) == [3]
    store.group_is_parked[0] = True
    reserve.lend()
    assert given(store, 0) == [0]


@pytest.mark.parametrize("is_late", [True, False])
def test_without_a_reserve_every_slot_goes_back_to_its_worker(is_late: bool) -> None:
    store = slot_store(topology_of(groups=1, slots=3))
    reserve = SlotReserve(store)
    store.group_is_parked[0] = True
    reserve.lend()
    assert given(store, 0) == []
    store.retain(2)
    reserve.release([2], is_late=is_late)
    assert given(store, 0) == [2]


@pytest.mark.parametrize("policies", [1, 2])
def test_there_is_a_shortage_once_all_groups_have_waited_for_long(
    policies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    monkeypatch.setattr("rollmill.storage.slot_reserve.time.monotonic", lambda: seconds)
    store = slot_store(replace(two_workers(), players=PlayerIds(policies=policies)))
    reserve = SlotReserve(store)

    def shortages_after(more: float) -> int:
        nonlocal seconds
        reserve.lend()
        seconds += more
        reserve.lend()
        return reserve.shortages

    store.group_is_parked[:] = True
    assert shortages_after(9) == 0, "slots are lent"
    assert sorted(given(store, 0)) == [3, 4]
    assert shortages_after(9) == 0, "a slot is on its way to worker 1"
    assert given(store, 1) == [7]
    store.group_is_parked[2] = False
    assert shortages_after(9) == 0, "a group has a slot"
    store.group_is_parked[2] = True
    assert shortages_after(0.4) == 0
    reserve.release([], is_late=False)
    assert shortages_after(0.4) == 0, "a batch was learned from meanwhile"
    assert shortages_after(0.4) == (policies > 1), "with one policy there are slots enough"


def test_a_group_that_waits_goes_on_in_a_lent_slot() -> None:
    store = slot_store(replace(topology_of(groups=1, slots=3), reserved_of_worker=(1,)))
    reserve = SlotReserve(store)
    with driving(store, lambda _: PooledSlots(store, 0)) as driver:
        driver.play(0, 2 * STEPS)
        driver.wait_parked(0)
        assert driver.completed(1) == [0]
        reserve.lend()
        slot, step, _, _ = driver.await_request(0)
        assert (slot, step) == (2, 0)
        driver.answer(0)
        assert driver.completed(1) == [1], "its full slot is complete with this answer"


def test_groups_may_begin_and_end_to_wait_while_slots_are_lent() -> None:
    store = slot_store(two_workers())
    reserve = SlotReserve(store)
    process = multiprocessing.get_context("fork").Process(target=flip, args=(store.group_is_parked,))
    process.start()
    try:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            reserve.lend()
            np.full(2, 10**12)  # What an array that is not filled may hold.
    finally:
        process.kill()
        process.join()
    assert given(store, 0) == [], "the other process parks no group of worker 0"
    assert given(store, 1) == [7]


def flip(group_is_parked: NDArray[np.bool_]) -> None:
    while True:
        group_is_parked[1] = not group_is_parked[1]
