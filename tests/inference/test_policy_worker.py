"""What a policy worker waits for before it computes."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rollmill.algorithms.base import Action
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.inference.acting_weights import NewestWeights
from rollmill.inference.batching import FixedGroups, ReadyGroups
from rollmill.inference.config import InferenceConfig
from rollmill.inference.explorers import GeneratorExplorer, KeyedExplorer
from rollmill.inference.observation_readers import SlotReader
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.inference.worker import PolicyWorker
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState, flat_nbytes
from rollmill.roles import POLICY_WORKER
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import Ledger
from rollmill.runtime.row_noise import RowNoise
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import slots, weights
from rollmill.storage.player_ids import PlayerIds

NUM_GROUPS = 4
WORKER_OF_GROUP = (0, 0, 1, 1, 2, 2, 3, 3)
SPEC = EnvSpec(
    name="test",
    observation={"observation": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="single"),
)


class Sampler:
    """The rollout workers' and the learner's side of a store."""

    def __init__(self, store: slots.SlotStore, published: weights.WeightStore) -> None:
        self.store = store
        self.published = published
        for group in range(store.topology.num_groups):
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


def a_model(**options: Any) -> ActorCritic:
    return ActorCritic(SPEC.observation, SPEC.action, ModelConfig(mlp_sizes=(64, 64), **options))


@contextmanager
def serving(
    *,
    policy_worker_of_group: tuple[int, ...] = (0,) * NUM_GROUPS,
    precision: Any = "fp32",
    model: ActorCritic | None = None,
    inferred: Any = "float32",
    **options: Any,
) -> Iterator[Sampler]:
    """Policy worker 0 in a thread, with groups of two rows, two on each rollout worker, and published weights."""
    num_groups = len(policy_worker_of_group)
    topology = slots.Topology(
        rollout_length=2,
        group_rows=2,
        worker_of_group=WORKER_OF_GROUP[:num_groups],
        policy_worker_of_group=policy_worker_of_group,
        slots_of_worker=(2,) * (num_groups // 2),
        num_policy_workers=max(policy_worker_of_group) + 1,
    )
    model = model or a_model()
    fields = slots.slot_fields(SPEC, rollout_length=2, state_size=model.state_size, inferred=inferred)
    layout = ArenaLayout()
    slots.add_to_layout(layout, fields, topology)
    weights.add_to_layout(layout, nbytes=flat_nbytes(model))
    arena = Arena.create(layout)
    store = slots.SlotStore(arena, fields, topology, create=True)
    published = weights.WeightStore(arena, create=True)
    published.publish(0, FlatState(copy.deepcopy(model), alias=True).bytes)
    stop = threading.Event()
    context = ChildContext(
        name="policy worker 0",
        stop=stop,
        send=lambda message: None,
        ledger=Ledger.private(POLICY_WORKER),
        log=logging.getLogger("test"),
    )
    config = InferenceConfig(device="cpu", precision=precision, **options)
    device = torch.device("cpu")
    algorithm = PPO.over(model, OnPolicyConfig()).eval()
    batching = ReadyGroups(store, 0, config, stop, on_cpu=True)
    worker = PolicyWorker(
        context,
        store,
        index=0,
        action=SPEC.action,
        config=config,
        device=device,
        batching=batching,
        weights=[NewestWeights(published, algorithm, is_lowered=precision == "bf16")],
        reader=SlotReader(store, max_groups=batching.max_groups, device=device, may_view=True),
        explorer=GeneratorExplorer(topology, device=device, seed=0),
        states=RecurrentStates(
            store, topology.groups_of_policy_worker(0), state_size=model.state_size, device=device, is_shared=False
        ),
        seed=0,
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield Sampler(store, published)
    finally:
        stop.set()
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
        sampler.store.park(1)
        sampler.ask(0)
        assert sampler.answered(within_s=5.0) == [0]


def test_a_group_that_comes_to_wait_for_a_slot_ends_the_wait() -> None:
    with serving(min_batch_groups=2, max_wait_us=LONG_US) as sampler:
        sampler.ask(3)
        assert sampler.answered(within_s=0.3) == []
        sampler.store.park(2)
        assert sampler.answered(within_s=5.0) == [3]


def test_the_wait_for_more_groups_ends() -> None:
    with serving(min_batch_groups=2, max_wait_us=1_000) as sampler:
        sampler.ask(1)
        assert sampler.answered(within_s=5.0) == [1]


def test_more_groups_than_there_are_cannot_be_waited_for() -> None:
    with serving(min_batch_groups=100, max_wait_us=LONG_US) as sampler:
        sampler.ask(0)
        assert sampler.answered(within_s=0.3) == []
        sampler.ask(2)
        assert sampler.answered(within_s=5.0, at_least=2) == [0, 2]


def test_a_stop_ends_the_wait() -> None:
    with serving(min_batch_groups=2, max_wait_us=LONG_US) as sampler:
        sampler.ask(0)
        assert sampler.answered(within_s=0.3) == []
    # The end of `serving` found the thread at its end.


def test_a_rollout_worker_whose_other_group_is_another_policy_workers_has_something_to_step() -> None:
    with serving(min_batch_groups=2, max_wait_us=LONG_US, policy_worker_of_group=(0, 1, 0, 1, 0, 1, 0, 1)) as sampler:
        sampler.ask(0)
        assert sampler.answered(within_s=0.3) == []
        sampler.ask(2)
        assert sampler.answered(within_s=5.0, at_least=2) == [0, 2]


def test_a_group_that_parks_while_nothing_is_asked_for_ends_the_sleep_for_several() -> None:
    with serving(min_batch_groups=2, max_wait_us=LONG_US) as sampler:
        sampler.store.park(1)
        time.sleep(0.3)
        sampler.ask(0)
        assert sampler.answered(within_s=5.0) == [0]


@pytest.mark.parametrize("wait_us", [0, 1_000, 20_000])
def test_each_group_is_answered_in_time_where_no_other_comes(wait_us: int) -> None:
    with serving(min_batch_groups=2, max_wait_us=wait_us) as sampler:
        for group in (1, 2, 1, 0):
            sampler.ask(group)
            assert sampler.answered(within_s=5.0) == [group]


def test_no_group_waits_longer_than_it_may() -> None:
    with serving(min_batch_groups=2, max_wait_us=3_000_000) as sampler:
        time.sleep(0.1)  # It sleeps by now.
        sampler.ask(1)
        assert sampler.answered(within_s=4.5) == [1]


def test_a_worker_that_is_to_wait_for_none_waits_for_none() -> None:
    with serving(min_batch_groups=1, max_wait_us=LONG_US) as sampler:
        sampler.ask(1)
        assert sampler.answered(within_s=5.0) == [1]


def test_groups_are_waited_for_without_a_policy_too() -> None:
    with serving(skip_policy=True, random_actions=True, max_wait_us=LONG_US) as sampler:
        sampler.ask(1)
        assert sampler.answered(within_s=0.3) == []
        sampler.ask(2)
        assert sampler.answered(within_s=5.0, at_least=2) == [1, 2]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_newer_weights_are_used_in_every_precision(precision: str) -> None:
    with serving(min_batch_groups=1, precision=precision) as sampler:
        observation = sampler.store.observation["observation"]
        observation[...] = np.random.default_rng(0).standard_normal(observation.shape)
        for version in (1, 2):
            model = a_model()
            sampler.published.publish(version, FlatState(model, alias=False).bytes)
            sampler.ask(0)
            assert sampler.answered(within_s=5.0) == [0]
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                expected = model({"observation": torch.from_numpy(observation[0, 0])}).value
            assert (sampler.store.arrays["policy_version"][0, 0] == version).all()
            torch.testing.assert_close(torch.from_numpy(sampler.store.arrays["value"][0, 0]), expected)


@torch.no_grad()
def test_nothing_that_a_network_in_double_precision_computes_is_rounded() -> None:
    model = a_model(core="gru", core_size=8).double()
    literal = copy.deepcopy(model)
    with serving(min_batch_groups=1, model=model, inferred="float64") as sampler:
        store = sampler.store
        observation = store.observation["observation"]
        observation[...] = np.random.default_rng(0).standard_normal(observation.shape)
        store.arrays["reset"][...] = False
        state = None
        for slot, step in ((0, 0), (0, 1), (1, 0)):
            store.group_slot[0], store.group_step[0] = slot, step
            if state is not None:
                before = state
            sampler.ask(0)
            assert sampler.answered(within_s=5.0) == [0]
            output = literal({"observation": torch.from_numpy(observation[slot, step])}, state, None)
            state = output.rnn_state
            torch.testing.assert_close(
                torch.from_numpy(store.arrays["value"][slot, step]), output.value, rtol=1e-14, atol=1e-14
            )
        assert store.arrays["log_prob"].dtype == np.float64
        torch.testing.assert_close(torch.from_numpy(store.arrays["rnn_state"][1]), before, rtol=1e-14, atol=1e-14)


class Surer(PPO):
    """A user's algorithm that chooses actions in another way."""

    def choose(self, params: torch.Tensor, *rest: Any) -> Action:
        return super().choose(3.0 * params, *rest)


@pytest.mark.parametrize(("acts", "kinds"), [(1.0, [PPO] * 3), (0.6, [PPO] * 3), (0.6, [PPO, Surer, PPO])])
def test_rows_of_several_policies_get_what_each_policy_alone_would_give_them(
    acts: float, kinds: list[type[PPO]]
) -> None:
    rows, random = 5, np.random.default_rng(3)
    players = PlayerIds(policies=3)
    topology = slots.Topology(
        rollout_length=2,
        group_rows=rows,
        worker_of_group=(0, 0),
        policy_worker_of_group=(0, 0),
        slots_of_worker=(2,),
        agents_per_env=1,
        players=players,
        groups_per_batch=2,
    )
    spec = replace(SPEC, agents=("a", "b"))
    fields = slots.slot_fields(spec, rollout_length=2, state_size=0, has_players=True)
    layout = ArenaLayout()
    slots.add_to_layout(layout, fields, topology)
    nbytes = flat_nbytes(a_model())
    for policy in range(players.policies):
        weights.add_to_layout(layout, nbytes=nbytes, ring=str(policy))
    arena = Arena.create(layout)
    store = slots.SlotStore(arena, fields, topology, create=True)
    models, acting = [], []
    for policy in range(players.policies):
        models.append(a_model())
        ring = weights.WeightStore(arena, ring=str(policy), create=True)
        ring.publish(10 + policy, FlatState(models[-1], alias=False).bytes)
        algorithm = kinds[policy].over(a_model(), OnPolicyConfig()).eval()
        acting.append(NewestWeights(ring, algorithm, is_lowered=False))
    context = ChildContext(
        name="policy worker 0",
        stop=threading.Event(),
        send=lambda message: None,
        ledger=Ledger.private(POLICY_WORKER),
        log=logging.getLogger("test"),
    )
    device = torch.device("cpu")
    worker = PolicyWorker(
        context,
        store,
        index=0,
        action=SPEC.action,
        config=InferenceConfig(device="cpu", precision="fp32"),
        device=device,
        batching=FixedGroups(store, 0),
        weights=acting,
        reader=SlotReader(store, max_groups=2, device=device, may_view=False),
        explorer=KeyedExplorer(store, width=2, device=device, seed=5, first_row=0),
        states=RecurrentStates(store, (0, 1), state_size=0, device=device, is_shared=False),
        seed=0,
    )
    for _ in range(10):
        store.group_slot[:] = [1, 0]
        store.group_step[:] = [1, 0]
        arrays, seen = store.arrays, store.observation["observation"]
        seen[...] = random.standard_normal(seen.shape)
        arrays["acts"][...] = random.random(arrays["acts"].shape) < acts
        arrays["policy_id"][...] = random.integers(0, 3, arrays["policy_id"].shape)
        arrays["policy_version"][...] = -1
        with torch.inference_mode():
            worker.answer(np.array([0, 1]))
        assert store.inboxes[0].get_many(np.empty(4, np.int64), 1.0) == 2
        noise = RowNoise(5, "actions", width=2).uniform(np.arange(2 * rows), np.repeat([1, 0], rows))
        for group, (slot, step) in enumerate([(1, 1), (0, 0)]):
            for row in range(rows):
                place = slot, step, row
                if not arrays["acts"][place]:
                    assert arrays["policy_version"][place] == -1
                    continue
                policy = int(arrays["policy_id"][place])
                with torch.no_grad():
                    output = models[policy]({"observation": torch.from_numpy(seen[place])[None]})
                    uniform = torch.from_numpy(noise[group * rows + row])[None]
                    params = output.params * (3.0 if kinds[policy] is Surer else 1.0)
                    expected = models[policy].distribution.sample_with_log_prob(params, uniform=uniform)
                assert expected.discrete is not None
                assert arrays["policy_version"][place] == 10 + policy
                assert arrays["action_discrete"][place].tolist() == expected.discrete[0].tolist()
                np.testing.assert_allclose(arrays["log_prob"][place], expected.log_prob[0], rtol=1e-5)
                np.testing.assert_allclose(arrays["value"][place], output.value[0], rtol=1e-4, atol=1e-6)
