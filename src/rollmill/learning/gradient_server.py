"""A parameter server: the trainer that applies the gradients of several learners.

Asynchronous, as in PAL (Zhang et al., section V-B; Li et al. 2014): each gradient is one SGD step, applied in the order
in which the gradients were started. See :mod:`rollmill.storage.gradients` for the bound on staleness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.learning.learner import Learner, Trainer
from rollmill.learning.replay_trainer import ReplayAccount, return_rule
from rollmill.learning.report import LearnerReport
from rollmill.learning.sharing import FlatGradients, NetworkRing
from rollmill.learning.tensors import to_tensors
from rollmill.learning.update import refuse_running_statistics
from rollmill.models.convolutions import centred_layers
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.storage.episodes import unpack_episode
from rollmill.storage.gradients import FIGURES, GradientExchange, Submitted
from rollmill.storage.sequence_sampler import make_sampler

_POLL_S = 0.05
_MOST_MESSAGES = 4096


class GradientServer:
    """Applies gradients. See :class:`rollmill.learning.learner.Trainer`.

    Args:
        account: State of the run. Its update uses channels_last, the layout of shared gradients and weights.
        algorithm: The algorithm, on its device.
        exchange: The exchange of gradients.
        arrays: Shared memory with the rings of weights.
        max_staleness: SGD steps, at most, between a gradient's weights and those that it is applied to.
    """

    def __init__(
        self,
        account: ReplayAccount,
        algorithm: OffPolicyAlgorithm,
        *,
        exchange: GradientExchange,
        arrays: Any,
        max_staleness: int,
    ) -> None:
        refuse_running_statistics(algorithm, "learner.num_learners=1")
        setup = account.setup
        self._account = account
        self._context = setup.context
        self._ledger = setup.ledger
        self._store = account.store
        self._algorithm = algorithm
        self._update = account.update
        self._progress = setup.progress
        self._config = account.config
        self._replay = account.replay
        self._device = setup.device
        self._exchange = exchange
        self._arrays = arrays
        self._max_staleness = max_staleness
        self._messages = np.empty(_MOST_MESSAGES, np.int64)
        self._waiting: dict[int, Submitted] = {}
        self._staleness_sum, self._staleness_count, self._staleness_max = 0, 0, 0
        self._totals = np.zeros(len(FIGURES))
        self.is_stopped_by_others = False
        self.can_resume = True

    def begin(self) -> None:
        """Publish all networks for the learners."""
        self._account.begin()
        self._gradients = [FlatGradients(self._update, values) for values in self._exchange.values]
        self._ring = NetworkRing(self._arrays, self._algorithm)
        self._update.lay_out_moments()
        self._ring.publish(self._progress.sgd_steps, targets=True)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Receive the last episodes at the end."""
        yield
        self._receive_episodes()

    def advance(self, learner: Learner, wait_s: float) -> bool:
        """Apply the next gradient, if it is its turn."""
        if self._context.stop.is_set() or self._account.is_done:
            return False
        self._receive_episodes()
        # Does not wait if a gradient is ready.
        ready = self._next()
        for submitted in self._exchange.collect(0.0 if ready is not None else min(wait_s, _POLL_S)):
            self._waiting[submitted.learner] = submitted
        if (index := self._next()) is not None:
            self._apply(learner, self._waiting.pop(index))
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
        """See :class:`rollmill.learning.learner.Trainer`."""
        assert isinstance(other, GradientServer)
        self._account.take_over(other._account)

    def fill(self, report: LearnerReport) -> LearnerReport:
        """See :class:`rollmill.learning.learner.Trainer`."""
        count = self._staleness_count
        totals = self._exchange.figures.sum(axis=0)
        batches, ages, _ = totals - self._totals
        self._totals = totals
        report = self._account.fill(
            report,
            **{
                "replay/age": float(ages / batches) if batches else None,
                "replay/late_priorities": float(totals[2]),
                "learners/staleness_mean": self._staleness_sum / count if count else None,
                "learners/staleness_max": self._staleness_max if count else None,
            },
        )
        self._staleness_sum, self._staleness_count, self._staleness_max = 0, 0, 0
        return report

    def load_optimisers(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        self._account.update.load_optimisers(state)

    def state_dict(self) -> dict[str, Any]:
        """See :class:`rollmill.learning.learner.Trainer`."""
        return self._account.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        self._account.load_state_dict(state)

    def _next(self) -> int | None:
        version, most = self._progress.sgd_steps, self._max_staleness
        return self._exchange.next_turn(self._waiting, version=version, max_staleness=most)

    def _apply(self, learner: Learner, submitted: Submitted) -> None:
        """Run one SGD step with a learner's gradient."""
        self._ledger.enter(LearnerPhase.LEARNING)
        index = submitted.learner
        has_centred = self._centre_pictures()
        staleness = self._progress.sgd_steps - self._exchange.version_of(index)
        assert staleness <= self._max_staleness, "a gradient exceeds the maximum staleness"
        self._staleness_sum += staleness
        self._staleness_count += 1
        self._staleness_max = max(self._staleness_max, staleness)
        objectives = [i for i in range(len(self._update.objectives)) if submitted.objectives >> i & 1]
        for objective in objectives:
            self._gradients[index].take(objective)
        numbers = self._account.setup.numbers
        numbers.take(numbers.read(self._progress.batches), self._progress.batches)
        self._account.follow_numbers()
        names = self._exchange.statistic_names(index)
        values = torch.from_numpy(self._exchange.statistics[index, : len(names)].copy()).to(self._device)
        updated = self._update.apply(objectives, dict(zip(names, values, strict=True)))
        self._account.after_step(learner)
        self._ring.publish(self._progress.sgd_steps, targets=updated or has_centred)
        self._exchange.give_back(index)
        self._ledger.add(LearnerCounter.SAMPLES, self._account.samples)

    def _centre_pictures(self) -> bool:
        """Centre images before the first SGD step, on a batch drawn here, because learners keep their batches."""
        if self._progress.sgd_steps or not centred_layers(self._algorithm):
            return False
        sampler = make_sampler(self._store, self._replay, return_rule(self._config), self._account.draws)
        batch = sampler.make_batch(self._config.batch_size)
        if not sampler.draw(batch, 0.0):
            return False
        return self._update.centre_pictures(to_tensors(batch, self._device))

    def _receive_episodes(self) -> None:
        count = self._store.completed[0].get_many(self._messages, 0.0)
        self._progress.take_episodes([unpack_episode(m) for m in self._messages[:count].tolist()])
