"""One of several learners of the replay regime: draws its own batches and submits gradients to the server."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollmill.algorithms.base import OffPolicyAlgorithm
from rollmill.learning.batch_loader import BatchLoader
from rollmill.learning.config import ComputeConfig, OptimiserConfig
from rollmill.learning.off_policy_measure import choose_replay_path
from rollmill.learning.replay_source import ReplaySource
from rollmill.learning.replay_trainer import return_rule
from rollmill.learning.sharing import FlatGradients, NetworkRing
from rollmill.learning.tensors import empty_for, errors_of, to_tensors
from rollmill.learning.update import Update
from rollmill.models.device import take_device
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.runtime.child import ChildContext
from rollmill.runtime.control import ControlBlock
from rollmill.specs import EnvSpec
from rollmill.storage.gradients import GradientExchange
from rollmill.storage.replay import ReplayStore
from rollmill.storage.replay_config import ReplayConfig
from rollmill.storage.replay_sampler import Drawn, Sampler
from rollmill.storage.sequence_sampler import make_sampler
from rollmill.storage.weights import NOT_PUBLISHED

_POLL_S = 0.2


class GradientLearner:
    """Computes gradients until the stop flag is set.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The replay.
        exchange: The exchange of gradients.
        index: Index of this learner.
        control: Tells which numbers the server uses.
        algorithm: This learner's copy of the algorithm.
        arrays: Shared memory with the rings of weights.
        spec: The environment.
        optimiser: As of the server.
        compute: Device, precision.
        replay: The replay's configuration.
        total_steps: Agent steps of the run.
        seed: Keys this learner's draws and noise.
    """

    def __init__(
        self,
        context: ChildContext,
        store: ReplayStore,
        exchange: GradientExchange,
        index: int,
        control: ControlBlock,
        algorithm: OffPolicyAlgorithm,
        *,
        arrays: Mapping[str, np.ndarray],
        spec: EnvSpec,
        optimiser: OptimiserConfig,
        compute: ComputeConfig,
        replay: ReplayConfig,
        total_steps: int,
        seed: int,
    ) -> None:
        """Move the algorithm to its device."""
        self._context = context
        self._ledger = context.ledger
        self._store = store
        self._exchange = exchange
        self._index = index
        self._control = control
        self._config = algorithm.config
        self._replay = replay
        self._total_steps = total_steps
        self._device = take_device(compute.device)
        algorithm = algorithm.to(self._device)
        # Before the update, which may change the memory format of convolutions: such parameters are then copies instead
        # of views of the weights' bytes.
        self._networks = NetworkRing(arrays, algorithm)
        self._ledger.enter(LearnerPhase.MEASURING)
        path = choose_replay_path(algorithm, spec, compute, replay, is_stop_wanted=context.stop.is_set)
        generator = torch.Generator(self._device).manual_seed(seed)
        self._update = Update(algorithm, optimiser, path, generator=generator)
        self._gradients = FlatGradients(self._update, exchange.values[index])
        self._draws = np.array([seed, 0], np.uint64)
        self._batches = 0
        self._names: list[str] = []

    def run(self) -> None:
        """Learn until the stop flag is set."""
        # Wait until the server has published the weights that the run starts or resumes from.
        while self._networks.newest == NOT_PUBLISHED:
            self._ledger.enter(LearnerPhase.WAITING)  # a sign of life
            if self._context.stop.is_set():
                return
            time.sleep(_POLL_S / 10)
        rule, empty = return_rule(self._config), empty_for(self._device)
        sampler = make_sampler(self._store, self._replay, rule, self._draws, empty=empty)
        # Stream 0 is the server's.
        source = ReplaySource(
            self._store,
            sampler,
            self._replay,
            batch_size=self._config.batch_size,
            total_steps=self._total_steps,
            learner=self._index + 1,
        )
        loader = BatchLoader(source)
        try:
            while not self._context.stop.is_set():
                self._ledger.enter(LearnerPhase.WAITING)
                if not self._exchange.wait_for_turn(self._index, _POLL_S):
                    continue
                sampler.set_reward_scale(self._reward_scale)
                batch = self._wait_for_batch(loader)
                if batch is None:
                    break
                self._learn(batch, sampler)
                source.give_back(batch)
        finally:
            loader.close()

    @property
    def _reward_scale(self) -> float:
        scale = self._control.number("reward_scale")
        return self._config.reward_scale if math.isnan(scale) else scale

    def _wait_for_batch(self, loader: BatchLoader[Drawn]) -> Drawn | None:
        while not self._context.stop.is_set():
            self._ledger.enter(LearnerPhase.WAITING)
            if (batch := loader.next()) is not None:
                return batch
        return None

    def _learn(self, drawn: Drawn, sampler: Sampler[Any]) -> None:
        """Compute one gradient. Between announcement and submission it only computes, because others may wait."""
        self._ledger.enter(LearnerPhase.PUBLISHING)
        self._exchange.announce(self._index, self._networks.newest)
        version = self._networks.read()
        self._exchange.announce(self._index, version)
        self._ledger.enter(LearnerPhase.LEARNING)
        self._context.inject_delay()
        batch = to_tensors(drawn, self._device)
        self._batches += 1
        td_error: Tensor | None = None
        statistics: dict[str, Tensor] = {}
        objectives = 0
        for index in self._update.due(self._batches):
            loss = self._update.differentiate(index, batch)
            self._gradients.put(index)
            objectives |= 1 << index
            statistics |= loss.statistics
            if td_error is None:
                td_error = loss.td_error
        self._leave_statistics(statistics)
        self._exchange.submit(self._index, version, objectives)
        late = 0
        if self._replay.is_prioritised:
            if td_error is not None:
                late = sampler.update(drawn, errors_of(td_error, self._batches, len(drawn)))
            self._update.require_td_errors()
        age = version - float(drawn.at_step["policy_version"].mean())
        self._exchange.figures[self._index] += (1.0, age, late)
        self._ledger.add(LearnerCounter.SAMPLES, len(drawn) * self._replay.steps_per_sample)
        self._ledger.add(LearnerCounter.GRADIENTS, 1)

    def _leave_statistics(self, statistics: Mapping[str, Tensor]) -> None:
        names = list(statistics)
        if names != self._names:
            self._exchange.name_statistics(self._index, names)
            self._names = names
        if names:
            values = torch.stack([value.float() for value in statistics.values()]).cpu().numpy()
            self._exchange.statistics[self._index, : len(names)] = values
