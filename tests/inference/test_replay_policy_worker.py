"""The policy worker of a recurrent off-policy algorithm: what it remembers, and what of it slots get."""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

import numpy as np
import pytest
import torch

from rollmill.algorithms.base import Action
from rollmill.algorithms.off_policy_config import DQNConfig
from rollmill.algorithms.recurrent_dqn import RecurrentDQN
from rollmill.inference.acting_weights import NewestWeights
from rollmill.inference.action_checks import check_action
from rollmill.inference.batching import ReadyGroups
from rollmill.inference.config import InferenceConfig
from rollmill.inference.explorers import GeneratorExplorer
from rollmill.inference.observation_readers import ShownReader
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.inference.requests import Requests
from rollmill.inference.worker import PolicyWorker
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState, flat_nbytes
from rollmill.roles import POLICY_WORKER
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import Ledger
from rollmill.specs import ActionSpec, ArraySpec, BoxHead, CategoricalHead, EnvSpec
from rollmill.storage import weights
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.replay import ReplayStore, add_beside_to_layout, add_to_layout, replay_fields
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.slots import Topology

SPEC = EnvSpec(
    name="test",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=5),), structure="discrete"),
)
NUMBERS = ActionSpec(heads=(BoxHead(low=(-1.0,) * 2, high=(1.0,) * 2, shape=(2,)),), structure="box")
STEPS, STRIDE, ROWS, GROUPS = 6, 2, 2, 3
CPU = torch.device("cpu")
LIMITS = RateLimits(update_interval=1.0, min_size=1, error_buffer=1e12, total_steps=10**12)


def explorer_of(store: ReplayStore, device: torch.device, first_row: int) -> GeneratorExplorer:
    return GeneratorExplorer(
        store.topology,
        device=device,
        seed=0,
        first_row=first_row,
        agent_steps=lambda: store.limiter.inserted,
        total_steps=1000,
        world_size=2,
    )


def make_worker(device: torch.device = CPU) -> tuple[ReplayStore, RecurrentDQN, PolicyWorker]:
    torch.manual_seed(0)
    replay = ReplayConfig(min_size=1, sequence_length=4, sequence_stride=STRIDE)
    algorithm = RecurrentDQN(
        SPEC.observation,
        SPEC.action,
        ModelConfig(mlp_sizes=(8,), core="lstm", core_size=4),
        DQNConfig(random_steps=0, epsilon_start=0.0, epsilon_end=0.0),
    )
    topology = Topology(
        rollout_length=STEPS,
        group_rows=ROWS,
        worker_of_group=(0,) * GROUPS,
        policy_worker_of_group=(1, 0, 0),
        slots_of_worker=(2 * GROUPS,),
        num_policy_workers=2,
    )
    size = algorithm.state_size
    fields = replay_fields(SPEC, rollout_length=STEPS, state_size=size, stride=STRIDE)
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, replay)
    add_beside_to_layout(layout, SPEC, fields, topology)
    weights.add_to_layout(layout, nbytes=flat_nbytes(algorithm.acting))
    arena = Arena.create(layout, poison=True)
    store = ReplayStore(arena, SPEC, topology, replay, LIMITS, state_size=size, create=True)
    published = weights.WeightStore(arena, create=True)
    published.publish(0, FlatState(copy.deepcopy(algorithm.acting), alias=True).bytes)
    stop = threading.Event()
    context = ChildContext(
        name="policy worker 0",
        stop=stop,
        send=lambda message: None,
        ledger=Ledger.private(POLICY_WORKER),
        log=logging.getLogger("test"),
    )
    config, acting = InferenceConfig(device="cpu"), copy.deepcopy(algorithm).to(device).eval()
    worker = PolicyWorker(
        context,
        store,
        index=0,
        action=SPEC.action,
        config=config,
        device=device,
        batching=ReadyGroups(store, 0, config, stop, on_cpu=True),
        weights=[NewestWeights(published, acting, is_lowered=False)],
        reader=ShownReader(store, device=device),
        explorer=explorer_of(store, device, 0),
        states=RecurrentStates(
            store, topology.groups_of_policy_worker(0), state_size=size, device=device, is_shared=False
        ),
        seed=0,
    )
    return store, algorithm, worker


@torch.inference_mode()
def test_slots_get_the_state_from_before_every_stride_th_step() -> None:
    store, algorithm, worker = make_worker()
    random = np.random.default_rng(0)
    # Groups 1 and 2 are this worker's; each goes through two slots, at its own pace.
    states = {group: torch.zeros(ROWS, algorithm.state_size) for group in (1, 2)}
    at = dict.fromkeys(states, 0)
    num_stored = 0
    while min(at.values()) < 2 * STEPS:
        asking = [group for group in states if at[group] < 2 * STEPS and random.random() < 0.7]
        if not asking:
            continue
        before = {group: states[group].clone() for group in asking}
        for group in asking:
            slot, step = 2 * group + at[group] // STEPS, at[group] % STEPS
            store.group_slot[group], store.group_step[group] = slot, step
            store.observation["obs"][slot, step] = random.normal(size=(ROWS, 3))
            store.arrays["reset"][slot, step] = random.random(ROWS) < 0.2 if at[group] else True
        worker.answer(np.array(asking))
        answers = np.empty(GROUPS, np.int64)
        assert store.inboxes[0].get_many(answers, 0.0) == len(asking)
        for group in asking:
            slot, step = int(store.group_slot[group]), int(store.group_step[group])
            x = torch.from_numpy(store.observation["obs"][slot, step])
            reset = torch.from_numpy(store.arrays["reset"][slot, step])
            action, state = algorithm.act_with_state({"obs": x}, before[group], reset, None, None)
            assert state is not None
            states[group] = state
            assert action.discrete is not None
            np.testing.assert_array_equal(store.arrays["action_discrete"][slot, step], action.discrete.numpy())
            if step % STRIDE == 0:
                kept = store.arrays["rnn_state"][slot, step // STRIDE]
                np.testing.assert_allclose(kept, before[group].numpy(), rtol=1e-5, atol=1e-6)
                num_stored += 1
            at[group] += 1
    assert num_stored == 2 * 2 * STEPS // STRIDE


def test_schedules_count_the_steps_of_all_ranks() -> None:
    store, _, _ = make_worker()
    store.limiter.set(inserted=21, drawn=0)
    device = torch.device("cpu")
    explorer = explorer_of(store, device, 6)
    requests = Requests(store, np.array([1]))
    explore = explorer.explore(requests, torch.zeros(ROWS, dtype=torch.bool), None)
    assert (explore.agent_steps, explore.total_steps, explore.num_rows) == (42, 1000, 2 * GROUPS * ROWS)
    assert explore.rows.tolist() == [8, 9]
    assert explore.rungs is None


def test_rows_may_have_places_of_their_own_on_a_ladder() -> None:
    store, _, _ = make_worker()
    rungs = np.arange(GROUPS * ROWS, dtype=np.float32)[::-1].copy()
    explorer = GeneratorExplorer(store.topology, device=CPU, seed=0, rungs=rungs)
    requests = Requests(store, np.array([2, 1]))
    explore = explorer.explore(requests, torch.zeros(2 * ROWS, dtype=torch.bool), None)
    assert explore.rungs is not None
    assert explore.rungs.tolist() == [1, 0, 3, 2]
    assert explore.rows.tolist() == [4, 5, 2, 3]


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            Action(torch.zeros(4, dtype=torch.int32), None),
            r"act gave discrete actions of shape \(4,\), but \(4, 1\) is",
        ),
        (Action(None, None), r"discrete actions of shape None, but \(4, 1\)"),
        (
            Action(torch.zeros(4, 1, dtype=torch.int32), torch.zeros(4, 2)),
            r"continuous actions of shape \(4, 2\), but None",
        ),
    ],
)
def test_actions_that_do_not_fit_the_action_space_are_refused(action: Action, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_action(make_worker()[1], action, SPEC.action, 4)


@pytest.mark.parametrize(
    ("discrete", "continuous", "message"),
    [
        ([[1], [0], [5]], None, r"act gave the choice 5 in column 0, which has the choices 0 to 4"),
        ([[1], [-1], [2]], None, r"the choice -1 in column 0"),
        (None, [[0.0, 1.0], [0.5, -1.5]], r"act gave the number -1.5 in column 1; all must be in \[-1, 1\]"),
        (None, [[np.nan, 1.0]], r"the number nan in column 0"),
        ([[1]], [[0.0, 2.0]], r"the number 2.0 in column 1"),
        ([[9]], [[0.0, 2.0]], r"the choice 9 in column 0"),
    ],
)
def test_actions_outside_of_the_action_space_are_refused(discrete: Any, continuous: Any, message: str) -> None:
    given = None if discrete is None else torch.tensor(discrete, dtype=torch.int32)
    numbers = None if continuous is None else torch.tensor(continuous)
    heads = (*(() if discrete is None else SPEC.action.heads), *(() if continuous is None else NUMBERS.heads))
    spec = ActionSpec(heads=heads, structure="tuple")
    with pytest.raises(ValueError, match=message):
        check_action(make_worker()[1], Action(given, numbers), spec, len(discrete or continuous))
