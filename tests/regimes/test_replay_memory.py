"""The memory of a replay: what one policy, several and resumed ones find in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.regimes.replay import plan_topology
from rollmill.regimes.replay_memory import allocate_replay
from rollmill.regimes.setup import Memory, NetworkSizes, Probed
from rollmill.runtime.ranks import Ranks
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_file import adopt_replay

SPEC = EnvSpec(
    name="any",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
SMALL: dict[str, Any] = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 8,
    "total_steps": 1000,
    "replay.capacity": 400,
    "replay.min_size": 100,
    "replay.update_interval": 2,
}


def allocate(run_dir: Path, saved: tuple[int, ...] | None = None, **settings: Any) -> tuple[Memory, ReplayStore]:
    config = rollmill.make_config("gym/CartPole-v1", {**SMALL, **settings}, algo="dqn").resolved()
    networks = (NetworkSizes(0, 64, 10),) * len(config.population.names)
    probed = Probed(SPEC, networks, saved_steps=saved)
    topology = plan_topology(config, probed)
    steps = None if saved is None else sum(saved)
    memory = allocate_replay(config, probed, topology, run_dir, steps, Ranks(), trust=False)
    assert memory.replay is not None
    store = ReplayStore({**memory.arena, **memory.replay}, SPEC, topology, config.replay, memory.limits)
    return memory, store


def test_one_policy_has_the_memory_that_it_always_had(tmp_path: Path) -> None:
    memory, store = allocate(tmp_path)
    names = {name for name in memory.replay or {} if name.startswith("replay/")}
    assert names == {f"replay/{name}" for name in ("next", "previous", "begun", "tree", "counters", "limits")}
    assert "policy_id" not in store.arrays
    assert len(store.trees) == len(store.limiters) == 1


def test_a_resumed_policy_counts_from_its_own_checkpoint(tmp_path: Path) -> None:
    memory, store = allocate(tmp_path, (700, 250), **{"population.policies": 2})
    assert [limits.base for limits in memory.limits] == [700, 250]
    assert [limiter.inserted for limiter in store.limiters] == [700, 250]
    # Of the 50 steps that are left each policy makes half, and learns in the second half of these.
    assert [limits.min_size for limits in memory.limits] == [12, 12]
    assert {limits.total_steps for limits in memory.limits} == {1000}
    assert not store.limiter.is_full
    assert memory.notes == ("the replay was in memory and is lost: it is refilled before learning resumes",)


@pytest.mark.parametrize("policies", ["a,b", "b,a"])
def test_a_file_belongs_to_its_policies(policies: str, tmp_path: Path) -> None:
    in_a_file = {"replay.storage": "file", "population.policies": "a,b"}
    _, store = allocate(tmp_path, **in_a_file)
    for limiter, steps in zip(store.limiters, (30, 20), strict=True):
        limiter.insert(steps, reserved=0)
    adopt_replay(tmp_path)
    memory, again = allocate(tmp_path, (25, 20), **{**in_a_file, "population.policies": policies})
    if policies == "a,b":
        assert memory.inserted == (30, 20)
        assert memory.steps_done(45) == 50
        assert [limiter.inserted for limiter in again.limiters] == [30, 20]
        assert memory.notes == (f"resumes with the replay in {tmp_path}",)
    else:
        assert memory.inserted == ()
        assert "is recreated: it was written with policies=['a', 'b'] (now ['b', 'a'])" in memory.notes[0]


def test_guests_give_a_replay_another_shape(tmp_path: Path) -> None:
    together = replace(SPEC, agents=("red", "blue"))
    config = rollmill.make_config("gym/CartPole-v1", {**SMALL, "population.guests": "random"}, algo="dqn").resolved()
    probed = Probed(together, (NetworkSizes(0, 64, 10),))
    topology = plan_topology(config, probed)
    memory = allocate_replay(config, probed, topology, tmp_path, None, Ranks(), trust=False)
    assert memory.replay is not None
    assert "policy_id" in memory.replay
