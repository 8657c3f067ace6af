"""Where groups write, what happens to full slots, and which groups are parked."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from tests.rollout.driven_worker import (
    ROWS,
    STEPS,
    UNLIMITED,
    SteppedAlone,
    assert_holds,
    driving,
    replay_arena,
    replay_store,
    slot_store,
    spec_of,
    topology_of,
    value_of,
)

from rollmill.envs.info_metrics import InfoMetrics
from rollmill.envs.views import Array, ObservationView, OutcomeView, SavableGroup
from rollmill.rollout.slot_policies import EvictingSlots, GroupSlots, PooledSlots
from rollmill.rollout.slot_views import HostedGroup
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec, FrameStack
from rollmill.storage.episodes import EpisodeEnd, unpack_episode, unpack_match
from rollmill.storage.matches import matches_of
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.removers import make_remover
from rollmill.storage.replay import ReplayStore, add_beside_to_layout, replay_fields
from rollmill.storage.replay import add_to_layout as add_replay_to_layout
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.slots import NO_SLOT


def test_pooled_slots_hold_what_a_group_stepped_alone_shows() -> None:
    store = slot_store(topology_of(groups=2, slots=4))
    with driving(store, lambda _: PooledSlots(store, 0)) as driver:
        for group in (0, 1):
            alone = SteppedAlone(group)
            for iteration in range(5):
                # The first answer of the next slot completes this one.
                driver.play(group, STEPS + 1 if iteration == 0 else STEPS)
                (slot,) = driver.completed(1)
                assert_holds(store, slot, alone.next_slot())
                values = [value_of(group, iteration, t) for t in range(STEPS)] + [value_of(group, iteration + 1, 0)]
                np.testing.assert_array_equal(store.arrays["value"][slot], np.repeat([values], ROWS, axis=0).T)
                store.release(slot)


def test_a_pooled_slot_is_completed_when_its_last_value_comes_with_the_next_action() -> None:
    store = slot_store(topology_of(groups=1, slots=2))
    with driving(store, lambda _: PooledSlots(store, 0)) as driver:
        first, step, previous, _ = driver.await_request(0)
        assert (step, previous) == (0, NO_SLOT)
        driver.play(0, STEPS)
        second, step, previous, iteration = driver.await_request(0)
        assert second != first
        assert (step, previous, iteration) == (0, first, 1)
        assert driver.completed() == []
        driver.answer(0)
        assert driver.completed(1) == [first]
        assert store.references[first] == 1
        assert driver.await_request(0) == (second, 1, NO_SLOT, 1)


def test_groups_without_a_free_pooled_slot_are_parked_and_resume_first_in_first_out() -> None:
    store = slot_store(topology_of(groups=2, slots=3))
    with driving(store, lambda _: PooledSlots(store, 0)) as driver:
        driver.play(0, STEPS + 1)
        driver.play(1, STEPS)
        driver.wait_parked(1)
        # Group 0 still has something to do.
        driver.wait_phase("waiting for actions")
        driver.play(0, STEPS - 1)
        driver.wait_parked(0)
        driver.wait_phase("waiting for a slot")
        assert driver.requests(0) == []
        (slot,) = driver.completed(1)
        store.release(slot)
        assert driver.await_request(1)[:2] == (slot, 0)
        assert list(store.group_is_parked) == [True, False]
        driver.answer(1)
        (slot,) = driver.completed(1)
        store.release(slot)
        assert driver.await_request(0)[:2] == (slot, 0)
        assert not store.group_is_parked.any()


def test_a_fast_task_cannot_take_the_slots_of_a_slow_one() -> None:
    topology = replace(topology_of(groups=2, slots=6), tasks=2, slots_per_task_group=3)
    store = slot_store(topology)
    with driving(store, lambda _: PooledSlots(store, 0)) as driver:
        # Group 0 fills its three slots before group 1 has made a step; the last one waits for its last value.
        driver.play(0, 3 * STEPS)
        driver.wait_parked(0)
        assert sorted(driver.completed(2)) == [0, 1]
        assert driver.requests(1) == [1]
        driver.play(1, 3 * STEPS)
        driver.wait_parked(0, 1)
        of_slow = driver.completed(2)
        assert sorted(of_slow) == [3, 4]
        # Group 0 has waited longer, but these slots are not its.
        store.release(of_slow[1])
        assert driver.await_request(1)[:2] == (of_slow[1], 0)
        store.release(of_slow[0])
        driver.play(1, STEPS)
        assert driver.await_request(1)[:2] == (of_slow[0], 0)
        assert list(store.group_is_parked) == [True, False]
        assert driver.requests(0) == [1]
        store.release(1)
        assert driver.await_request(0)[:2] == (1, 0)
        assert not store.group_is_parked.any()


def test_groups_of_one_task_and_one_policy_share_their_slots_first_come_first_served() -> None:
    # Groups 0, 2, 4 and 6 have task 0; the first two of them belong to policy 0.
    topology = replace(topology_of(groups=8, slots=16), tasks=2, slots_per_task_group=2, players=PlayerIds(policies=2))
    store = slot_store(topology)
    slots = PooledSlots(store, 0)
    pool_of_slot = topology.pool_of_slot()
    groups = [HostedGroup(index=index, environments=cast("SavableGroup", None)) for index in range(8)]
    for group in groups:
        assert not slots.begin(group)
        assert pool_of_slot[group.slot] == topology.pool_of_group(group.index)

    def fill(index: int) -> bool:
        groups[index].step = STEPS
        return slots.advance(groups[index])

    # Group 2 takes both of the slots that are left in the pool that it shares with group 0.
    assert fill(2)
    assert fill(2)
    assert not fill(2)
    assert not fill(0)
    assert fill(4)
    assert fill(6)
    assert not fill(4)
    assert slots.num_parked == 3
    mine = [slot for slot in range(16) if pool_of_slot[slot] == topology.pool_of_group(0)]
    others = [slot for slot in range(16) if pool_of_slot[slot] == topology.pool_of_group(4)]
    assert slots.reclaim(others[0]) is groups[4]
    assert groups[4].slot == others[0]
    assert slots.reclaim(others[1]) is None
    assert slots.reclaim(mine[0]) is groups[2], "it has been parked longer"
    assert slots.reclaim(mine[1]) is groups[0]
    assert slots.num_parked == 0
    assert slots.reclaim(mine[2]) is None
    assert fill(0)
    assert groups[0].slot == mine[2]


def test_a_group_of_its_own_slots_asks_for_its_last_value_by_itself_and_runs_ahead_by_its_slots_alone() -> None:
    lag = 2
    store = slot_store(topology_of(groups=2, slots=2 * (lag + 1), slots_per_group=lag + 1))
    with driving(store, lambda _: GroupSlots(store, 0)) as driver:
        completed = []
        for group in (0, 1):
            alone = SteppedAlone(group)
            for iteration in range(lag + 1):
                for step in range(STEPS + 1):
                    assert driver.completed() == []
                    slot = driver.await_request(group)[0]
                    assert driver.stands_at(group) == (slot, step, NO_SLOT, iteration)
                    assert slot in store.topology.slots_of_group(group)
                    driver.answer(group)
                assert driver.completed(1) == [slot]
                completed.append(slot)
                assert_holds(store, slot, alone.next_slot())
                values = [[value_of(group, iteration, t)] * ROWS for t in range(STEPS + 1)]
                np.testing.assert_array_equal(store.arrays["value"][slot], values)
            driver.wait_parked(group)
        assert sorted(completed) == list(range(2 * (lag + 1)))
        driver.wait_phase("waiting for a slot")
        # A slot resumes the group that it belongs to, and no other.
        slot = store.topology.slots_of_group(1)[0]
        store.release(slot)
        assert driver.await_request(1) == (slot, 0, NO_SLOT, lag + 1)
        assert driver.requests(0) == [1]
        assert list(store.group_is_parked) == [True, False]


def evicting(store: ReplayStore, remover: str = "fifo") -> EvictingSlots:
    return EvictingSlots(store, 0, make_remover(remover, np.random.default_rng(0), store.priority_of))


def priorities(store: ReplayStore, slot: int) -> list[float]:
    """Sum of the priorities of each step of a slot."""
    leaves = np.empty(STEPS * ROWS, np.float32)
    store.tree.priorities(leaves, slot * STEPS * ROWS)
    return [float(of_step.sum()) for of_step in leaves.reshape(STEPS, ROWS)]


def test_steps_can_be_drawn_as_soon_as_they_are_made_and_are_evicted_before_they_are_overwritten() -> None:
    store = replay_store(topology_of(groups=1, slots=3))
    alone = SteppedAlone(0)
    with driving(store, lambda _: evicting(store)) as driver:
        slots = []
        for iteration in range(7):
            expected = alone.next_slot()
            for step in range(STEPS):
                slot = driver.await_request(0)[0]
                assert driver.stands_at(0) == (slot, step, NO_SLOT, iteration)
                made = expected["valid"][:step].sum(axis=1)
                assert [priority > 0 for priority in priorities(store, slot)] == [
                    step_made > 0 for step_made in made
                ] + [False] * (STEPS - step)
                driver.answer(0)
            driver.await_request(0)
            assert_holds(store, slot, expected)
            slots.append(slot)
        # The oldest slot is evicted each time; with the slot that begins now, eight were begun, and three of them free.
        assert slots == [slots[i % 3] for i in range(7)]
        assert sum(store.generation) == 8 - 3
        assert store.limiter.inserted == store.limiter.held


def test_no_two_groups_ever_write_into_one_slot() -> None:
    store = replay_store(topology_of(groups=3, slots=6), n_step=2)
    with driving(store, lambda _: evicting(store, "uniform")) as driver:
        random = np.random.default_rng(0)
        for _ in range(150):
            requests = driver.requests(3)
            assert len({driver.stands_at(group)[0] for group in requests}) == 3
            driver.answer(int(random.choice(requests)))
    assert store.tree.verify()


def test_no_slot_follows_itself_whatever_is_evicted() -> None:
    class Newest:
        def choose(self, completed: deque[int]) -> int:
            return len(completed) - 1

    store = replay_store(topology_of(groups=1, slots=3))
    with driving(store, lambda _: EvictingSlots(store, 0, Newest())) as driver:
        before = -1
        for _ in range(8):
            slot = driver.await_request(0)[0]
            assert slot != before
            before = slot
            driver.play(0, STEPS)
    assert store.tree.verify()


def test_what_an_earlier_run_left_is_evicted_last() -> None:
    topology, config = topology_of(groups=1, slots=4), ReplayConfig(capacity=1000, min_size=1, n_step=1)
    arena = replay_arena(topology, config, spec_of())
    store = ReplayStore(arena, spec_of(), topology, config, UNLIMITED, create=True)
    with driving(store, lambda _: evicting(store)) as driver:
        left = driver.await_request(0)[0]
        driver.play(0, STEPS)
        driver.await_request(0)
    before = priorities(store, left)
    assert sum(before) > 0.0
    resumed = ReplayStore(arena, spec_of(), topology, config, UNLIMITED, create=True, is_kept=True)
    with driving(resumed, lambda _: evicting(resumed)) as driver:
        used = []
        for _ in range(3):
            used.append(driver.await_request(0)[0])
            assert priorities(resumed, left) == before
            driver.play(0, STEPS)
        assert {*used, left} == {0, 1, 2, 3}
        assert driver.await_request(0)[0] == left
        assert sum(priorities(resumed, left)) == 0.0


def test_all_episodes_are_reported_though_the_ring_is_full_meanwhile() -> None:
    store = replay_store(topology_of(groups=1, slots=2))
    alone, expected = SteppedAlone(0), []
    with driving(store, lambda _: evicting(store)) as driver:
        for _ in range(12):
            driver.play(0, STEPS)
            ended = alone.next_slot()
            for step, row in np.argwhere(ended["episode_length"]).tolist():
                expected.append((ended["episode_return"][step, row], ended["episode_length"][step, row]))
        driver.await_request(0)
        # The ring has three places, one for each group and slot.
        assert len(expected) > 6
        episodes = [unpack_episode(message) for message in driver.completed(len(expected))]
    assert [(episode.episode_return, episode.episode_length) for episode in episodes] == expected


def _stacked_spec(depth: int = 3) -> EnvSpec:
    return EnvSpec(
        name="counting",
        observation={
            "frames": ArraySpec(shape=(depth, 2), dtype="int32", stack=FrameStack(depth=depth, padding="zero"))
        },
        action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    )


class _Counting:
    """Shows the number of the step in stacks of frames; an episode never ends."""

    num_rows = ROWS

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.metrics = InfoMetrics()
        self.stack = np.zeros((ROWS, 3, 2), np.int32)

    def reset(self, into: ObservationView) -> None:
        into.reset[...] = True
        self._show(into, 100)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        assert discrete is not None
        into.reset[...] = False
        self._show(into, int(self.stack[0, -1, 0]) + 1)
        outcome.reward[...], outcome.valid[...] = 1.0, True
        outcome.terminated[...] = outcome.truncated[...] = False
        outcome.episode_length[...] = 0

    def _show(self, into: ObservationView, number: int) -> None:
        self.stack = np.roll(self.stack, -1, axis=1)
        self.stack[:, -1] = number
        into.observation["frames"][...] = self.stack

    def close(self) -> None: ...

    def snapshot(self) -> bytes | None:
        return None

    def restore(self, snapshot: bytes) -> None:
        raise AssertionError("nothing was saved")


def test_slots_get_the_newest_frame_of_each_stack_and_whole_stacks_stand_beside_them() -> None:
    store = replay_store(topology_of(groups=1, slots=2), spec=_stacked_spec())
    with driving(store, lambda _: evicting(store), make=lambda *_: _Counting()) as driver:
        number = 100
        for _ in range(3):
            for step in range(STEPS):
                slot = driver.await_request(0)[0]
                frames = store.observation["frames"][slot, : step + 1]
                np.testing.assert_array_equal(frames[:, 0, 0], np.arange(number - step, number + 1))
                whole = store.shown(0, slot, step)["frames"]
                expected = [max(n, 0) if n >= 100 else 0 for n in (number - 2, number - 1, number)]
                np.testing.assert_array_equal(whole[0, :, 0], expected)
                driver.answer(0)
                number += 1


@pytest.mark.parametrize("num_slots", [1, 2, 5])
def test_a_reclaimed_slot_is_used_before_one_is_evicted(num_slots: int) -> None:
    store = replay_store(topology_of(groups=1, slots=num_slots))
    slots = evicting(store)
    taken = [slots._take_slot() for _ in range(num_slots)]
    assert taken == list(range(num_slots))
    assert slots.reclaim(taken[-1]) is None
    assert slots._take_slot() == taken[-1]


def test_each_policy_is_told_of_its_steps_its_episodes_and_its_matches() -> None:
    spec = replace(spec_of(), agents=("left", "right"))
    players = PlayerIds(policies=2, guests=1)
    topology = replace(topology_of(groups=1, slots=4), group_rows=6, agents_per_env=2, players=players)
    config = ReplayConfig(capacity=1000, min_size=1, n_step=1)
    layout = ArenaLayout()
    fields = replay_fields(spec, rollout_length=STEPS, has_players=True)
    add_replay_to_layout(layout, fields, topology, config)
    add_beside_to_layout(layout, spec, fields, topology)
    store = ReplayStore(Arena.create(layout, poison=True), spec, topology, config, UNLIMITED, create=True)
    slots = evicting(store)
    group = HostedGroup(index=0, environments=cast("SavableGroup", None))
    slots.begin(group)
    # Policy 1 against itself and against policy 0; a guest plays the last row.
    ids = np.array([1, 1, 1, 0, 0, 2], np.int16)
    for step in range(2):
        store.arrays["policy_id"][group.slot, step] = ids
        for name in ("acts", "reset", "valid", "terminated", "truncated"):
            array = store.arrays[name][group.slot, step]
            array[:] = name in ("acts", "valid")
        store.arrays["reward"][group.slot, step] = 0.0
    assert slots.advance(group)
    returns, lengths = slots.views.episodes[0]
    returns[:], lengths[:] = np.arange(6), 5
    store.arrays["match_return"][group.slot, 1] = returns
    group.step = 1
    store.arrays["terminated"][group.slot, 0] = True
    assert slots.advance(group)
    assert [limiter.inserted for limiter in store.limiters] == [int((ids == policy).sum()) for policy in (0, 1)]
    messages = np.empty(100, np.int64)
    for policy in (0, 1):
        count = store.completed[policy].get_many(messages, 0.0)
        found = messages[:count].tolist()
        matches = [match for message in found if (match := unpack_match(message)) is not None]
        episodes = [unpack_episode(message) for message in found if unpack_match(message) is None]
        assert episodes == [EpisodeEnd(float(row), 5) for row in np.flatnonzero(ids == policy).tolist()]
        assert matches == list(matches_of(ids[None], returns[None], 2, policy=policy))
        assert matches
