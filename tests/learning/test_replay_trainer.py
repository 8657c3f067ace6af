"""A trainer of a replay, in this process, against a loop that draws and learns in turn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.learning.filled_replay import (
    BATCH_SIZE,
    BATCHES_DUE,
    LIMITS,
    OPTIMISER,
    ROWS,
    SEED,
    TOTAL,
    Parts,
    algorithm_of,
    filled_store,
    parts_of,
)

from rollmill.algorithms.off_policy_config import DQNConfig
from rollmill.learning.collective import Alone
from rollmill.learning.learner import Learner, run_in_turn
from rollmill.learning.progress import noise_seed
from rollmill.learning.replay_trainer import ReplayTrainer, return_rule
from rollmill.learning.report import LearnerFinished, LearnerReport
from rollmill.learning.results import RecentResults
from rollmill.learning.tensors import to_tensors
from rollmill.learning.timetable import ByTime
from rollmill.learning.update import Update
from rollmill.learning.versions import NewestVersions
from rollmill.storage.episodes import EpisodeEnd, pack_episode
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import ReturnRule
from rollmill.storage.sequence_sampler import make_sampler
from rollmill.storage.weights import WeightStore

UNIFORM = ReplayConfig(min_size=8, update_interval=2.0)
PRIORITISED = replace(UNIFORM, priorities="proportional", alpha=1.0)


def learner_of(parts: Parts, published: WeightStore) -> Learner:
    timetable = ByTime(parts.setup.plan.checkpoints, saves=True)
    trainer = ReplayTrainer(parts.account)
    return Learner(
        parts.setup, published, parts.algorithm, trainer=trainer, versions=NewestVersions(1), timetable=timetable
    )


def trained(folder: Path, replay: ReplayConfig) -> tuple[Parts, ReplayStore]:
    store, arena = filled_store(replay)
    parts = parts_of(folder, store, replay)
    run_in_turn([learner_of(parts, WeightStore(arena, create=True))])
    return parts, store


def priorities_of(store: ReplayStore) -> NDArray[np.float32]:
    priorities = np.empty(store.tree.capacity, np.float32)
    store.tree.priorities(priorities)
    return priorities


def test_it_learns_what_a_loop_learns_that_draws_and_learns_in_turn(tmp_path: Path) -> None:
    parts, _ = trained(tmp_path, UNIFORM)
    store, _ = filled_store(UNIFORM)
    literal = algorithm_of()
    update = Update(literal, OPTIMISER, generator=torch.Generator())
    sampler = make_sampler(store, UNIFORM, ReturnRule(0.99, 0.5), np.array([SEED, 0], np.uint64))
    batch = sampler.make_batch(BATCH_SIZE)
    for _ in range(BATCHES_DUE):
        assert sampler.draw(batch, 0.0)
        update.step([to_tensors(batch, torch.device("cpu"))])
    for (name, expected), found in zip(
        literal.state_dict().items(), parts.algorithm.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)


def test_it_ends_when_every_batch_is_learned_and_reports_all(tmp_path: Path) -> None:
    parts, store = trained(tmp_path, UNIFORM)
    finished = parts.sent[-1]
    assert isinstance(finished, LearnerFinished)
    report = finished.report
    assert (report.batches, report.sgd_steps, report.agent_steps) == (BATCHES_DUE, BATCHES_DUE, TOTAL)
    assert (report.episodes, report.recent_episodes) == (1, (EpisodeEnd(2.5, 7),))
    assert report.fast_path == f"{BATCH_SIZE} transitions a batch, fp32"
    assert report.learning_rate == OPTIMISER.learning_rate
    assert report.figures["replay/size"] == TOTAL == store.size
    assert report.figures["replay/samples_per_insert"] == pytest.approx(BATCHES_DUE * BATCH_SIZE / TOTAL)
    assert report.figures["replay/batches_skipped"] == 0
    assert parts.account.is_done
    assert not finished.stopped_by_others
    # Learned steps were collected by versions 0, 1 and 2; the learner's grew from 0 to 7 meanwhile.
    ages = [m.figures["replay/age"] for m in parts.sent if isinstance(m, LearnerReport) and m.figures["replay/age"]]
    assert ages
    assert all(-2 <= age <= BATCHES_DUE for age in ages)


def test_results_of_replaced_weights_do_not_count_for_the_new_ones(tmp_path: Path) -> None:
    store, _ = filled_store(UNIFORM)
    parts, others = (parts_of(tmp_path / name, store, UNIFORM) for name in "ab")
    progress = parts.setup.progress
    progress.results = RecentResults(10)
    trainer = ReplayTrainer(parts.account)
    trainer._source._receive_episodes(0.0)
    trainer.take_over(ReplayTrainer(others.account), first_version=1)
    progress.results.clear()  # as PBT does
    trainer._agree()
    assert progress.episodes == 1
    assert not progress.results.episodes, "it was in the queue"
    under_way, begun_later = EpisodeEnd(-1.0, 7), EpisodeEnd(5.0, 6)
    store.limiter.insert(6 * ROWS, reserved=6 * ROWS)
    for episode in (under_way, begun_later):
        assert store.completed[0].put(0, pack_episode(episode.episode_return, episode.episode_length))
    trainer._source._receive_episodes(0.0)
    trainer._agree()
    assert progress.results.episodes == [begun_later]
    assert progress.episodes == 3


def test_priorities_are_the_last_temporal_differences(tmp_path: Path) -> None:
    store, arena = filled_store(PRIORITISED)
    parts = parts_of(tmp_path, store, PRIORITISED)
    learner = learner_of(parts, WeightStore(arena, create=True))
    with learner.start():
        while not parts.setup.progress.batches:
            assert learner.turn(1.0)
        found = priorities_of(store)

    other, _ = filled_store(PRIORITISED)
    update = Update(algorithm_of(), OPTIMISER, generator=torch.Generator())
    sampler = make_sampler(other, PRIORITISED, ReturnRule(0.99, 0.5), np.array([SEED, 0], np.uint64))
    batch = sampler.make_batch(BATCH_SIZE)
    assert sampler.draw(batch, PRIORITISED.beta_at(1.0))
    step = update.step([to_tensors(batch, torch.device("cpu"))])
    assert step is not None
    assert step.td_error is not None
    expected = priorities_of(other)
    expected[batch.leaf] = step.td_error.abs().numpy() + PRIORITISED.epsilon
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (found != priorities_of(other)).any()


def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    store, arena = filled_store(UNIFORM)
    parts = parts_of(tmp_path, store, UNIFORM)
    learner = learner_of(parts, WeightStore(arena, create=True))
    with learner.start():
        while parts.setup.progress.batches < 3:
            assert learner.turn(1.0)
        parts.setup.context.stop.set()
        assert not learner.turn(1.0)
    learner.finish()
    # All steps are collected, but a resumed run has batches to learn from.
    assert store.limiter.is_full
    assert parts.sent[-1].report.batches == 3
    state = parts.setup.plan.checkpoints.load_latest(to_resume=True).state
    assert state["counters"]["agent_steps"] == TOTAL - 1
    again = parts_of(tmp_path, store, UNIFORM, resume=True)
    run_in_turn([learner_of(again, WeightStore(arena, create=True))])
    assert again.sent[-1].report.batches == BATCHES_DUE
    assert again.account.is_done


def test_steps_that_are_not_learned_count_as_missing_in_a_checkpoint_only(tmp_path: Path) -> None:
    store, _ = filled_store(UNIFORM)
    account = parts_of(tmp_path, store, UNIFORM).account
    account.begin()
    assert not account.is_done
    account.count(to_save=False)
    assert account.setup.progress.agent_steps == TOTAL
    account.count(to_save=True)
    assert account.setup.progress.agent_steps == TOTAL - 1
    account.has_ended = True
    account.count(to_save=True)
    assert account.setup.progress.agent_steps == TOTAL


def test_a_state_restores_draws_noise_and_moments(tmp_path: Path) -> None:
    parts, store = trained(tmp_path, UNIFORM)
    saved = parts.account.state_dict()
    fresh = parts_of(tmp_path, store, UNIFORM).account
    fresh.load_state_dict(saved)
    assert fresh.draws.tolist() == parts.account.draws.tolist()
    assert fresh.draws[1] > 0
    assert fresh.update.sgd_steps == BATCHES_DUE
    assert torch.equal(fresh.state_dict()["random"]["generator"], saved["random"]["generator"])
    # Another device has another kind of generator, so the noise restarts from its seed.
    fresh.setup.progress.sgd_steps = BATCHES_DUE
    fresh.load_state_dict({**saved, "random": {**saved["random"], "device": "cuda"}})
    expected = torch.Generator().manual_seed(fresh.noise_seed())
    assert torch.equal(fresh.state_dict()["random"]["generator"], expected.get_state())
    with pytest.raises(ValueError, match="it lacks updater, so another kind of run wrote it"):
        fresh.load_state_dict({"random": {}})


def test_a_number_that_the_user_has_set_goes_over_the_schedule(tmp_path: Path) -> None:
    store, _ = filled_store(UNIFORM)
    account = parts_of(tmp_path, store, UNIFORM).account
    account.setup.numbers.take(([("learning_rate", 0.25, 0)], [0, 0]), 0)
    account.follow_numbers()
    assert [group["lr"] for optimiser in account.update.optimisers for group in optimiser.param_groups] == [0.25]
    assert account.fill(LearnerReport(agent_steps=8)).learning_rate == 0.25


def test_the_noise_differs_between_ranks_seeds_and_steps(tmp_path: Path) -> None:
    store, _ = filled_store(UNIFORM)
    plan = parts_of(tmp_path, store, UNIFORM).setup.plan
    second = Alone()
    second.rank = 1
    seeds = {
        noise_seed(plan, Alone(), 0),
        noise_seed(plan, Alone(), 1),
        noise_seed(plan, second, 0),
        noise_seed(replace(plan, seed=SEED + 1), Alone(), 0),
    }
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert noise_seed(plan, Alone(), 1) in seeds


def test_rewards_are_summed_by_the_algorithms_rule() -> None:
    config = DQNConfig(algorithm="dqn", discount=0.9, reward_scale=2.0)
    assert return_rule(config) == ReturnRule(0.9, 2.0, math.inf)
    assert return_rule(replace(config, reward_clip=3.0)) == ReturnRule(0.9, 2.0, 3.0)


def test_the_limits_of_this_replay_leave_batches_to_learn() -> None:
    assert LIMITS.batches_due(TOTAL) == BATCHES_DUE == 8
