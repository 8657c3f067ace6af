"""The trainer of off-policy algorithms: draw a batch, run one SGD step, update priorities."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.algorithms.off_policy_config import OffPolicyConfig
from rollmill.learning.batch_loader import BatchLoader
from rollmill.learning.league import League
from rollmill.learning.learner import Learner, Trainer
from rollmill.learning.live_numbers import News
from rollmill.learning.progress import LearnerSetup, noise_seed
from rollmill.learning.replay_source import ReplaySource
from rollmill.learning.report import LearnerReport
from rollmill.learning.results import OwnResults
from rollmill.learning.schedules import learning_rate_schedule
from rollmill.learning.tensors import empty_for, errors_of, to_tensors
from rollmill.learning.update import Update
from rollmill.models.convolutions import has_convolutions
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.storage.episodes import EpisodeEnd, episodes_of, plain_episodes
from rollmill.storage.matches import Match
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import Drawn, ReturnRule
from rollmill.storage.sequence_sampler import make_sampler

_CHECK_EVERY = 100  # SGD steps between checks for non-finite gradients


class ReplayAccount:
    """State shared by all trainers of off-policy algorithms: counts, schedule, random streams.

    Args:
        setup: The process, the run and its counters.
        store: The replay, as the learner of the policy sees it.
        algorithm: The algorithm, on its device.
        update: Runs its SGD steps.
        replay: The replay's configuration.
        generator: Noise of the losses.
        several: Whether the run has several learners.

    Attributes:
        setup: As given, like the other arguments.
        samples: Transitions of a batch.
        draws: uint64 ``[2]``: seed and counter of the draws, of each rank's own replay.
        steps_of_all: Agent steps that all ranks have inserted, as last reported.
        size_of_all: Agent steps in the replays of all ranks.
        has_ended: Whether the ranks have ended together, possibly with unused batches on some.
    """

    def __init__(
        self,
        setup: LearnerSetup,
        store: ReplayStore,
        algorithm: OffPolicyAlgorithm,
        *,
        update: Update,
        replay: ReplayConfig,
        generator: torch.Generator,
        several: bool,
    ) -> None:
        self.config = algorithm.config
        self.setup, self.store, self.update, self.replay = setup, store, update, replay
        self._progress = setup.progress
        self._generator = generator
        self._is_alone = setup.collective.world_size == 1
        self.samples = self.config.batch_size * replay.steps_per_sample
        self._way = f"{self.samples} transitions a batch, {update.path.precision}"
        if has_convolutions(algorithm) and not several:
            self._way += ", channels_last" if update.path.channels_last else ", channels_first"
        self._schedule = learning_rate_schedule(setup.optimiser, setup.plan.total_steps, setup.clock.share)
        self.draws = np.array([setup.plan.seed + setup.collective.rank, 0], np.uint64)
        self.steps_of_all, self.size_of_all = 0, 0
        self.has_ended = False
        self._sgd_steps_before = 0

    def begin(self) -> None:
        """Set the rate limiter to the checkpoint's counts."""
        # Valid until the ranks exchange their counts.
        self.steps_of_all = self._progress.agent_steps
        self._sgd_steps_before = self.store.limiter.learn_from(self._progress.sgd_steps)

    @property
    def is_done(self) -> bool:
        """Whether all steps are inserted and all their batches learned."""
        limiter = self.store.limiter
        learned = self._progress.sgd_steps - self._sgd_steps_before
        return limiter.is_done and learned == limiter.drawn - limiter.skipped

    def follow_numbers(self) -> None:
        """Use the scheduled learning rate, and the numbers that are set."""
        self.update.follow(self.setup.numbers, self._scheduled_rate)

    @property
    def _scheduled_rate(self) -> float:
        steps = self.setup.run_steps.value
        if self._is_alone:  # Ranks need the same rate.
            steps = max(0, steps - self.store.limiter.behind)
        return self._schedule.value(steps)

    def after_step(self, learner: Learner) -> None:
        """Count an SGD step, which is also one batch."""
        self._progress.batches += 1
        learner.after_step()
        if self._progress.sgd_steps % _CHECK_EVERY == 0:
            self.update.check()
        if self.setup.compute.slow_down_s:
            time.sleep(self.setup.compute.slow_down_s)

    def count(self, *, to_save: bool) -> None:
        """See :meth:`rollmill.learning.learner.Trainer.count`."""
        limiter, total = self.store.limiter, self.setup.plan.total_steps
        steps, of_run = (
            (limiter.inserted, limiter.inserted_by_all) if self._is_alone else (self.steps_of_all, self.steps_of_all)
        )
        if to_save and of_run >= total and not (self.is_done or self.has_ended):
            # All steps are collected, but not all learned: a resumed run must learn the rest.
            steps -= of_run - total + 1
        self._progress.agent_steps = steps

    def take_over(self, other: ReplayAccount) -> None:
        """Continue from another policy's optimisers and schedule."""
        self.update.take_over(other.update)
        self._schedule.load_state_dict(other._schedule.state_dict())

    def fill(self, report: LearnerReport, **figures: float | None) -> LearnerReport:
        """Add the replays' figures to a report.

        Args:
            report: The report, with the run's counters.
            **figures: Further columns of the trainer.
        """
        store = self.store
        of_replay: dict[str, float | None] = {
            "replay/size": float(store.size if self._is_alone else self.size_of_all),
            "replay/total_priority": store.tree.total(),
            "replay/max_priority": store.tree.max_priority,
            "replay/batches_skipped": float(store.limiter.skipped),
            "replay/samples_per_insert": report.sgd_steps * self.samples / max(1, report.agent_steps),
        }
        return replace(
            report,
            losses=self.update.take_statistics(),
            learning_rate=self.setup.numbers.value("learning_rate", self._scheduled_rate),
            fast_path=self._way,
            figures=of_replay | figures,
        )

    def noise_seed(self) -> int:
        """Seed of the losses' noise from here on; each rank has its own."""
        return noise_seed(self.setup.plan, self.setup.collective, self._progress.sgd_steps)

    def state_dict(self) -> dict[str, Any]:
        """See :class:`rollmill.learning.learner.Trainer`."""
        return {
            "updater": self.update.state_dict(),
            "random": {
                "device": self._generator.device.type,
                "generator": self._generator.get_state(),
                "draws": int(self.draws[1]),
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        if "updater" not in state:
            raise ValueError("it lacks updater, so another kind of run wrote it")
        self.update.load_state_dict(state["updater"])
        saved, device = state["random"], self._generator.device.type
        # missing in earlier checkpoints
        if saved.get("device", device) == device and not self.setup.collective.rank:
            self._generator.set_state(saved["generator"])
        else:  # generators of other devices differ, and each rank has its own
            self._generator.manual_seed(self.noise_seed())
        self.draws[1] = saved["draws"]


class ReplayTrainer:
    """Draws its own batches. See :class:`rollmill.learning.learner.Trainer`.

    Args:
        account: State of the run.
        league: The policy's matches and past selves; None if there are no other players.
    """

    def __init__(self, account: ReplayAccount, league: League | None = None) -> None:
        setup, store, replay = account.setup, account.store, account.replay
        self._account = account
        self._context = setup.context
        self._ledger = setup.ledger
        self._store = store
        self._update = account.update
        self._progress = setup.progress
        self._numbers = setup.numbers
        self._config = account.config
        self._replay = replay
        self._device = setup.device
        self._collective = setup.collective
        empty = empty_for(setup.device)
        self._sampler = make_sampler(store, replay, return_rule(account.config), account.draws, empty=empty)
        self._source = ReplaySource(
            store,
            self._sampler,
            replay,
            batch_size=account.config.batch_size // setup.collective.world_size,
            total_steps=store.limiter.limits.total_steps,
            learner=store.policy,  # One learner for each policy.
        )
        self._league = league
        topology = store.topology
        self._own_results = OwnResults(topology.num_groups * topology.group_rows)
        self._loader: BatchLoader[Drawn] | None = None
        self._batch: Drawn | None = None
        self._all_have_batches = False
        self._ages = _Mean()
        self._late_priorities = 0
        self.is_stopped_by_others = False
        self.can_resume = True

    def begin(self) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        self._account.begin()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Draw batches in the background."""
        self._scale_rewards()
        self._loader = BatchLoader(self._source, self._account.setup.ready)
        try:
            yield
        finally:
            self._loader.close()
            matches, episodes = self._source.take_matches(), self._source.take_episodes()
            self._count_results(episodes, matches)

    def advance(self, learner: Learner, wait_s: float) -> bool:
        """Learn from the next batch, if every rank has one."""
        assert self._loader is not None, "call advance() within session()"
        if self._batch is None:
            self._batch = self._loader.next(timeout_s=wait_s)
        if not self._agree():
            return False
        if self._batch is not None and self._all_have_batches:
            self._learn(learner, self._batch)
            self._source.give_back(self._batch)
            self._batch = None
        return True

    def check(self) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        self._update.check()

    def count(self, *, to_save: bool = False) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        self._account.count(to_save=to_save)

    def moments(self) -> tuple[float, float]:
        """Values are in units of the rewards."""
        return 0.0, 1.0

    def take_over(self, other: Trainer, *, first_version: int) -> None:
        """See :class:`rollmill.learning.learner.Trainer`; all steps stay in the replay."""
        assert isinstance(other, ReplayTrainer)
        # Results that have come until now are those of the replaced weights.
        matches, episodes = self._source.take_matches(), self._source.take_episodes()
        self._count_results(episodes, matches)
        self._own_results.begin(self._store.limiter.inserted_by_all)
        self._account.take_over(other._account)

    def fill(self, report: LearnerReport) -> LearnerReport:
        """See :class:`rollmill.learning.learner.Trainer`."""
        figures = {"replay/age": self._ages.take(), "replay/late_priorities": float(self._late_priorities)}
        if self._league is not None:
            figures |= self._league.figures(is_row=report.is_row)
        return self._account.fill(report, **figures)

    def load_optimisers(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        self._account.update.load_optimisers(state)

    def state_dict(self) -> dict[str, Any]:
        """See :class:`rollmill.learning.learner.Trainer`."""
        league = {} if self._league is None else {"league": self._league.state_dict()}
        return self._account.state_dict() | league

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        self._account.load_state_dict(state)
        if self._league is not None and "league" in state:
            self._league.load_state_dict(state["league"])

    def _count_results(self, episodes: Sequence[EpisodeEnd], matches: Sequence[Match]) -> None:
        """Count the episodes and matches that have ended."""
        own, matches = self._own_results.select(episodes, matches, self._store.limiter.inserted_by_all)
        self._progress.take_episodes(episodes, own)
        if self._progress.results is not None:
            self._progress.results.add(own, matches)
        if self._league is not None:
            for match in matches:
                self._league.count(match)

    def _scale_rewards(self) -> None:
        """Use the current scale for batches drawn from now on; one or two may be drawn already."""
        self._sampler.set_reward_scale(self._numbers.value("reward_scale", self._config.reward_scale))

    def _agree(self) -> bool:
        """Agree with the other ranks, once in each round, whether to continue and whether all have a batch."""
        stop, account = self._context.stop, self._account
        matches = self._source.take_matches()  # before the episodes, which so include theirs
        is_done = self._batch is None and account.is_done
        has_batch, episodes = self._batch is not None, plain_episodes(self._source.take_episodes())
        limiter, news = self._store.limiter, self._numbers.read(self._progress.batches)
        own = _Standing(stop.is_set(), is_done, has_batch, limiter.inserted, self._store.size, episodes, news)
        ranks = [_Standing._make(rank) for rank in self._collective.gather(tuple(own))]
        self._numbers.take(ranks[0].news, self._progress.batches)
        self._all_have_batches = all(rank.has_batch for rank in ranks)
        account.steps_of_all = sum(rank.inserted for rank in ranks)
        account.size_of_all = sum(rank.size for rank in ranks)
        ended = [episode for rank in ranks for episode in episodes_of(rank.episodes)]
        self._count_results(ended, matches)
        if any(rank.stops for rank in ranks) and not stop.is_set():
            stop.set()
            self.is_stopped_by_others = True
        # When one rank has learned all its steps, the other ranks' remaining batches are unused.
        account.has_ended = any(rank.is_done for rank in ranks)
        return not (stop.is_set() or account.has_ended)

    def _learn(self, learner: Learner, drawn: Drawn) -> None:
        """Run one SGD step and update priorities."""
        self._ledger.enter(LearnerPhase.LEARNING)
        self._context.inject_delay()
        self._ages.add(float(learner.version) - float(drawn.at_step["policy_version"].mean()))
        self._account.follow_numbers()
        self._scale_rewards()
        batch = to_tensors(drawn, self._device)
        self._update.centre_pictures(batch)
        step = self._update.step([batch])
        assert step is not None, "a replay's step is never interrupted"
        # Counted before checking its errors, so that a checkpoint's counters agree with the optimisers.
        self._ledger.add(LearnerCounter.SAMPLES, len(drawn) * self._replay.steps_per_sample)
        self._account.after_step(learner)
        if self._replay.is_prioritised:
            self._update.require_td_errors()
        if step.td_error is not None and self._replay.is_prioritised:
            errors = errors_of(step.td_error, self._progress.sgd_steps, len(drawn))
            self._late_priorities += self._sampler.update(drawn, errors)
        elif self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # its arrays are reused


class _Standing(NamedTuple):
    """A rank's progress as sent to the other ranks; plain data."""

    stops: bool
    is_done: bool
    has_batch: bool
    inserted: int
    size: int
    episodes: list[list[float]]
    news: News


class _Mean:
    """Mean of the values added since the last call of ``take``; None without values."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1

    def take(self) -> float | None:
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


def return_rule(config: OffPolicyConfig) -> ReturnRule:
    """Return an algorithm's rule for summing rewards."""
    return ReturnRule(
        config.discount, config.reward_scale, math.inf if config.reward_clip is None else config.reward_clip
    )
