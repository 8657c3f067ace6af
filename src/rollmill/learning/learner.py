"""The learner process: admit a batch, learn from it, publish the weights, report, save."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.learning.action_bounds import ActionBounds
from rollmill.learning.base import LearnerBase, RunPlan
from rollmill.learning.batches import Assembler, Batch, BatchAssembler, BatchLoader
from rollmill.learning.collective import Collective
from rollmill.learning.config import LearnerConfig
from rollmill.learning.entropy_guard import EntropyGuard
from rollmill.learning.fast_path import FastPath
from rollmill.learning.fingerprints import Fingerprints
from rollmill.learning.lag import LagStatistics
from rollmill.learning.measure import choose_fast_path
from rollmill.learning.objective import learns_in_time
from rollmill.learning.optimisers import (
    NonFiniteGradientError,
    load_optimiser_state,
    make_optimiser,
    optimiser_state,
    set_learning_rate,
)
from rollmill.learning.report import LearnerFinished, LearnerReport, PolicyLag
from rollmill.learning.schedules import coefficient_schedule, learning_rate_schedule
from rollmill.learning.targets import NonFiniteSampleError, Targets, targets_of
from rollmill.learning.update import Updater, Whole
from rollmill.models.actor_critic import ActorCritic
from rollmill.models.device import take_device
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.runtime.child import ChildContext
from rollmill.specs import EnvSpec
from rollmill.storage.episodes import EpisodeEnd, episodes_of, plain_episodes
from rollmill.storage.random_states import pack_random_states, restore_random_states
from rollmill.storage.slots import SlotStore
from rollmill.storage.weights import WeightStore

# Whose brightness stands for a batch's.
_PICTURES = 8


class _Prepared(NamedTuple):
    batch: Batch
    targets: Targets


class Learner(LearnerBase):
    """Owns an on-policy policy: its weights, optimiser, schedules and counters.

    Args:
        context: The process's stop flag, ledger and messages.
        store: The slots.
        weights: Where versions are published.
        model: The network, freshly initialised.
        spec: The environment.
        config: Everything about learning.
        plan: The run.
        fingerprints: Where every update leaves its fingerprint; None leaves none.
        collective: The ranks that learn together.
    """

    _SAVED_PARTS = ("model", "optimiser", "learning_rate", "counters", "recent_episodes", "random")

    def __init__(
        self,
        context: ChildContext,
        store: SlotStore,
        weights: WeightStore,
        model: ActorCritic,
        *,
        spec: EnvSpec,
        config: LearnerConfig,
        plan: RunPlan,
        fingerprints: Fingerprints | None = None,
        collective: Collective | None = None,
    ) -> None:
        """Restores the newest checkpoint when resuming, measures the fast path, and publishes the first weights."""
        super().__init__(context, weights, plan, collective)
        self._store = store
        self._config = config
        self._fingerprints = fingerprints
        self._random = np.random.default_rng(plan.seed)
        torch.manual_seed(plan.seed)
        self._device = take_device(config.device)
        self._model = model.to(self._device)
        end = self._total_steps, self._clock.share
        self._learning_rate = learning_rate_schedule(config, *end)
        self._entropy = coefficient_schedule(config.entropy_schedule, config.entropy_weight, *end)
        self._clip = coefficient_schedule(config.clip_schedule, config.clip_range, *end)
        self._entropy_guard = EntropyGuard(spec.action, config.entropy_floor)

        self.stale_samples = 0
        self.invalid_samples = 0
        self._is_between_updates = True
        self._is_stopped_by_others = False
        self._lag = LagStatistics()
        self._bounds = ActionBounds(self._model.distribution.spec, squash=self._model.distribution.squash)
        self._has_bounds = spec.action.num_continuous > 0
        self._at_bound: float | None = None

        self._ledger.enter(LearnerPhase.MEASURING)
        self._fast_path = self._choose_fast_path(spec)
        self._model.set_channels_last(self._fast_path.channels_last)
        self._optimiser = make_optimiser(self._model.parameters(), config, self._device)
        self._updater = Updater(
            self._model,
            self._optimiser,
            store.observation,
            config,
            self._fast_path,
            self._random,
            self._collective,
        )
        if plan.resume:
            self._restore()
        self._value_moments = self._model.value_moments()
        self._mirror(self._model)

    @property
    def _rollout_length(self) -> int:
        return self._store.topology.rollout_length

    @property
    def _networks(self) -> ActorCritic:
        return self._model

    def _choose_fast_path(self, spec: EnvSpec) -> FastPath:
        return choose_fast_path(
            self._model,
            spec,
            self._config,
            in_time=learns_in_time(self._model, self._config),
            is_stop_wanted=self._context.stop.is_set,
        )

    def _make_assembler(self) -> Assembler:
        return BatchAssembler(self._store, num_trajectories=self._config.batch_size // self._rollout_length)

    def run(self) -> None:
        """Learns until ``total_steps`` or the stop flag; saves a checkpoint at the end, whatever the reason."""
        if not self.agent_steps:
            self._save()
        self._leave_for_evaluation()
        loader = BatchLoader(self._store, self._make_assembler(), self._prepare)
        # Says what was chosen, and is where the clock of the speed starts.
        self._send(self._first_report())
        try:
            while self.agent_steps < self._total_steps:
                self._ledger.enter(LearnerPhase.WAITING)
                prepared = loader.next()
                if prepared is not None or self._context.stop.is_set():
                    episodes = self._agree_to_go_on(prepared)
                    if prepared is None or episodes is None:
                        break
                    self._take_episodes(episodes)
                    self._entropy_guard.observe(episodes, self._recent_episodes)
                    self._learn(prepared)
                    self._leave_for_evaluation()
                self._report_if_due()
                if self._is_save_due():
                    self._save()
        except (NonFiniteGradientError, NonFiniteSampleError):
            # Gradients that are not finite are left out, so what has been learned is sound.
            self._write_checkpoint(self._in_flight_after_failure())
            raise
        finally:
            loader.close()
        path = self._save()
        self._leave_for_evaluation(is_end=True)
        last = replace(self._report(), is_row=self._has_new_row)
        self._context.send(LearnerFinished(last, str(path), self._is_stopped_by_others))

    def _first_report(self) -> LearnerReport:
        return self._report()

    def _agree_to_go_on(self, prepared: _Prepared | None) -> list[EpisodeEnd] | None:
        """What every rank calls once for each batch, or when it is to stop.

        Returns:
            The episodes that ended within all ranks' batches; None when one of them is to stop.
        """
        episodes = [] if prepared is None else list(prepared.batch.episodes)
        answers = self._collective.gather((self._context.stop.is_set(), plain_episodes(episodes)))
        if any(stops for stops, _ in answers):
            if not self._context.stop.is_set():
                self._context.stop.set()
                self._is_stopped_by_others = True
            return None
        return [episode for _, ended in answers for episode in episodes_of(ended)]

    def _prepare(self, batch: Batch) -> _Prepared:
        """In the loader's thread: what needs no weights."""
        self._context.inject_delay()
        mean, std = self._moments_of(batch)
        targets = targets_of(
            batch,
            self._config,
            value_mean=mean,
            value_std=std,
            normalises_returns=self._model.normalises_returns,
        )
        return _Prepared(batch, targets)

    def _moments_of(self, batch: Batch) -> tuple[float, float]:
        """Mean and deviation of the returns that the batch's values are in units of."""
        return self._value_moments

    def _is_save_due(self) -> bool:
        return self._checkpoints.is_due(self.agent_steps)

    def _learn(self, prepared: _Prepared) -> None:
        """One batch: admission sample by sample, all SGD steps, release of the slots, schedules."""
        self._ledger.enter(LearnerPhase.LEARNING)
        batch, targets = prepared
        steps_before = self.sgd_steps
        keep = self._admit(batch)
        whole = Whole.of(targets, keep, self._collective, self._config)
        self.invalid_samples += int((~whole.keep).sum()) - int((~keep).sum())  # those of the other ranks
        set_learning_rate(self._optimiser, self._learning_rate.value(self.agent_steps))
        self._update_normalisers(batch, targets, keep, whole)
        if self._has_bounds:
            self._at_bound = self._bounds.share_at(batch.arrays["action_continuous"], keep)
        self._is_between_updates = False
        entropy_coef = self._entropy.value(self.agent_steps)
        is_complete = self._updater.learn(
            batch,
            targets,
            keep,
            whole,
            clip_range=self._clip.value(self.agent_steps),
            entropy_coef=self._entropy_guard.coefficient(entropy_coef),
            after_step=self._after_step,
            is_stopping=self._context.stop.is_set,
        )
        self._slow_down()
        self._is_between_updates = is_complete
        if not is_complete and not self._context.stop.is_set():
            self._context.stop.set()
            self._is_stopped_by_others = True
        # What was begun when the run was told to end is not counted.
        consumed = int(whole.keep.sum()) if is_complete else 0
        self.agent_steps += consumed
        if self._fingerprints is not None and is_complete:
            self._fingerprints.add(self.batches, batch, self._model, self._optimiser)
        self.batches += is_complete
        self._context.inject_delay()
        self._publish_last()
        self._context.inject_delay()
        # In lockstep a free slot says that the next version is there, which an update left half way does not make.
        for slot in batch.slots if is_complete else ():
            self._store.release(slot)
        self._ledger.add(LearnerCounter.SAMPLES, consumed)
        if self.sgd_steps > steps_before:
            if self._config.schedule == "kl":
                self._learning_rate.update(self._updater.last_kl())
            if self._entropy_guard.is_asking:
                self._entropy_guard.update(self._updater.last_entropy(), entropy_coef)

    def _slow_down(self) -> None:
        until = time.monotonic() + self._config.slow_down_s
        while not self._context.stop.is_set() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _admit(self, batch: Batch) -> NDArray[np.bool_]:
        """Which samples count, bool ``[T, N]``: valid, and not older than ``max_policy_lag``."""
        valid = batch.arrays["valid"].astype(np.bool_)
        lag = self.version - batch.arrays["policy_version"].astype(np.int64)
        self._lag.observe(lag, valid)
        fresh = lag <= self._config.max_policy_lag
        keep: NDArray[np.bool_] = valid & fresh
        self.stale_samples += int((valid & ~fresh).sum())
        self.invalid_samples += int((~valid).sum())
        return keep

    def _update_normalisers(self, batch: Batch, targets: Targets, keep: NDArray[np.bool_], whole: Whole) -> None:
        """Running statistics take in each batch once, before it is learned from."""
        if not whole.keep.any():
            return
        index = batch.observation_index[: self._rollout_length]
        if self._model.normalised_entries:
            observations = self._updater.observations(index[keep], self._model.normalised_entries)
            self._model.update_normaliser(observations, sum_over_ranks=self._collective.sum)
        if self._model.centres_pixels:
            counted = np.flatnonzero(whole.keep)
            chosen = self._random.choice(counted, min(len(counted), _PICTURES), replace=False)
            pictures = self._updater.observations(index.reshape(-1)[whole.own_samples(chosen)])
            self._model.update_pixel_levels(self._pictures_of_all(pictures))
        if targets.return_ is not None and self._model.normalises_returns:
            returns = torch.from_numpy(targets.return_[keep]).to(self._device)
            self._model.update_value_normaliser(returns, sum_over_ranks=self._collective.sum)
            # One tuple, so that the loader's thread never sees the mean of one batch with the deviation of another.
            self._value_moments = self._model.value_moments()

    def _pictures_of_all(self, pictures: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._collective.world_size == 1:
            return pictures
        parts = self._collective.gather({name: tensor.cpu() for name, tensor in pictures.items()})
        return {name: torch.cat([part[name] for part in parts]).to(self._device) for name in pictures}

    def _after_step(self) -> None:
        self.sgd_steps += 1
        self._ledger.add(LearnerCounter.SGD_STEPS, 1)
        if self.version - self._published >= self._config.publish_every:
            self._publish()
        self._ledger.enter(LearnerPhase.LEARNING)

    def _report(self) -> LearnerReport:
        report = replace(self._progress(), losses=self._updater.take_losses(), is_row=True)
        self._lag = LagStatistics()
        return report

    def _progress(self) -> LearnerReport:
        lag = self._lag
        return LearnerReport(
            agent_steps=self.agent_steps,
            batches=self.batches,
            sgd_steps=self.sgd_steps,
            policy_version=self._published,
            episodes=self.episodes,
            recent_episodes=tuple(self._recent_episodes),
            learning_rate=self._learning_rate.value(self.agent_steps),
            fast_path=self._fast_path.describe(),
            precision=self._fast_path.precision,
            figures={"actions_at_bound": self._at_bound} if self._has_bounds else {},
            lag=PolicyLag(
                mean=lag.mean,
                maximum=lag.maximum,
                histogram=tuple(lag.histogram.tolist()),
                versions_per_trajectory=lag.versions_per_trajectory,
                stale_samples=self.stale_samples,
                invalid_samples=self.invalid_samples,
            ),
            is_row=False,
        )

    def _save(self) -> Path | None:
        """Writes a checkpoint, on rank 0; every rank calls it at the same moment."""
        self._ledger.enter(LearnerPhase.SAVING)
        return self._write_checkpoint(self._pack_in_flight())

    def _write_checkpoint(self, in_flight: dict[str, Any] | None) -> Path | None:
        """As :meth:`_write_state`; ``in_flight`` is what :meth:`_pack_in_flight` gives."""
        return self._write_state(
            {
                "model": self._model.state_dict(),
                "optimiser": optimiser_state(self._optimiser),
                "learning_rate": self._learning_rate.state_dict(),
                "entropy_guard": self._entropy_guard.state_dict(),
                "random": pack_random_states({"learner": self._random}),
                **(in_flight or {}),
            },
            is_end=in_flight is None,
        )

    def _pack_in_flight(self) -> dict[str, Any] | None:
        """What a run needs, beside the learner's own state, to go on from here; None where it could not."""
        return {}

    def _in_flight_after_failure(self) -> dict[str, Any] | None:
        """As :meth:`_pack_in_flight`, in the middle of an update, on the rank that failed alone."""
        return {}

    def _counters(self) -> dict[str, int]:
        return super()._counters() | {"stale_samples": self.stale_samples, "invalid_samples": self.invalid_samples}

    def _take_over_counters(self, counters: Mapping[str, int]) -> None:
        super()._take_over_counters(counters)
        self.stale_samples = counters["stale_samples"]
        self.invalid_samples = counters["invalid_samples"]

    def _take_over(self, state: Mapping[str, Any]) -> None:
        super()._take_over(state)
        load_optimiser_state(self._optimiser, state["optimiser"])
        self._learning_rate.load_state_dict(state["learning_rate"])
        if "entropy_guard" in state:
            self._entropy_guard.load_state_dict(state["entropy_guard"])
        else:  # of an earlier version
            self._entropy_guard.resume_without_state()
        restore_random_states(state["random"], {"learner": self._random})
