"""A loader without drawable batches: it ends at the end of a run, and raises otherwise."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rollmill.learning.batch_loader import BatchLoader, ReadyBatches
from rollmill.learning.replay_source import NothingToDrawError, ReplaySource
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.episodes import EpisodeEnd, pack_episode, pack_match
from rollmill.storage.matches import Match
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.replay import ReplayStore, add_beside_to_layout, add_to_layout, replay_fields
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import Drawn, ReturnRule
from rollmill.storage.sequence_sampler import make_sampler
from rollmill.storage.slots import Topology

SPEC = EnvSpec(
    name="test",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)


def make_store(limits: RateLimits, policies: int = 1) -> ReplayStore:
    config = ReplayConfig(min_size=1)
    topology = Topology(
        rollout_length=4,
        group_rows=2,
        worker_of_group=(0,),
        policy_worker_of_group=(0,),
        slots_of_worker=(3,),
        num_policy_workers=1,
        players=PlayerIds(policies),
    )
    fields = replay_fields(SPEC, rollout_length=4, state_size=0, stride=1, has_players=policies > 1)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, config)
    add_beside_to_layout(layout, SPEC, fields, topology)
    return ReplayStore(Arena.create(layout, poison=True), SPEC, topology, config, limits, create=True)


def make_loader(store: ReplayStore, ready: ReadyBatches | None = None) -> BatchLoader[Drawn]:
    config = ReplayConfig(min_size=1)
    sampler = make_sampler(store, config, ReturnRule(0.99), np.array([0, 0], np.uint64))
    source = ReplaySource(store, sampler, config, batch_size=8, total_steps=100, learner=store.policy)
    return BatchLoader(source, ready)


def test_loader_ends_if_no_batch_can_be_drawn() -> None:
    store = make_store(RateLimits(update_interval=2.0, min_size=10, error_buffer=10.0, total_steps=100))
    store.limiter.set(inserted=100, drawn=20)
    loader = make_loader(store)
    deadline = time.monotonic() + 10
    while not store.limiter.is_done and time.monotonic() < deadline:
        assert loader.next(timeout_s=0.01) is None
    loader.close()
    assert store.limiter.is_done
    assert store.limiter.drawn == 45
    assert store.limiter.skipped == 25


def test_deadlocked_replay_raises() -> None:
    store = make_store(RateLimits(update_interval=2.0, min_size=10, error_buffer=10.0, total_steps=100))
    store.limiter.set(inserted=20, drawn=0)
    assert not store.limiter.try_reserve(2)
    loader = make_loader(store)
    with pytest.raises(NothingToDrawError, match=r"after 20 agent steps nothing .* Use a larger replay.capacity"):
        loader.next(timeout_s=60.0)
    loader.close()


def test_a_policy_without_steps_skips_its_batches_and_the_others_go_on() -> None:
    """Others have overwritten its steps while it waited for a batch."""
    limits = RateLimits(update_interval=2.0, min_size=10, error_buffer=10.0, total_steps=100)
    store = make_store(limits, policies=2)
    store.limiters[0].set(inserted=20, drawn=0)
    assert not store.try_reserve([2, 2])
    loader = make_loader(store)
    deadline = time.monotonic() + 30
    # A batch that is tried in vain counts as drawn for a moment, in which steps can be reserved, too.
    while not store.limiters[0].skipped and time.monotonic() < deadline:
        assert loader.next(timeout_s=0.01) is None
    loader.close()
    assert store.try_reserve([2, 2])
    assert store.limiters[0].skipped == store.limiters[0].drawn == 10
    assert store.limiters[1].drawn == 0


def test_the_loaders_of_a_process_tell_when_a_batch_is_ready_and_bring_matches() -> None:
    limits = RateLimits(update_interval=2.0, min_size=2, error_buffer=10.0, total_steps=100)
    store = make_store(limits, policies=2)
    store.policy, store.limiter = 1, store.limiters[1]
    ready = ReadyBatches()
    config = ReplayConfig(min_size=1)
    sampler = make_sampler(store, config, ReturnRule(0.99), np.array([0, 0], np.uint64))
    source = ReplaySource(store, sampler, config, batch_size=8, total_steps=100, learner=1)
    loader = BatchLoader(source, ready)
    try:
        for name in ("reward", "terminated", "truncated", "policy_version", "action_discrete"):
            store.arrays[name][0] = 0
        store.arrays["valid"][0] = True
        store.arrays["reset"][0] = False
        store.arrays["policy_id"][0] = 1
        store.observation["obs"][0] = 3.0
        store.begin(0, -1)
        assert not ready.arrived.is_set()
        assert store.try_reserve([0, 2])
        counts = np.zeros(2, np.int64)
        assert store.commit(0, 0, np.zeros(2, np.int64), counts) == 2
        assert counts.tolist() == [0, 2]
        store.limiters[1].insert(2, reserved=2)
        store.completed[1].put(0, pack_match(Match(0, 0.5)))
        store.completed[1].put(0, pack_episode(1.5, 4))
        store.wake_learners()
        assert ready.arrived.wait(30.0)
        batch = loader.next(timeout_s=10.0)
        assert batch is not None
        assert set(batch.leaf.tolist()) <= {0, 1}
        deadline = time.monotonic() + 10
        found: list[object] = []
        while len(found) < 2 and time.monotonic() < deadline:
            found += [*source.take_matches(), *source.take_episodes()]
            time.sleep(0.01)
        assert found in ([Match(0, 0.5), EpisodeEnd(1.5, 4)], [EpisodeEnd(1.5, 4), Match(0, 0.5)])
    finally:
        loader.close()


def test_loader_waits_for_pending_steps() -> None:
    store = make_store(RateLimits(update_interval=2.0, min_size=10, error_buffer=10.0, total_steps=100))
    store.limiter.set(inserted=18, drawn=0)
    assert store.limiter.try_reserve(2)
    loader = make_loader(store)
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        assert loader.next(timeout_s=0.1) is None
    loader.close()
    assert store.limiter.drawn == 0
