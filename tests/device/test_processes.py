"""Policy workers and learners on a GPU: the CPU's results, within budgets for an answered batch."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.device.fake_cuda import FakeCuda
from tests.inference import test_replay_policy_worker as replay
from tests.learning import test_learner as learning

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.inference.acting_weights import ExactWeights, NewestWeights
from rollmill.inference.batching import FixedGroups, ReadyGroups
from rollmill.inference.config import InferenceConfig
from rollmill.inference.explorers import GeneratorExplorer, KeyedExplorer
from rollmill.inference.observation_readers import SlotReader
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.inference.worker import PolicyWorker
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import FlatState, flat_nbytes
from rollmill.roles import POLICY_WORKER
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import Ledger
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import slots, weights

CPU = torch.device("cpu")
SPEC = EnvSpec(
    name="test",
    observation={"obs": ArraySpec(shape=(4, 84, 84), dtype="uint8")},
    action=ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete"),
)
STEPS, ROWS, GROUPS = 4, 2, 2


class Budget(NamedTuple):
    """What a batch may take of the GPU, from observations in shared memory to actions in shared memory."""

    operations: int
    uploads: int
    waits: int


# Waits are uploads of `reset`, of indices of recurrent states, and in lockstep of rows and noise, while the GPU has
# nothing to do, and a download for each array of the answer.
BUDGETS = {
    ("async", "none"): Budget(20, 2, 4),
    ("async", "gru"): Budget(24, 4, 6),
    ("lockstep", "none"): Budget(21, 4, 6),
    ("lockstep", "gru"): Budget(25, 6, 8),
    ("replay", "lstm"): Budget(17, 4, 6),
}


def on_policy_worker(regime: str, core: Any, device: torch.device) -> tuple[slots.SlotStore, PolicyWorker]:
    torch.manual_seed(0)
    model = ModelConfig(encoder="nature", core=core, core_size=16)
    algorithm = PPO(SPEC.observation, SPEC.action, model, OnPolicyConfig())
    topology = slots.Topology(
        rollout_length=STEPS,
        group_rows=ROWS,
        worker_of_group=(0,) * GROUPS,
        policy_worker_of_group=(0,) * GROUPS,
        slots_of_worker=(2 * GROUPS,),
        slots_per_group=2 if regime == "lockstep" else 0,
        groups_per_batch=GROUPS if regime == "lockstep" else 1,
    )
    fields = slots.slot_fields(SPEC, rollout_length=STEPS, state_size=algorithm.state_size)
    layout = ArenaLayout()
    slots.add_to_layout(layout, fields, topology)
    weights.add_to_layout(layout, nbytes=flat_nbytes(algorithm.acting))
    arena = Arena.create(layout)
    store = slots.SlotStore(arena, fields, topology, create=True)
    published = weights.WeightStore(arena, create=True)
    published.publish(0, FlatState(algorithm.acting, alias=False).bytes)
    stop = threading.Event()
    context = ChildContext(
        name="policy worker 0",
        stop=stop,
        send=lambda message: None,
        ledger=Ledger.private(POLICY_WORKER),
        log=logging.getLogger("test"),
    )
    config, acting = InferenceConfig(), algorithm.to(device).eval()
    is_exact = regime == "lockstep"
    size = acting.acting.distribution.noise_size
    worker = PolicyWorker(
        context,
        store,
        index=0,
        action=SPEC.action,
        config=config,
        device=device,
        batching=FixedGroups(store, 0) if is_exact else ReadyGroups(store, 0, config, stop, on_cpu=False),
        weights=[
            ExactWeights(store, published, acting, is_lowered=False, first_iteration=0)
            if is_exact
            else NewestWeights(published, acting, is_lowered=False)
        ],
        reader=SlotReader(store, max_groups=GROUPS, device=device, may_view=not is_exact),
        explorer=KeyedExplorer(store, width=size, device=device, seed=0, first_row=0)
        if is_exact
        else GeneratorExplorer(topology, device=device, seed=0),
        states=RecurrentStates(store, range(GROUPS), state_size=acting.state_size, device=device, is_shared=is_exact),
        seed=0,
    )
    return store, worker


def make_worker(regime: str, core: str, device: torch.device) -> tuple[slots.SlotStore, PolicyWorker]:
    if regime == "replay":
        store, _, worker = replay.make_worker(device)
        return store, worker
    return on_policy_worker(regime, core, device)


def fill(store: slots.SlotStore) -> None:
    random = np.random.default_rng(0)
    for array in store.arrays.values():
        is_float = array.dtype.kind == "f"
        array[...] = random.standard_normal(array.shape) if is_float else random.integers(0, 2, array.shape)
    for array in store.observation.values():
        array[...] = random.integers(0, 200, array.shape)
    if getattr(store, "group_rnn_state", None) is not None:
        store.group_rnn_state[...] = 0.1  # type: ignore[index]


def answer(store: slots.SlotStore, worker: PolicyWorker, step: int) -> None:
    """Has groups answered that are at this step of their slots."""
    groups = np.arange(GROUPS) + isinstance(store, replay.ReplayStore)
    store.group_slot[groups], store.group_step[groups] = groups, step
    with torch.inference_mode():
        worker.answer(groups)
    assert store.inboxes[0].get_many(np.empty(16, np.int64), 0.0) == GROUPS


@pytest.mark.parametrize(("regime", "core"), BUDGETS)
def test_answers_equal_the_cpu_s(regime: str, core: str, a_gpu: AbstractContextManager[object]) -> None:
    def answered(device: torch.device) -> dict[str, np.ndarray]:
        store, worker = make_worker(regime, core, device)
        fill(store)
        for step in range(STEPS + (regime != "replay")):
            answer(store, worker, step)
        return {name: array.copy() for name, array in store.arrays.items()}

    expected = answered(CPU)
    with a_gpu:
        found = answered(torch.device("cuda"))
    # A real GPU's generator draws other actions; noise that is keyed by rows and steps is drawn on the CPU.
    draws_others = torch.cuda.is_available() and regime != "lockstep"
    for name, array in expected.items():
        if draws_others and name not in ("value", "state"):
            continue
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("regime", "core"), BUDGETS)
def test_an_answered_batch_stays_within_its_budget(regime: str, core: str, gpu: FakeCuda) -> None:
    store, worker = make_worker(regime, core, torch.device("cuda"))
    fill(store)
    answer(store, worker, 0)
    gpu.counts.reset()
    answer(store, worker, 1)
    budget = BUDGETS[regime, core]
    assert gpu.counts.operations.total() <= budget.operations, gpu.counts.operations
    assert gpu.counts.uploads <= budget.uploads
    assert gpu.counts.waits.total() <= budget.waits, gpu.counts.waits


def test_a_learner_learns_and_publishes_as_on_the_cpu(tmp_path: Path, a_gpu: AbstractContextManager[object]) -> None:
    def learned(device: torch.device) -> dict[str, torch.Tensor]:
        learner, store, _ = learning.a_learner(tmp_path / device.type, 1, device)
        done, messages = threading.Event(), np.empty(16, np.int64)

        def complete_free() -> None:
            while not done.is_set():
                for message in messages[: store.inboxes[0].get_many(messages, 0.001)].tolist():
                    store.complete(slots.decode(message)[1])

        sampling = threading.Thread(target=complete_free)
        sampling.start()
        try:
            learning.run_in_turn([learner])
        finally:
            done.set()
            sampling.join()
        return {name: value.cpu() for name, value in learner._algorithm.state_dict().items()}

    expected = learned(CPU)
    with a_gpu:
        found = learned(torch.device("cuda"))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=name)
