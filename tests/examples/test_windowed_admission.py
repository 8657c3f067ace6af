"""The example of an admission rule of one's own: who passes whom, and how old samples get."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollmill
from rollmill.envs.user_code import import_user_code
from rollmill.learning import admission
from rollmill.reporting.metrics import read_metrics
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.slots import SlotStore, Topology, add_to_layout, slot_fields

EXAMPLE = Path(__file__).parents[2] / "examples/windowed_admission.py"
SPEC = EnvSpec(
    name="counting",
    observation={"obs": ArraySpec(shape=(1,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
SLOTS = 6


import_user_code(str(EXAMPLE))


def a_store() -> SlotStore:
    topology = Topology(
        rollout_length=2, group_rows=1, worker_of_group=(0,), policy_worker_of_group=(0,), slots_of_worker=(SLOTS,)
    )
    fields = slot_fields(SPEC, rollout_length=2, state_size=0)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology)
    store = SlotStore(Arena.create(layout), fields, topology, create=True)
    store.arrays["episode_length"][...] = 0
    return store


@settings(max_examples=60, deadline=None)
@given(window=st.integers(1, 5), data=st.data())
def test_at_most_so_many_younger_slots_pass_and_none_is_lost(window: int, data: st.DataObject) -> None:
    store = a_store()
    make: Callable[..., Any] = admission.ADMISSIONS.find("windowed")
    rule = make(store, 1, window)
    free, filling, admitted = list(range(SLOTS)), list[int](), list[int]()
    begun = completed = 0
    while completed < 30:
        may_complete = bool(filling)
        if begun < 30 and free and (not may_complete or data.draw(st.booleans())):
            slot = free.pop(0)
            store.number(slot)
            assert store.ticket[slot] == begun
            begun += 1
            filling.append(slot)
            continue
        slot = filling.pop(data.draw(st.integers(0, len(filling) - 1)))
        store.retain(slot)
        rule.add(slot)
        completed += 1
        while (batch := rule.take()) is not None:
            (used,) = batch.slots
            admitted.append(int(store.ticket[used]))
            store.release(used)
            free.append(used)
    assert sorted(admitted) == list(range(30)), "each slot exactly once"
    for place, ticket in enumerate(admitted):
        passing = [other for other in admitted[:place] if other > ticket]
        assert len(passing) <= window - 1


class Straggling(gymnasium.Env[Any, Any]):
    """One of its copies is slow."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self._is_slow = self.made == 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 20
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._is_slow:
            time.sleep(0.02)
        self._left -= 1
        return np.zeros(1, np.float32), float(action), self._left == 0, False, {}


@pytest.mark.slow
def test_the_lag_of_a_straggler_stays_below_the_bound(tmp_path: Path) -> None:
    bound_of = next(m for m in sys.modules.values() if getattr(m, "__file__", None) == str(EXAMPLE)).lag_bound
    run_settings: dict[str, Any] = {
        "admission": "windowed",
        "num_envs": 4,
        "envs_per_group": 1,
        "rollout_length": 8,
        "learner.batch_size": 16,
        "learner.minibatches": 1,
        "learner.epochs": 2,
        "num_slots": 8,
        "rollout.num_workers": 2,
        "env.imports": (str(EXAMPLE),),
        "total_steps": 1200,
    }
    run = rollmill.train(Straggling, run_dir=tmp_path / "run", quiet=True, **run_settings)
    lags = [row["policy_lag_max"] for row in read_metrics(run.dir) if row["policy_lag_max"] is not None]
    assert lags
    assert max(lags) <= bound_of(num_slots=8, slots_per_batch=2, sgd_steps_per_batch=2, publish_every=2, window=8)


def test_a_name_that_nobody_registered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"admission='windowd': this admission rule is not known; did you mean 'windowed'"
    ):
        rollmill.train("gym/CartPole-v1", admission="windowd", run_dir=tmp_path / "run", quiet=True, total_steps=100)


def test_it_is_for_async_alone() -> None:
    with pytest.raises(ValueError, match="admission belongs to regime=async; this run has regime=lockstep"):
        rollmill.make_config("gym/CartPole-v1", {"regime": "lockstep", "admission": "windowed"})
