"""Damage to a replay of an earlier session is found before the run resumes with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.rate_limiter import RateLimits, resumed_limits
from rollmill.storage.replay import (
    ReplayStore,
    add_beside_to_layout,
    add_to_layout,
    damage_of,
    replay_fields,
)
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_file import OpenedReplay, adopt_replay, close_replay, open_replay
from rollmill.storage.slots import Topology

SPEC = EnvSpec(
    name="numbers",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
CONFIG = ReplayConfig(min_size=1)
LIMITS = RateLimits(update_interval=2.0, min_size=10, error_buffer=10.0, total_steps=100)
TOPOLOGY = Topology(
    rollout_length=4,
    group_rows=2,
    worker_of_group=(0,),
    policy_worker_of_group=(0,),
    slots_of_worker=(3,),
    num_policy_workers=1,
)
FIELDS = replay_fields(SPEC, rollout_length=4)


def open_it(run_dir: Path, *, resume: bool) -> OpenedReplay:
    layout = ArenaLayout()
    add_to_layout(layout, FIELDS, TOPOLOGY, CONFIG)
    damage = partial(damage_of, topology=TOPOLOGY, config=CONFIG)
    return open_replay(run_dir, layout, {}, resume=resume, damage=damage)


def store_in(opened: OpenedReplay) -> ReplayStore:
    beside = ArenaLayout()
    add_beside_to_layout(beside, SPEC, FIELDS, TOPOLOGY)
    limits = resumed_limits(opened.arena, LIMITS) if opened.is_kept else LIMITS
    arrays = {**Arena.create(beside), **opened.arena}
    return ReplayStore(arrays, SPEC, TOPOLOGY, CONFIG, limits, create=True, is_kept=opened.is_kept)


def leave_one(run_dir: Path) -> Path:
    """A whole slot and a begun one."""
    opened = open_it(run_dir, resume=False)
    store = store_in(opened)
    store.arrays["valid"][:] = True
    for name in ("reward", "terminated", "truncated"):
        store.arrays[name][:] = 0
    pending = np.zeros(2, np.int64)
    store.begin(0, -1)
    for step in range(4):
        assert store.limiter.try_reserve(2)
        store.commit(0, step, pending)
        store.limiter.insert(2, reserved=2)
    store.begin(1, 0)
    adopt_replay(run_dir)
    close_replay(run_dir)
    return run_dir / "replay" / "slots"


def fill(byte: bytes) -> Callable[[Path], None]:
    return lambda slots: slots.write_bytes(byte * slots.stat().st_size) and None


def garble(slots: Path) -> None:
    slots.write_bytes(np.random.default_rng(0).bytes(slots.stat().st_size))


def change(name: str, value: float) -> Callable[[Path], None]:
    def harm(slots: Path) -> None:
        layout = ArenaLayout()
        add_to_layout(layout, FIELDS, TOPOLOGY, CONFIG)
        Arena.open_file(layout, slots)[name][:] = value

    return harm


def test_a_sound_replay_is_kept(tmp_path: Path) -> None:
    leave_one(tmp_path)
    opened = open_it(tmp_path, resume=True)
    assert opened.is_kept
    assert opened.note == ""
    store = store_in(opened)
    assert store.limiter.inserted == 8
    assert store.take_over(range(3)) == [0]


@pytest.mark.parametrize(
    ("harm", "note"),
    [
        (fill(b"\0"), "update interval"),
        (fill(b"\xff"), "update interval"),
        (garble, "update interval|counters"),
        (change("replay/limits", 0.0), "update interval"),
        (change("replay/counters", -5), "counters"),
        (change("replay/next", 0x7FFFFFFF), "replay/next names nonexistent slots"),
        (change("replay/previous", 3), "replay/previous names nonexistent slots"),
        (change("replay/tree", 0), "tree cannot be used"),
    ],
)
def test_a_damaged_replay_is_recreated_with_a_note(harm: Callable[[Path], None], note: str, tmp_path: Path) -> None:
    slots = leave_one(tmp_path)
    harm(slots)
    opened = open_it(tmp_path, resume=True)
    assert not opened.is_kept
    assert opened.note.startswith(f"{slots} is damaged")
    assert any(part in opened.note for part in note.split("|"))
    assert store_in(opened).limiter.inserted == 0


def test_priorities_that_are_none_are_found(tmp_path: Path) -> None:
    slots = leave_one(tmp_path)
    data = np.fromfile(slots, np.float32)
    ones = np.flatnonzero(data == 1.0)  # what the eight transitions have, among others
    data[ones] = np.nan
    data.tofile(slots)
    opened = open_it(tmp_path, resume=True)
    assert not opened.is_kept
    assert "priorities" in opened.note
