"""What a policy worker waits for before it computes."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollmill.inference.config import InferenceConfig
from rollmill.inference.phases import ROLE
from rollmill.inference.worker import PolicyWorker
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState, flat_nbytes
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.ledger import Ledger
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import slots, weights

NUM_GROUPS = 4
WORKER_OF_GROUP = (0, 0, 1, 1)
SPEC = EnvSpec(
    name="test",
    observation={"observation": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="single"),
)


class Sampler:
    """The rollout workers' side of a store with ``NUM_GROUPS`` groups."""

    def __init__(self, store: slots.SlotStore) -> None:
        self.store = store
        for group in range(NUM_GROUPS):
            store.group_slot[group] = group
            store.group_step[group] = 0

    def ask(self, *groups: int) -> None:
        for group in groups:
            assert self.store.requests[0].put(WORKER_OF_GROUP[group], group)

    def answered(self, *, within_s: float, at_least: int = 1) -> list[int]:
        messages, answers = np.empty(16, np.int64), []
        deadline = time.monotonic() + within_s
        while len(answers) < at_least and time.monotonic() < deadline:
            for inbox in self.store.inboxes:
                count = inbox.get_many(messages, 0.001)
                answers += [slots.decode(message)[1] for message in messages[:count].tolist()]
        return sorted(answers)


@contextmanager
def serving(**options: Any) -> Iterator[Sampler]:
    """A policy worker in a thread, with groups of two rows and published weights."""
    topology = slots.Topology(
        rollout_length=2,
        group_rows=2,
        worker_of_group=WORKER_OF_GROUP,
        policy_worker_of_group=(0,) * NUM_GROUPS,
        slots_of_worker=(2, 2),
    )
    model = ActorCritic(SPEC.observation, SPEC.action, ModelConfig())
    fields = slots.slot_fields(SPEC, rollout_length=2, state_size=0)
    layout = ArenaLayout()
    slots.add_to_layout(layout, fields, topology)
    weights.add_to_layout(layout, nbytes=flat_nbytes(model))
    arena = Arena.create(layout)
    store = slots.SlotStore(arena, fields, topology, create=True)
    published = weights.WeightStore(arena, create=True)
    published.publish(0, FlatState(copy.deepcopy(model), alias=True).bytes)
    stop = threading.Event()
    context: Any = SimpleNamespace(stop=stop, ledger=Ledger.private(ROLE))
    config = InferenceConfig(device="cpu", precision="fp32", **options)
    worker = PolicyWorker(context, store, published, 0, model, action=SPEC.action, config=config, seed=0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield Sampler(store)
    finally:
        stop.set()
        store.wake_all()
        thread.join(10.0)
        assert not thread.is_alive()


LONG_US = 60_000_000


@pytest.mark.parametrize("least", [2, "auto"])
def test_small_groups_are_waited_for_and_answered_together(least: Any) -> None:
    with serving(min_batch_groups=least, max_wait_us=LONG_US) as sampler:
        sampler.ask(0)
        assert sampler.answered(within_s=0.3) == []
        sampler.ask(2)
        assert sampler.answered(within_s=5.0, at_least=2) == [0, 2]


def test_not_more_than_half_of_the_groups_under_way_are_waited_for() -> None:
    with serving(min_batch_groups=NUM_GROUPS, max_wait_us=LONG_US) as sampler:
        sampler.ask(0, 2)
        assert sampler.answered(within_s=5.0, at_least=2) == [0, 2]


def test_a_rollout_worker_without_another_group_to_step_is_answered_at_once() -> None:
    with serving(min_batch_groups=2, max_wait_us=LONG_US) as sampler:
        # Group 1 waits for a slot, 2 and 3 are stepped by the other worker.
        sampler.store.group_is_parked[1] = True
        sampler.ask(0)
        assert sampler.answered(within_s=5.0) == [0]


def test_a_group_that_comes_to_wait_for_a_slot_ends_the_wait() -> None:
    with serving(min_batch_groups=2, max_wait_us=LONG_US) as sampler:
        sampler.ask(3)
        assert sampler.answered(within_s=0.3) == []
        sampler.store.group_is_parked[2] = True
        assert sampler.answered(within_s=5.0) == [3]


def test_the_wait_for_more_groups_ends() -> None:
    with serving(min_batch_groups=2, max_wait_us=1_000) as sampler:
        sampler.ask(1)
        assert sampler.answered(within_s=5.0) == [1]


@pytest.mark.parametrize("options", [{"min_batch_groups": 1}, {"skip_policy": True, "random_actions": True}])
def test_a_worker_that_gains_nothing_from_larger_batches_waits_for_none(options: dict[str, Any]) -> None:
    with serving(max_wait_us=LONG_US, **options) as sampler:
        sampler.ask(1)
        assert sampler.answered(within_s=5.0) == [1]
