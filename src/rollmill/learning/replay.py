"""The learner of the replay regime: draw a batch, one SGD step, new priorities, publish the weights."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.learning.base import LearnerBase, RunPlan
from rollmill.learning.collective import Collective
from rollmill.learning.config import LearnerConfig
from rollmill.learning.off_policy_measure import make_updater
from rollmill.learning.optimisers import NonFiniteGradientError
from rollmill.learning.replay_loader import ReplayLoader
from rollmill.learning.report import LearnerFinished, LearnerReport
from rollmill.learning.schedules import learning_rate_factor
from rollmill.learning.tensors import errors_of, to_tensors
from rollmill.models.device import take_device
from rollmill.models.memory_format import has_convolutions
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.runtime.child import ChildContext
from rollmill.runtime.seeds import int_seed
from rollmill.specs import EnvSpec
from rollmill.storage.episodes import episodes_of, plain_episodes
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import Drawn, ReturnRule
from rollmill.storage.sequence_sampler import make_sampler
from rollmill.storage.weights import WeightStore

__all__ = ["ReplayLearner", "ReplayLearnerBase", "return_rule"]

_CHECK_EVERY = 100  # SGD steps from one look for gradients that were not finite to the next


class ReplayLearnerBase(LearnerBase):
    """Owns an off-policy policy. Each batch is one SGD step.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The replay.
        weights: Where versions of the acting network are published.
        algorithm: Freshly initialised.
        spec: The environment.
        config: Optimiser, batch size, discount, precision.
        replay: What is drawn, and how.
        plan: The run.
        collective: The ranks that learn together, each from a replay of its own.
    """

    _SAVED_PARTS = ("model", "updater", "counters", "recent_episodes", "random")
    _store: ReplayStore

    def __init__(
        self,
        context: ChildContext,
        store: ReplayStore,
        weights: WeightStore,
        algorithm: OffPolicyAlgorithm,
        *,
        spec: EnvSpec,
        config: LearnerConfig,
        replay: ReplayConfig,
        plan: RunPlan,
        collective: Collective | None = None,
    ) -> None:
        """Restores the newest checkpoint when resuming, and publishes the first weights."""
        super().__init__(context, weights, plan, collective)
        self._store = store
        self._config = config
        self._replay = replay
        self._samples = config.batch_size * replay.steps_per_sample
        torch.manual_seed(plan.seed)
        self._ledger.enter(LearnerPhase.MEASURING)
        self._device = take_device(config.device)
        self._algorithm = algorithm.to(self._device)
        self._generator = torch.Generator(self._device).manual_seed(self._noise_seed())
        self._updater = make_updater(
            self._algorithm,
            spec,
            config,
            replay,
            generator=self._generator,
            collective=self._collective,
            is_stop_wanted=context.stop.is_set,
        )
        self._way = f"{self._samples} transitions a batch, {self._updater.precision}"
        if has_convolutions(algorithm) and config.num_learners == 1:
            self._way += ", channels_last" if self._updater.channels_last else ", channels_first"
        self._is_stopped_by_others = False
        # Whether the ranks have ended together, some perhaps with batches that have no counterpart.
        self._have_ended = False
        self._steps_of_all, self._size_of_all = 0, 0
        self._schedule = learning_rate_factor(config, plan.total_steps, self._clock.share)
        # Seed and counter of the draws; of each rank's own replay.
        self._draws = np.array([plan.seed + self._collective.rank, 0], np.uint64)
        self._ages = _Mean()
        self._left_as_they_were = 0
        if plan.resume:
            self._restore()
            # Until the ranks tell each other what they have inserted.
            self._steps_of_all = self.agent_steps
        self._sgd_steps_before = store.limiter.learn_from(self.sgd_steps)
        self._mirror(self._algorithm.acting)

    def _noise_seed(self) -> int:
        """Of the noise in losses, from here on: each rank's own, as its part of the batch is."""
        return int_seed(self._plan.seed, f"noise of rank {self._collective.rank}", self.sgd_steps, bits=63)

    @property
    def _networks(self) -> OffPolicyAlgorithm:
        return self._algorithm

    def run(self) -> None:
        """Learns until all steps are inserted and all their batches learned, or until the stop flag is set."""
        if not self.agent_steps:
            self._save()
        self._leave_for_evaluation()
        self._send(self._report())
        with self._learning():
            try:
                self._ledger.enter(LearnerPhase.WAITING)
                while self._advance():
                    self._look_around()
                    self._ledger.enter(LearnerPhase.WAITING)
                self._updater.check()
            except NonFiniteGradientError:
                # Gradients that are not finite are left out, so what has been learned is sound.
                self._save()
                raise
        self._publish_last()
        path = self._save()
        self._leave_for_evaluation(is_end=True)
        last = self._report()
        last = replace(last, is_row=self._has_new_row)
        self._context.send(LearnerFinished(last, str(path), self._is_stopped_by_others))

    @abstractmethod
    def _learning(self) -> AbstractContextManager[None]:
        """What learning needs while it goes on."""

    @abstractmethod
    def _advance(self) -> bool:
        """Takes the next SGD step; waits a moment, at most, for what it needs. Hears of episodes.

        Returns:
            Whether to go on.
        """

    @property
    def _is_done(self) -> bool:
        limiter = self._store.limiter
        return limiter.is_done and self.sgd_steps - self._sgd_steps_before == limiter.drawn - limiter.skipped

    @property
    def _inserted(self) -> int:
        """Agent steps that all ranks have inserted, as far as this one knows."""
        return self._store.limiter.inserted if self._collective.world_size == 1 else self._steps_of_all

    def _after_step(self) -> None:
        self.sgd_steps += 1
        self.batches += 1
        self._ledger.add(LearnerCounter.SGD_STEPS, 1)
        if self.sgd_steps % _CHECK_EVERY == 0:
            self._updater.check()
        if self.version - self._published >= self._config.publish_every:
            self._publish()
        if self._config.slow_down_s:
            time.sleep(self._config.slow_down_s)

    def _look_around(self) -> None:
        """What is to be done now and then, also while there is nothing to learn from."""
        self.agent_steps = self._inserted
        self._leave_for_evaluation()
        self._report_if_due()
        if not self._collective.rank and self._checkpoints.is_due(self.agent_steps):
            self._save()

    def _report(self) -> LearnerReport:
        self.agent_steps = self._inserted
        return LearnerReport(
            agent_steps=self.agent_steps,
            batches=self.batches,
            sgd_steps=self.sgd_steps,
            policy_version=self._published,
            episodes=self.episodes,
            recent_episodes=tuple(self._recent_episodes),
            losses=self._updater.take_statistics(),
            learning_rate=self._config.learning_rate * self._schedule.value(self.agent_steps),
            fast_path=self._way,
            figures={
                "replay/age": self._ages.take(),
                "replay/size": float(self._store.size if self._collective.world_size == 1 else self._size_of_all),
                "replay/total_priority": self._store.tree.total(),
                "replay/max_priority": self._store.tree.max_priority,
                "replay/late_priorities": float(self._left_as_they_were),
                "replay/batches_skipped": float(self._store.limiter.skipped),
                "replay/samples_per_insert": self.sgd_steps * self._samples / max(1, self.agent_steps),
            },
        )

    def _progress(self) -> LearnerReport:
        # Nothing has been learned since the last row: there are no means to be kept for the next one.
        return replace(self._report(), is_row=False)

    def _save(self) -> Path | None:
        """Writes a checkpoint."""
        self.agent_steps = self._inserted
        if self.agent_steps >= self._total_steps and not (self._is_done or self._have_ended):
            # All is collected, but not learned: whoever resumes the run has something left to do.
            self.agent_steps = self._total_steps - 1
        return self._write_state(
            {
                "model": self._algorithm.state_dict(),
                "updater": self._updater.state_dict(),
                "random": {
                    "device": self._device.type,
                    "generator": self._generator.get_state(),
                    "draws": int(self._draws[1]),
                },
            }
        )

    def _take_over(self, state: Mapping[str, Any]) -> None:
        super()._take_over(state)
        self._updater.load_state_dict(state["updater"])
        saved = state["random"]
        # Earlier checkpoints do not say.
        if saved.get("device", self._device.type) == self._device.type and not self._collective.rank:
            self._generator.set_state(saved["generator"])
        else:  # Another kind of device's generator has another kind of state, another rank's noise is its own.
            self._generator.manual_seed(self._noise_seed())
        self._draws[1] = saved["draws"]


class ReplayLearner(ReplayLearnerBase):
    """Draws its batches itself, in a thread of its own. See :class:`ReplayLearnerBase`."""

    @contextmanager
    def _learning(self) -> Iterator[None]:
        self._sampler = make_sampler(
            self._store,
            self._replay,
            return_rule(self._config),
            self._draws,
            empty=_pinned if self._device.type == "cuda" else np.empty,
        )
        self._batch: Drawn | None = None
        self._loader = ReplayLoader(
            self._store,
            self._sampler,
            self._replay,
            batch_size=self._config.batch_size // self._collective.world_size,
            total_steps=self._store.limiter.limits.total_steps,
        )
        try:
            yield
        finally:
            self._loader.close()
            self._take_episodes(self._loader.take_episodes())

    def _advance(self) -> bool:
        if self._batch is None:
            self._batch = self._loader.next()
        if not self._agree():
            return False
        if self._batch is not None and self._all_have_batches:
            self._learn(self._batch)
            self._loader.give_back(self._batch)
            self._batch = None
        return True

    def _agree(self) -> bool:
        """What every rank calls once in each round: whether to go on, and whether all have a batch."""
        stop = self._context.stop
        is_done = self._batch is None and self._is_done
        has_batch, episodes = self._batch is not None, plain_episodes(self._loader.take_episodes())
        own = _Standing(stop.is_set(), is_done, has_batch, self._store.limiter.inserted, self._store.size, episodes)
        ranks = [_Standing._make(rank) for rank in self._collective.gather(tuple(own))]
        self._all_have_batches = all(rank.has_batch for rank in ranks)
        self._steps_of_all = sum(rank.inserted for rank in ranks)
        self._size_of_all = sum(rank.size for rank in ranks)
        self._take_episodes([episode for rank in ranks for episode in episodes_of(rank.episodes)])
        if any(rank.stops for rank in ranks) and not stop.is_set():
            stop.set()
            self._is_stopped_by_others = True
        # Where one rank's steps are all learned, the others' last batches, if they have any, have no counterpart.
        self._have_ended = any(rank.is_done for rank in ranks)
        return not (stop.is_set() or self._have_ended)

    def _learn(self, drawn: Drawn) -> None:
        """One SGD step, and what it says about priorities."""
        self._ledger.enter(LearnerPhase.LEARNING)
        self._context.inject_delay()
        self._ages.add(float(self.version) - float(drawn.at_step["policy_version"].mean()))
        self._updater.scale_learning_rates(self._schedule.value(self.agent_steps))
        td_error = self._updater.step(to_tensors(drawn, self._device))
        # It counts, whatever is wrong with its errors: what a checkpoint then says agrees with the optimisers.
        self._ledger.add(LearnerCounter.SAMPLES, len(drawn) * self._replay.steps_per_sample)
        self._after_step()
        if self._replay.is_prioritised:
            self._updater.require_td_errors()
        if td_error is not None and self._replay.is_prioritised:
            self._left_as_they_were += self._sampler.update(drawn, errors_of(td_error, self.sgd_steps, len(drawn)))
        elif self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # Its arrays are filled again.


class _Standing(NamedTuple):
    """How far a rank has come, as the others hear it; of plain data."""

    stops: bool
    is_done: bool
    has_batch: bool
    inserted: int
    size: int
    episodes: list[list[float]]


class _Mean:
    """The mean of what was added since it was last taken; None of nothing."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._sum += value
        self._count += 1

    def take(self) -> float | None:
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


def return_rule(config: LearnerConfig) -> ReturnRule:
    """How rewards add up for a learner."""
    return ReturnRule(
        config.discount, config.reward_scale, math.inf if config.reward_clip is None else config.reward_clip
    )


def _pinned(shape: Any, dtype: Any) -> Any:
    """Page-locked, for a GPU, which copies from it without a detour."""
    like = torch.from_numpy(np.empty(0, dtype))
    return torch.empty(shape, dtype=like.dtype, pin_memory=True).numpy()
