"""A replay whose steps are all collected, and the parts of a learner that learns from it in this process."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.algorithms.off_policy_config import DQNConfig
from rollmill.algorithms.registry import make_algorithm
from rollmill.learning.clock import TrainingClock
from rollmill.learning.collective import Alone
from rollmill.learning.config import ComputeConfig, OptimiserConfig
from rollmill.learning.fast_path import PLAIN
from rollmill.learning.progress import LearnerSetup, Progress, RunPlan, RunSteps, noise_seed
from rollmill.learning.replay_trainer import ReplayAccount
from rollmill.learning.sharing import shared_sizes
from rollmill.learning.update import Update
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import flat_nbytes
from rollmill.roles import LEARNER
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import Ledger
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import gradients, weights
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.episodes import pack_episode
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.replay import ReplayStore, add_beside_to_layout, add_to_layout, replay_fields
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.slots import NO_SLOT, Topology

SPEC = EnvSpec(
    name="random",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
STEPS, ROWS, SLOTS = 4, 2, 3
TOTAL = STEPS * ROWS * SLOTS
LIMITS = RateLimits(update_interval=2.0, min_size=8, error_buffer=100.0, total_steps=TOTAL)
BATCHES_DUE = (TOTAL - 8) // 2
SEED, BATCH_SIZE = 5, 16
OPTIMISER = OptimiserConfig(learning_rate=0.01)


def filled_store(replay: ReplayConfig, num_learners: int = 0) -> tuple[ReplayStore, Arena]:
    """A full replay, with rings for a server and these learners if there are several; one episode has ended."""
    topology = Topology(
        rollout_length=STEPS,
        group_rows=ROWS,
        worker_of_group=(0,),
        policy_worker_of_group=(0,),
        slots_of_worker=(SLOTS,),
        num_learners=1 + num_learners,
    )
    fields = replay_fields(SPEC, rollout_length=STEPS)
    sizes, layout = shared_sizes(algorithm_of()), ArenaLayout()
    add_to_layout(layout, fields, topology, replay)
    add_beside_to_layout(layout, SPEC, fields, topology)
    weights.add_to_layout(layout, nbytes=flat_nbytes(algorithm_of().acting))
    gradients.add_to_layout(layout, num_learners=max(1, num_learners), size=sizes.gradient)
    for ring, nbytes in sizes.rings.items():
        weights.add_to_layout(layout, nbytes=nbytes, ring=ring)
    arena = Arena.create(layout, poison=True)
    store = ReplayStore(arena, SPEC, topology, replay, LIMITS, create=True)
    for ring in sizes.rings:
        weights.WeightStore(arena, ring=ring, create=True)
    random = np.random.default_rng(0)
    pending = np.zeros(ROWS, np.int64)
    for slot in range(SLOTS):
        store.begin(slot, slot - 1 if slot else NO_SLOT)
        for name, array in store.arrays.items():
            values = random.standard_normal(array[slot].shape)
            array[slot] = values if array.dtype.kind == "f" else name == "valid"
        store.arrays["policy_version"][slot] = slot
        for step in range(STEPS):
            assert store.limiter.try_reserve(ROWS)
            store.limiter.insert(store.commit(slot, step, pending), reserved=ROWS)
    assert store.limiter.is_full
    assert store.completed[0].put(0, pack_episode(2.5, 7))
    return store, arena


def algorithm_of() -> OffPolicyAlgorithm:
    torch.manual_seed(SEED)
    config = DQNConfig(algorithm="dqn", batch_size=BATCH_SIZE, tau=0.1, target_update_every=2, reward_scale=0.5)
    return make_algorithm(SPEC.observation, SPEC.action, ModelConfig(mlp_sizes=(8,)), config)


class Parts(NamedTuple):
    """What a learner consists of; ``sent`` is what it has sent to the main process."""

    account: ReplayAccount
    algorithm: OffPolicyAlgorithm
    setup: LearnerSetup
    sent: list[Any]


def parts_of(
    folder: Path, store: ReplayStore, replay: ReplayConfig, *, resume: bool = False, several: bool = False
) -> Parts:
    sent: list[Any] = []
    plan = RunPlan(
        total_steps=TOTAL,
        seed=SEED,
        report_every_s=0.0,
        resume=resume,
        checkpoints=CheckpointStore(folder, CheckpointConfig()),
    )
    progress = Progress()
    setup = LearnerSetup(
        context=ChildContext(
            name="learner",
            stop=threading.Event(),
            send=sent.append,
            ledger=Ledger.private(LEARNER),
            log=logging.getLogger("test"),
        ),
        optimiser=OPTIMISER,
        compute=ComputeConfig(),
        plan=plan,
        progress=progress,
        run_steps=RunSteps([progress]),
        clock=TrainingClock(),
        collective=Alone(),
        device=torch.device("cpu"),
    )
    algorithm = algorithm_of()
    generator = torch.Generator().manual_seed(noise_seed(plan, setup.collective, 0))
    update = Update(algorithm, setup.optimiser, PLAIN, generator=generator)
    account = ReplayAccount(setup, store, algorithm, update=update, replay=replay, generator=generator, several=several)
    return Parts(account, algorithm, setup, sent)
