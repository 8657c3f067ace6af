"""Which groups the rate limiter parks, and how they resume."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.rollout.driven_worker import ROWS, driving, make_environments, replay_store, topology_of

from rollmill.rollout.slot_policies import EvictingSlots
from rollmill.rollout.slot_views import HostedGroup
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.removers import make_remover
from rollmill.storage.replay import ReplayStore

# One batch for each group step; one group step may be made before the first batch, and one ahead of the learner.
LIMITS = RateLimits(update_interval=ROWS, min_size=ROWS, error_buffer=ROWS, total_steps=10**6)


def hosted(store: ReplayStore, groups: int) -> tuple[EvictingSlots, list[HostedGroup], list[bool]]:
    """The groups at x_0 of their first slots, and which of them may step."""
    slots = EvictingSlots(store, 0, make_remover("fifo", np.random.default_rng(0), store.priority_of))
    made = [HostedGroup(index=group, environments=make_environments(group)) for group in range(groups)]
    return slots, made, [slots.begin(group) or slots.advance(group) for group in made]


def test_groups_are_parked_in_order_and_resume_first_in_first_out() -> None:
    store = replay_store(topology_of(groups=4, slots=8), limits=LIMITS)
    slots, groups, admitted = hosted(store, 4)
    assert admitted == [True, True, False, False]
    assert slots.num_parked == 2
    assert list(store.group_is_parked) == [False, False, True, True]
    # Steps that were reserved are made.
    store.limiter.insert(2 * ROWS, reserved=2 * ROWS)
    assert list(slots.resume()) == []
    assert store.limiter.try_draw()
    # A group that comes while others wait is not admitted before them.
    assert not slots.advance(groups[0])
    assert [group.index for group in slots.resume()] == [2]
    store.limiter.insert(ROWS, reserved=ROWS)
    assert store.limiter.try_draw()
    assert [group.index for group in slots.resume()] == [3]
    assert list(store.group_is_parked) == [True, False, False, False]


def test_a_batch_that_is_drawn_while_the_worker_looks_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = replay_store(topology_of(groups=3, slots=6), limits=LIMITS)
    slots, _, admitted = hosted(store, 3)
    assert admitted == [True, True, False]
    store.limiter.insert(2 * ROWS, reserved=2 * ROWS)
    look = store.limiter.try_reserve

    def look_before_a_learner_draws(rows: int) -> bool:
        may_step = look(rows)
        if store.limiter.try_draw():
            store.wake_parked()
        return may_step

    monkeypatch.setattr(store.limiter, "try_reserve", look_before_a_learner_draws)
    assert list(slots.resume()) == []
    begun = time.monotonic()
    assert store.inboxes[0].get_many(np.empty(9, np.int64), 20.0) == 0
    assert time.monotonic() - begun < 10.0
    assert len(list(slots.resume())) == 1


def test_only_a_worker_with_parked_groups_is_woken() -> None:
    store = replay_store(topology_of(groups=3, slots=6), limits=LIMITS)
    slots, _, admitted = hosted(store, 3)
    assert admitted == [True, True, False]
    store.limiter.insert(2 * ROWS, reserved=2 * ROWS)
    assert list(slots.resume()) == []
    assert store.limiter.try_draw()
    assert len(list(slots.resume())) == 1
    store.wake_parked()
    begun = time.monotonic()
    assert store.inboxes[0].get_many(np.empty(9, np.int64), 0.2) == 0
    assert time.monotonic() - begun >= 0.2


def test_a_worker_whose_groups_are_all_parked_waits_for_the_learner_and_resumes_when_it_draws() -> None:
    store = replay_store(topology_of(groups=2, slots=4), limits=LIMITS)
    remover = make_remover("fifo", np.random.default_rng(0), store.priority_of)
    with driving(store, lambda _: EvictingSlots(store, 0, remover)) as driver:
        driver.requests(2)
        driver.answer(0)
        driver.wait_parked(0)
        driver.wait_phase("waiting for actions")
        driver.answer(1)
        driver.wait_parked(0, 1)
        driver.wait_phase("waiting for the learner")
        for group in (0, 1, 0, 1):
            assert driver.requests(0) == []
            driver.wait_until(store.limiter.try_draw)
            store.wake_parked()
            # One batch admits one group, the one that has been parked longest.
            driver.await_request(group)
            assert not store.group_is_parked[group]
            assert store.group_is_parked[1 - group]
            driver.answer(group)
            driver.wait_parked(group)
