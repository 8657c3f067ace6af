"""Lag limits of the trainer, and the times of publications; other parts are tested with whole runs."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.ppo import PPO
from rollmill.learning.admission import FirstInFirstOut
from rollmill.learning.clock import TrainingClock
from rollmill.learning.collective import Alone
from rollmill.learning.config import ComputeConfig, OptimiserConfig
from rollmill.learning.fast_path import PLAIN
from rollmill.learning.lag import LagStatistics, admitted
from rollmill.learning.learner import Learner, run_in_turn
from rollmill.learning.minibatches import Minibatches
from rollmill.learning.on_policy_trainer import OnPolicyTrainer
from rollmill.learning.progress import LearnerSetup, Progress, RunPlan, RunSteps
from rollmill.learning.report import LearnerFinished
from rollmill.learning.timetable import ByIteration, ByTime
from rollmill.learning.trajectories import Trajectories
from rollmill.learning.update import Update
from rollmill.learning.versions import ExactVersions, NewestVersions, WrongVersionError
from rollmill.models.config import ModelConfig
from rollmill.models.flat_state import flat_nbytes
from rollmill.roles import LEARNER
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import Ledger
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage import slots, weights
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.group_states import GroupStates
from rollmill.storage.slots import SlotStore, Topology, slot_fields


def trajectories(versions: list[list[int]]) -> Trajectories:
    arrays = {"policy_version": np.array(versions, np.int32), "valid": np.ones(np.shape(versions), bool)}
    return Trajectories(arrays, np.zeros((len(versions) + 1, len(versions[0])), np.int64), (), ())


@pytest.mark.parametrize(("most", "kept"), [(0, 1), (2, 2), (3, 3), (100, 4)])
def test_samples_beyond_the_lag_limit_are_excluded(most: int, kept: int) -> None:
    valid = np.array([[1, 1, 1], [1, 0, 0]], bool)
    versions = np.array([[10, 8, 7], [0, 10, 0]], np.int32)
    statistics = LagStatistics()
    keep, stale = admitted(valid, versions, version=10, most=most, statistics=statistics)
    lag = np.array([[0, 2, 3], [10, 0, 10]])
    np.testing.assert_array_equal(keep, valid & (lag <= most))
    assert keep.sum() == kept
    assert stale == 4 - kept
    assert (statistics.mean, statistics.maximum) == (15 / 4, 10), "over all valid samples, including excluded ones"


def test_newest_version_is_published_at_an_interval() -> None:
    versions, progress = NewestVersions(publish_every=3), Progress()
    published = 0
    seen = []
    for _ in range(8):
        progress.sgd_steps += 1
        if versions.is_due(versions.number(progress), published):
            published = versions.number(progress)
            seen.append(published)
    assert seen == [3, 6]


def test_an_iteration_is_published_as_a_whole_and_learns_from_one_version(tmp_path: object) -> None:
    versions = ExactVersions(
        num_versions=2,
        num_groups=1,
        states=GroupStates(tmp_path),  # type: ignore[arg-type]
        first_iteration=0,
        collective=Alone(),
    )
    progress = Progress(sgd_steps=40, batches=5)
    assert versions.number(progress) == 5
    assert not versions.is_due(5, 4)
    versions.check(trajectories([[4, 4], [4, 4]]), 5)
    versions.check(trajectories([[0, 0]]), 0)
    with pytest.raises(WrongVersionError, match=r"iteration 5 .* version 4, but was given versions \[3, 4\]"):
        versions.check(trajectories([[4, 3]]), 5)


def test_iterations_have_rows_and_checkpoints_at_fixed_counts() -> None:
    timetable = ByIteration(save_every=7, total_steps=10**6, batch_size=100, first_iteration=0)
    rows, saves, last_row = [], [], -1
    for batches in range(401):
        progress = Progress(batches=batches)
        if timetable.is_row_due(progress, last_row, is_time=True):
            rows.append(batches)
            last_row = batches
        if timetable.is_save_due(progress):
            saves.append(batches)
            timetable.saved(progress)
    assert saves == list(range(7, 401, 7))
    assert set(saves) <= set(rows), "a resumed run needs the row before its checkpoint"
    assert {300, 310, 320} <= set(rows), "a thousand rows in a run"
    assert 321 not in rows


SPEC = EnvSpec(
    name="random",
    observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
    action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
)
STEPS, ROWS, SLOTS = 4, 2, 3
CPU = torch.device("cpu")


def a_learner(folder: Path, seed: int, device: torch.device = CPU) -> tuple[Learner, SlotStore, list[object]]:
    """A learner of its own policy; its three slots are complete."""
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
    sent: list[object] = []
    plan = RunPlan(
        total_steps=5 * STEPS * ROWS,
        seed=seed,
        report_every_s=0.0,
        resume=False,
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
        optimiser=OptimiserConfig(),
        compute=ComputeConfig(),
        plan=plan,
        progress=progress,
        run_steps=RunSteps([progress]),
        clock=TrainingClock(),
        collective=Alone(),
        device=device,
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
        versions=versions,
        max_policy_lag=100,
        spec=SPEC,
        random=generator,
    )
    published = weights.WeightStore(arena, create=True)
    timetable = ByTime(plan.checkpoints, saves=True)
    learner = Learner(setup, published, algorithm, trainer=trainer, versions=versions, timetable=timetable)
    for slot in range(SLOTS):
        store.complete(slot)
    return learner, store, sent


def test_a_process_hosts_learners_of_several_policies(tmp_path: Path) -> None:
    made = [a_learner(tmp_path / str(seed), seed) for seed in (1, 2)]
    done, messages = threading.Event(), np.empty(16, np.int64)

    def complete_free() -> None:  # As rollout workers do, whenever a learner has given a slot back.
        while not done.is_set():
            for _, store, _ in made:
                for message in messages[: store.inboxes[0].get_many(messages, 0.001)].tolist():
                    store.complete(slots.decode(message)[1])

    sampling = threading.Thread(target=complete_free)
    sampling.start()
    try:
        run_in_turn([learner for learner, _, _ in made])
    finally:
        done.set()
        sampling.join()
    for learner, _, sent in made:
        assert (learner.progress.batches, learner.progress.agent_steps) == (5, 5 * STEPS * ROWS)
        assert isinstance(sent[-1], LearnerFinished)
        assert sum(isinstance(message, LearnerFinished) for message in sent) == 1
        assert Path(sent[-1].checkpoint).exists()
