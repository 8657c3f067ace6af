"""A learner of a small network, with slots that are complete from the start."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import torch

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.learning.admission import FirstInFirstOut
from rollmill.learning.clock import TrainingClock
from rollmill.learning.collective import Alone
from rollmill.learning.config import ComputeConfig, OptimiserConfig
from rollmill.learning.fast_path import PLAIN
from rollmill.learning.learner import Learner
from rollmill.learning.live_numbers import LiveNumbers
from rollmill.learning.minibatches import Minibatches
from rollmill.learning.on_policy_trainer import OnPolicyTrainer
from rollmill.learning.progress import LearnerSetup, Progress, RunPlan, RunSteps
from rollmill.learning.results import RecentResults
from rollmill.learning.timetable import ByTime
from rollmill.learning.update import Update
from rollmill.learning.versions import NewestVersions
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import flat_nbytes
from rollmill.roles import LEARNER
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import Ledger
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import slots, weights
from rollmill.storage.background_writes import BackgroundWrites
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.slot_reserve import SlotReserve
from rollmill.storage.slots import SlotStore, Topology, slot_fields

SPEC = EnvSpec(
    name="random",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
STEPS, ROWS, SLOTS = 4, 2, 3
CPU = torch.device("cpu")


def a_learner(
    folder: Path,
    seed: int,
    device: torch.device = CPU,
    *,
    numbers: LiveNumbers | None = None,
    window: int | None = None,
    save_every: int | None = None,
    writes: BackgroundWrites | None = None,
) -> tuple[Learner, SlotStore, list[object]]:
    """A learner of its own policy; its three slots are complete, and an episode has ended in each."""
    topology = Topology(
        rollout_length=STEPS,
        group_rows=ROWS,
        worker_of_group=(0,),
        policy_worker_of_group=(0,),
        slots_of_worker=(SLOTS,),
    )
    config = OnPolicyConfig(batch_size=STEPS * ROWS)
    torch.manual_seed(seed)
    algorithm = PPO(SPEC.observation, SPEC.action, ModelConfig(mlp_sizes=(8,)), config).to(device)
    fields = slot_fields(SPEC, rollout_length=STEPS, state_size=0)
    layout = ArenaLayout()
    slots.add_to_layout(layout, fields, topology)
    weights.add_to_layout(layout, nbytes=flat_nbytes(algorithm.acting))
    arena = Arena.create(layout)
    store = SlotStore(arena, fields, topology, create=True)
    random = np.random.default_rng(seed)
    for array in store.arrays.values():
        array[...] = random.standard_normal(array.shape) if array.dtype.kind == "f" else 0
    store.arrays["valid"][...] = True
    store.arrays["episode_length"][:, 0, 0] = 9
    sent: list[object] = []
    plan = RunPlan(
        total_steps=5 * STEPS * ROWS,
        seed=seed,
        report_every_s=0.0,
        resume=False,
        checkpoints=CheckpointStore(folder, CheckpointConfig(every_steps=save_every)),
    )
    progress = Progress(results=None if window is None else RecentResults(window))
    setup = LearnerSetup(
        context=ChildContext(
            name="learner",
            stop=threading.Event(),
            send=sent.append,
            ledger=Ledger.private(LEARNER),
            log=logging.getLogger("test"),
        ),
        optimiser=OptimiserConfig(),
        compute=ComputeConfig(),
        plan=plan,
        progress=progress,
        run_steps=RunSteps([progress]),
        clock=TrainingClock(),
        collective=Alone(),
        device=device,
        numbers=numbers or LiveNumbers(),
    )
    generator, versions = np.random.default_rng(seed), NewestVersions(1)
    path = PLAIN
    trainer = OnPolicyTrainer(
        setup,
        store,
        algorithm,
        update=Update(algorithm, setup.optimiser, path),
        minibatches=Minibatches(algorithm, store.observation, path, generator),
        admission=FirstInFirstOut(store, ROWS),
        reserve=SlotReserve(store),
        versions=versions,
        max_policy_lag=100,
        spec=SPEC,
        random=generator,
    )
    published = weights.WeightStore(arena, create=True)
    timetable = ByTime(plan.checkpoints, saves=True)
    learner = Learner(
        setup, published, algorithm, trainer=trainer, versions=versions, timetable=timetable, writes=writes
    )
    for slot in range(SLOTS):
        store.complete(slot)
    return learner, store, sent
