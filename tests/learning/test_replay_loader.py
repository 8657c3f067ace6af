"""A loader without drawable batches: it ends at the end of a run, and raises otherwise."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rollmill.learning.batch_loader import BatchLoader
from rollmill.learning.replay_source import NothingToDrawError, ReplaySource
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
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


def make_store(limits: RateLimits) -> ReplayStore:
    config = ReplayConfig(min_size=1)
    topology = Topology(
        rollout_length=4,
        group_rows=2,
        worker_of_group=(0,),
        policy_worker_of_group=(0,),
        slots_of_worker=(3,),
        num_policy_workers=1,
    )
    fields = replay_fields(SPEC, rollout_length=4, state_size=0, stride=1)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, config)
    add_beside_to_layout(layout, SPEC, fields, topology)
    return ReplayStore(Arena.create(layout, poison=True), SPEC, topology, config, limits, create=True)


def make_loader(store: ReplayStore) -> BatchLoader[Drawn]:
    config = ReplayConfig(min_size=1)
    sampler = make_sampler(store, config, ReturnRule(0.99), np.array([0, 0], np.uint64))
    return BatchLoader(ReplaySource(store, sampler, config, batch_size=8, total_steps=100))


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
