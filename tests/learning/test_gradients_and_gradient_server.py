"""A parameter server and its learners, in threads of this process."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.learning.filled_replay import (
    BATCH_SIZE,
    BATCHES_DUE,
    OPTIMISER,
    SPEC,
    TOTAL,
    Parts,
    algorithm_of,
    filled_store,
    parts_of,
)
from torch import nn

from rollmill.learning.config import ComputeConfig
from rollmill.learning.gradient_server import GradientServer
from rollmill.learning.gradients import GradientLearner
from rollmill.learning.learner import Learner, run_in_turn
from rollmill.learning.live_numbers import add_numbers_to_layout, control_block
from rollmill.learning.report import LearnerReport
from rollmill.learning.tensors import to_tensors
from rollmill.learning.timetable import ByTime
from rollmill.learning.update import Update
from rollmill.learning.versions import NewestVersions
from rollmill.roles import GRADIENT_LEARNER
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import LedgerBoard, ProcessAccount
from rollmill.storage.gradients import GradientExchange
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import ReturnRule
from rollmill.storage.sequence_sampler import make_sampler
from rollmill.storage.weights import WeightStore

UNIFORM = ReplayConfig(min_size=8, update_interval=2.0)
LEARNER_SEED = 11


class Run(NamedTuple):
    """A finished run."""

    server: Parts
    trainer: GradientServer
    exchange: GradientExchange
    accounts: list[ProcessAccount]


def run_of(folder: Path, replay: ReplayConfig, num_learners: int, max_staleness: int) -> Run:
    store, arena = filled_store(replay, num_learners)
    layout = ArenaLayout()
    add_numbers_to_layout(layout)
    control = control_block(Arena.create(layout), create=True)
    exchange = GradientExchange(arena, num_learners, create=True)
    parts = parts_of(folder, store, replay, several=True)
    trainer = GradientServer(
        parts.account, parts.algorithm, exchange=exchange, arrays=arena, max_staleness=max_staleness
    )
    stop, board = parts.setup.context.stop, LedgerBoard()
    seats = [board.seat(f"gradient learner {index}", GRADIENT_LEARNER) for index in range(num_learners)]
    learners = [
        GradientLearner(
            ChildContext(
                name=f"gradient learner {index}",
                stop=stop,
                send=print,
                ledger=seat.open(),
                log=logging.getLogger("test"),
            ),
            store,
            GradientExchange(arena, num_learners),
            index,
            control,
            algorithm_of(),
            arrays=arena,
            spec=SPEC,
            optimiser=OPTIMISER,
            compute=ComputeConfig(precision="fp32", channels_last=True),
            replay=replay,
            total_steps=TOTAL,
            seed=LEARNER_SEED + index,
        )
        for index, seat in enumerate(seats)
    ]
    threads = [threading.Thread(target=learner.run) for learner in learners]
    for thread in threads:
        thread.start()
    try:
        timetable = ByTime(parts.setup.plan.checkpoints, saves=True)
        published = WeightStore(arena, create=True)
        run_in_turn(
            [
                Learner(
                    parts.setup,
                    published,
                    parts.algorithm,
                    trainer=trainer,
                    versions=NewestVersions(1),
                    timetable=timetable,
                )
            ]
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    accounts = [board.account(seat) for seat in seats]
    board.close()
    return Run(parts, trainer, exchange, accounts)


def test_one_learner_with_a_server_learns_what_a_loop_learns(tmp_path: Path) -> None:
    """Without staleness each gradient is computed at the weights that it changes."""
    run = run_of(tmp_path, UNIFORM, num_learners=1, max_staleness=0)
    store, _ = filled_store(UNIFORM)
    literal = algorithm_of()
    update = Update(literal, OPTIMISER, generator=torch.Generator())
    sampler = make_sampler(store, UNIFORM, ReturnRule(0.99, 0.5), np.array([LEARNER_SEED, 0], np.uint64))
    batch = sampler.make_batch(BATCH_SIZE)
    for _ in range(BATCHES_DUE):
        assert sampler.draw(batch, 0.0)
        update.step([to_tensors(batch, torch.device("cpu"))])
    learned = run.server.algorithm.state_dict()
    for name, expected in literal.state_dict().items():
        torch.testing.assert_close(learned[name], expected, rtol=1e-6, atol=1e-7, msg=name)
    reported = {name for message in run.server.sent if isinstance(message, LearnerReport) for name in message.losses}
    assert reported | run.server.sent[-1].report.losses.keys() == update.take_statistics().keys()


@pytest.mark.parametrize("num_learners", [2, 3])
def test_several_learners_share_the_batches_within_the_bound_on_staleness(tmp_path: Path, num_learners: int) -> None:
    bound = num_learners - 1
    run = run_of(tmp_path, replace(UNIFORM, priorities="proportional"), num_learners, bound)
    finished = run.server.sent[-1]
    assert (finished.report.sgd_steps, finished.report.batches) == (BATCHES_DUE, BATCHES_DUE)
    assert finished.report.episodes == 1
    assert run.server.account.is_done
    staleness = [
        message.figures["learners/staleness_max"]
        for message in run.server.sent
        if isinstance(message, LearnerReport) and message.figures.get("learners/staleness_max") is not None
    ]
    assert staleness
    assert all(0 <= most <= bound for most in staleness)
    batches = [account.counters["gradients"] for account in run.accounts]
    assert sum(batches) == BATCHES_DUE == run.exchange.figures[:, 0].sum()
    assert run.exchange.figures[:, 0].tolist() == batches


def test_layers_whose_statistics_learners_do_not_share_are_refused(tmp_path: Path) -> None:
    store, arena = filled_store(UNIFORM, 2)
    parts = parts_of(tmp_path, store, UNIFORM, several=True)
    parts.algorithm.acting.add_module("norm", nn.BatchNorm1d(3))
    exchange = GradientExchange(arena, 2, create=True)
    with pytest.raises(ValueError, match=r"^acting.norm is a BatchNorm1d, .*: use a layer without statistics, such as"):
        GradientServer(parts.account, parts.algorithm, exchange=exchange, arrays=arena, max_staleness=1)
    parts.algorithm.acting.add_module("norm", nn.BatchNorm1d(3, track_running_stats=False))
    GradientServer(parts.account, parts.algorithm, exchange=exchange, arrays=arena, max_staleness=1)


def test_a_server_that_is_stopped_does_not_wait_for_gradients(tmp_path: Path) -> None:
    store, arena = filled_store(UNIFORM, 2)
    parts = parts_of(tmp_path, store, UNIFORM, several=True)
    exchange = GradientExchange(arena, 2, create=True)
    trainer = GradientServer(parts.account, parts.algorithm, exchange=exchange, arrays=arena, max_staleness=1)
    published = WeightStore(arena, create=True)
    timetable = ByTime(parts.setup.plan.checkpoints, saves=True)
    learner = Learner(
        parts.setup, published, parts.algorithm, trainer=trainer, versions=NewestVersions(1), timetable=timetable
    )
    assert trainer.advance(learner, 0.0), "there is no gradient yet"
    assert parts.setup.progress.episodes == 1
    parts.setup.context.stop.set()
    assert not trainer.advance(learner, 60.0)
    assert trainer.moments() == (0.0, 1.0)
    assert trainer.fill(LearnerReport(agent_steps=0)).figures["learners/staleness_mean"] is None
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    assert trainer.state_dict()["random"]["draws"] == state["random"]["draws"] == 0
