"""The parameter server of the replay regime: applies the gradients of several learners, and owns what they change.

Asynchronous, as PAL's (Zhang et al., section V-B; Li et al. 2014): each gradient is an SGD step of its own, applied in
the order in which they were begun. See :mod:`rollmill.storage.gradients` for how stale they may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from rollmill.learning.config import LearnerConfig
from rollmill.learning.replay import ReplayLearnerBase, return_rule
from rollmill.learning.report import LearnerReport
from rollmill.learning.sharing import FlatGradients, NetworkRing
from rollmill.learning.tensors import to_tensors
from rollmill.models.pixel_levels import centred_layers
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.storage.episodes import unpack_episode
from rollmill.storage.gradients import FIGURES, GradientExchange, Submitted
from rollmill.storage.sequence_sampler import make_sampler

__all__ = ["ParameterServer"]

_POLL_S = 0.05
_MOST_MESSAGES = 4096


class ParameterServer(ReplayLearnerBase):
    """Owns an off-policy policy that several learners learn.

    Args:
        *args: See :class:`rollmill.learning.replay.ReplayLearnerBase`.
        exchange: Where gradients come from.
        arrays: Shared memory with the rings of weights.
        max_staleness: SGD steps, at most, between the weights that a gradient was computed at and those that it is
            applied to.
        **kwargs: See :class:`rollmill.learning.replay.ReplayLearnerBase`.
    """

    def __init__(
        self,
        *args: Any,
        config: LearnerConfig,
        exchange: GradientExchange,
        arrays: Any,
        max_staleness: int,
        **kwargs: Any,
    ) -> None:
        """As a learner's; then publishes all networks for the learners."""
        # Gradients and weights travel in channels_last, whatever the learners compute in, and it only adds them up.
        super().__init__(*args, config=replace(config, channels_last=True), **kwargs)
        _refuse_own_statistics(self._algorithm)
        self._exchange = exchange
        self._max_staleness = max_staleness
        self._gradients = [FlatGradients(self._updater, values) for values in exchange.values]
        self._ring = NetworkRing(arrays, self._algorithm)
        self._updater.lay_out_moments()
        self._messages = np.empty(_MOST_MESSAGES, np.int64)
        self._waiting: dict[int, Submitted] = {}
        self._staleness_sum, self._staleness_count, self._staleness_max = 0, 0, 0
        self._totals = np.zeros(len(FIGURES))
        self._ring.publish(self.version, targets=True)

    @contextmanager
    def _learning(self) -> Iterator[None]:
        yield
        self._hear()

    def _advance(self) -> bool:
        if self._context.stop.is_set() or self._is_done:
            return False
        self._hear()
        # With a gradient at hand that may be applied, there is nothing to wait for.
        ready = self._next()
        for submitted in self._exchange.collect(0.0 if ready is not None else _POLL_S):
            self._waiting[submitted.learner] = submitted
        if (learner := self._next()) is not None:
            self._apply(self._waiting.pop(learner))
        return True

    def _next(self) -> int | None:
        return self._exchange.next_turn(self._waiting, version=self.version, max_staleness=self._max_staleness)

    def _apply(self, submitted: Submitted) -> None:
        """One SGD step with a learner's gradient."""
        self._ledger.enter(LearnerPhase.LEARNING)
        learner = submitted.learner
        has_centred = self._centre_pictures()
        staleness = self.version - self._exchange.version_of(learner)
        assert staleness <= self._max_staleness, "a gradient is older than it may be"
        self._staleness_sum += staleness
        self._staleness_count += 1
        self._staleness_max = max(self._staleness_max, staleness)
        objectives = [i for i in range(len(self._updater.objectives)) if submitted.objectives >> i & 1]
        for index in objectives:
            self._gradients[learner].take(index)
        self._updater.scale_learning_rates(self._schedule.value(self.agent_steps))
        names = self._exchange.statistic_names(learner)
        values = torch.from_numpy(self._exchange.statistics[learner, : len(names)].copy()).to(self._device)
        updated = self._updater.apply(objectives, dict(zip(names, values, strict=True)))
        self._after_step()
        self._ring.publish(self.version, targets=updated or has_centred)
        self._exchange.give_back(learner)
        self._ledger.add(LearnerCounter.SAMPLES, self._samples)

    def _centre_pictures(self) -> bool:
        """Before the first SGD step, which the learners' batches are not for; where there is one, there is another."""
        if self.sgd_steps > self._sgd_steps_before or not centred_layers(self._algorithm):
            return False
        sampler = make_sampler(self._store, self._replay, return_rule(self._config), self._draws)
        batch = sampler.make_batch(self._config.batch_size)
        if not sampler.draw(batch, 0.0):
            return False
        return self._updater.centre_pictures(to_tensors(batch, self._device))

    def _hear(self) -> None:
        count = self._store.completed[0].get_many(self._messages, 0.0)
        self._take_episodes([unpack_episode(m) for m in self._messages[:count].tolist()])

    def _report(self) -> LearnerReport:
        report = super()._report()
        count = self._staleness_count
        totals = self._exchange.figures.sum(axis=0)
        batches, ages, _ = totals - self._totals
        self._totals = totals
        figures = {
            **report.figures,
            "replay/age": float(ages / batches) if batches else None,
            "replay/late_priorities": float(totals[2]),
            "learners/staleness_mean": self._staleness_sum / count if count else None,
            "learners/staleness_max": self._staleness_max if count else None,
        }
        self._staleness_sum, self._staleness_count, self._staleness_max = 0, 0, 0
        return replace(report, figures=figures)


def _refuse_own_statistics(algorithm: nn.Module) -> None:
    """Layers that count what they see count it in a learner, whose gradients alone come here."""
    for name, module in algorithm.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise ValueError(
                f"{name} is a {type(module).__name__}, whose statistics several learners do not share: use one without "
                "them, such as LayerNorm, or learner.num_learners=1"
            )
