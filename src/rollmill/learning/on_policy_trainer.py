"""The trainer of on-policy algorithms: admit a batch of trajectories, learn from it, release its slots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.targets import Targets
from rollmill.learning.action_bounds import ActionBounds
from rollmill.learning.admission import Admission, CompletedSlots
from rollmill.learning.batch_loader import BatchLoader
from rollmill.learning.config import KlSchedule
from rollmill.learning.entropy_guard import EntropyGuard
from rollmill.learning.fingerprints import Fingerprints
from rollmill.learning.lag import LagStatistics, admitted
from rollmill.learning.league import League
from rollmill.learning.learner import Learner, Trainer
from rollmill.learning.live_numbers import REWARD_WEIGHT
from rollmill.learning.minibatches import Minibatches, Whole
from rollmill.learning.progress import LearnerSetup, noise_seed
from rollmill.learning.report import LearnerReport, PolicyLag
from rollmill.learning.schedules import coefficient_schedule, learning_rate_schedule
from rollmill.learning.task_record import TaskRecord
from rollmill.learning.task_scales import divided_by_returns, normalised_in_tasks
from rollmill.learning.trajectories import Trajectories
from rollmill.learning.update import Update
from rollmill.learning.versions import Versions
from rollmill.roles import LearnerCounter, LearnerPhase
from rollmill.specs import EnvSpec
from rollmill.storage.episodes import EpisodeEnd, episodes_of, plain_episodes
from rollmill.storage.random_states import pack_random_states, restore_random_states
from rollmill.storage.slot_reserve import SlotReserve
from rollmill.storage.slots import SlotStore

# Number of images that represent a batch's brightness.
_PICTURES = 8
# Numbers that the algorithm's configuration holds, and that may be set during a run.
_OF_ALGORITHM = ("reward_scale", "discount", "gae_lambda", "value_coef")


class _Prepared(NamedTuple):
    batch: Trajectories
    targets: Targets
    config: OnPolicyConfig


class _Ended(NamedTuple):
    """What ended within a batch.

    Attributes:
        episodes: Of all ranks.
        are_own: Whether no sample is of weights that another policy's have replaced: what they have reached does not
            count as a result of the present ones.
    """

    episodes: list[EpisodeEnd]
    are_own: bool


class OnPolicyTrainer:
    """Learns from batches of trajectories. See :class:`rollmill.learning.learner.Trainer`.

    Args:
        setup: The process, the run and its counters.
        store: The slots.
        algorithm: The algorithm, on its device.
        update: Runs its SGD steps.
        minibatches: Divides batches.
        admission: Forms batches of completed slots.
        reserve: The slots that the learners of the process hold back.
        versions: Numbering and publication of versions.
        spec: The environment.
        random: The learner's random stream, which ``minibatches`` uses, too.
        fingerprints: Records every update's fingerprint; None records nothing.
        league: The past selves; None without a bank.

    Attributes:
        league: As given.
        stale_samples: Valid samples that were excluded because they were too old, or of an earlier generation.
        invalid_samples: Masked rows.
    """

    def __init__(
        self,
        setup: LearnerSetup,
        store: SlotStore,
        algorithm: OnPolicyAlgorithm,
        *,
        update: Update,
        minibatches: Minibatches,
        admission: Admission,
        reserve: SlotReserve,
        max_policy_lag: int,
        versions: Versions,
        spec: EnvSpec,
        random: np.random.Generator,
        fingerprints: Fingerprints | None = None,
        league: League | None = None,
    ) -> None:
        config = algorithm.config
        self._context = setup.context
        self._ledger = setup.ledger
        self._progress = setup.progress
        self._run_steps = setup.run_steps
        self._numbers = setup.numbers
        self._ready = setup.ready
        self._config = config
        self._plan = setup.plan
        self._total_steps = setup.plan.total_steps
        self._collective = setup.collective
        self._device = setup.device
        self._store = store
        self._algorithm = algorithm
        self._model = algorithm.acting
        self._update = update
        self._minibatches = minibatches
        self._admission = admission
        self._reserve = reserve
        self._max_policy_lag = max_policy_lag
        self._versions = versions
        self._random = random
        self._fingerprints = fingerprints
        self.league = league
        end = self._total_steps, setup.clock.share
        self._learning_rate = learning_rate_schedule(setup.optimiser, *end)
        self._is_adaptive = isinstance(setup.optimiser.schedule, KlSchedule)
        self._slow_down_s = setup.compute.slow_down_s
        self._entropy = coefficient_schedule(config.entropy_schedule, config.entropy_weight, *end)
        self._clip = coefficient_schedule(config.clip_schedule, config.clip_range, *end)
        # Returns are those of the environment's own reward, which may be 0 throughout beside reward terms.
        floor = 0.0 if config.reward_weights else config.entropy_floor
        self._entropy_guard = EntropyGuard(spec.action, floor)
        self._lag = LagStatistics()
        self._tasks: TaskRecord | None = None
        if spec.tasks:
            self._tasks = TaskRecord([task.name for task in spec.tasks], store.task_seconds)
        self._bounds: ActionBounds | None = None
        if spec.action.num_continuous:
            distribution = self._model.distribution
            self._bounds = ActionBounds(distribution.spec, squash=distribution.squash)
        self._at_bound: float | None = None
        self._moments = (0.0, 1.0)
        self._return_scales: NDArray[np.float32] | None = None
        self._oldest_version = 0
        self._loader: BatchLoader[_Prepared] | None = None
        self.stale_samples = 0
        self.invalid_samples = 0
        self.is_stopped_by_others = False
        self.can_resume = True

    def begin(self) -> None:
        """Read the normaliser of returns, which may have been restored."""
        self._read_normaliser()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Load batches in the background."""
        source = CompletedSlots(self._store, self._admission, self._prepare, self._reserve)
        self._loader = BatchLoader(source, self._ready)
        try:
            yield
        finally:
            self._loader.close()

    def advance(self, learner: Learner, wait_s: float) -> bool:
        """Learn from the next batch, if it is ready; False at ``total_steps``, or if a rank was asked to stop."""
        if self._run_steps.value >= self._total_steps:
            return False
        assert self._loader is not None, "call advance() within session()"
        prepared = self._loader.next(timeout_s=wait_s)
        if not self._ready.count:
            self._reserve.lend(has_batch=prepared is not None)
        if prepared is None and not self._context.stop.is_set():
            return True
        ended = self._agree_to_go_on(prepared)
        if prepared is None or ended is None:
            return False
        own = ended.episodes if ended.are_own else []
        self._progress.take_episodes(ended.episodes, own)
        self._entropy_guard.observe(own, self._progress.recent_episodes)
        if self._tasks is not None:
            self._tasks.take_episodes(own)
        if self.league is not None:
            self.league.observe(prepared.batch, self._progress.batches + 1, is_own=ended.are_own)
        if self._progress.results is not None and ended.are_own:
            self._progress.results.add(prepared.batch.episodes, prepared.batch.matches)
        self._learn(learner, self._with_present_numbers(prepared))
        return True

    def check(self) -> None:
        """Do nothing: every batch is checked in :meth:`advance`."""

    def count(self, *, to_save: bool = False) -> None:
        """Do nothing: agent steps are counted with each batch."""

    def moments(self) -> tuple[float, float]:
        """Return the mean and standard deviation that the current network's values are normalised with."""
        return self._moments

    def fill(self, report: LearnerReport) -> LearnerReport:
        """See :class:`rollmill.learning.learner.Trainer`."""
        lag, path = self._lag, self._update.path
        figures: dict[str, float | None] = {} if self._bounds is None else {"actions_at_bound": self._at_bound}
        if report.is_row:
            self._lag = LagStatistics()
        if self.league is not None:
            figures |= self.league.figures(is_row=report.is_row)
        if self._tasks is not None:
            figures |= self._tasks.figures(is_row=report.is_row)
        return replace(
            report,
            losses=self._update.take_statistics() if report.is_row else {},
            learning_rate=self._numbers.value("learning_rate", self._learning_rate.value(self._run_steps.value)),
            fast_path=path.describe(),
            precision=path.precision,
            figures=figures,
            lag=PolicyLag(
                mean=lag.mean,
                maximum=lag.maximum,
                histogram=tuple(lag.histogram.tolist()),
                versions_per_trajectory=lag.versions_per_trajectory,
                stale_samples=self.stale_samples,
                invalid_samples=self.invalid_samples,
            ),
        )

    def take_over(self, other: Trainer, *, first_version: int) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        assert isinstance(other, OnPolicyTrainer)
        self._update.take_over(other._update)
        self._learning_rate.load_state_dict(other._learning_rate.state_dict())
        self._entropy_guard.load_state_dict(other._entropy_guard.state_dict())
        moments = other._minibatches.previous_moments
        self._minibatches.previous_moments = None if moments is None else moments.clone()
        self._read_normaliser()
        self._oldest_version = first_version
        if self._tasks is not None:
            self._tasks.forget_episodes()

    def load_optimisers(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        self._update.load_optimisers(state)

    def state_dict(self) -> dict[str, Any]:
        """See :class:`rollmill.learning.learner.Trainer`."""
        moments = self._minibatches.previous_moments
        return {
            "updater": self._update.state_dict(),
            "learning_rate": self._learning_rate.state_dict(),
            "entropy_guard": self._entropy_guard.state_dict(),
            "random": pack_random_states({"learner": self._random}),
            "advantage_sums": None if moments is None else moments.tolist(),
            "oldest_version": self._oldest_version,
            "counters": {"stale_samples": self.stale_samples, "invalid_samples": self.invalid_samples},
            **({} if self.league is None else {"league": self.league.state_dict()}),
            **({} if self._tasks is None else {"tasks": self._tasks.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :class:`rollmill.learning.learner.Trainer`."""
        if missing := [part for part in ("learning_rate",) if part not in state]:
            raise ValueError(f"it lacks {', '.join(missing)}, so no on-policy run wrote it")
        self._update.load_state_dict(state["updater"] if "updater" in state else _of_earlier_version(state))
        self._learning_rate.load_state_dict(state["learning_rate"])
        if "entropy_guard" in state:
            self._entropy_guard.load_state_dict(state["entropy_guard"])
        else:  # from an earlier version
            self._entropy_guard.resume_without_state()
        restore_random_states(state["random"], {"learner": self._random})
        if (moments := state.get("advantage_sums")) is not None:
            self._minibatches.previous_moments = torch.tensor(moments, dtype=torch.float64, device=self._device)
        self._oldest_version = state.get("oldest_version", 0)  # missing in checkpoints of earlier versions
        if self.league is not None and "league" in state:
            self.league.load_state_dict(state["league"])
        if self._tasks is not None and "tasks" in state:
            self._tasks.load_state_dict(state["tasks"])
        self.stale_samples = state["counters"]["stale_samples"]
        self.invalid_samples = state["counters"]["invalid_samples"]

    def _agree_to_go_on(self, prepared: _Prepared | None) -> _Ended | None:
        """Agree with the other ranks on the next batch; every rank calls it once for each batch or when asked to stop.

        Returns:
            What ended within all ranks' batches; None if a rank is asked to stop. Numbers that were set meanwhile apply
            from this batch.
        """
        episodes = [] if prepared is None else list(prepared.batch.episodes)
        are_own = prepared is None or bool((prepared.batch.versions >= self._oldest_version).all())
        batch = self._progress.batches
        news = self._numbers.read(batch)
        answers = self._collective.gather((self._context.stop.is_set(), plain_episodes(episodes), are_own, news))
        if any(stops for stops, *_ in answers):
            self._stop_with_others()
            return None
        self._numbers.take(answers[0][3], batch)
        return _Ended(
            [episode for _, ended, *_ in answers for episode in episodes_of(ended)],
            all(own for _, _, own, _ in answers),
        )

    def _stop_with_others(self) -> None:
        if not self._context.stop.is_set():
            self._context.stop.set()
            self.is_stopped_by_others = True

    def _prepare(self, batch: Trajectories) -> _Prepared:
        """Compute, in the loader's thread, what does not need the weights."""
        self._context.inject_delay()
        # One tuple, so that this thread never mixes the mean and the deviation of different batches.
        mean, std = self._versions.moments_of(batch, self._moments)
        config = self._algorithm.config
        targets = self._algorithm.prepare(batch.arrays, value_mean=mean, value_std=std)
        if self._algorithm.config is not config:  # the learner's thread has set other numbers
            return self._prepare(batch)
        return _Prepared(batch, targets, config)

    def _with_present_numbers(self, prepared: _Prepared) -> _Prepared:
        """Return the batch by the numbers that are set; prepares it again if one of them was just set."""
        numbers: dict[str, Any] = {
            name: self._numbers.value(name, getattr(self._config, name)) for name in _OF_ALGORITHM
        }
        if weights := self._config.reward_weights:
            numbers["reward_weights"] = {
                name: self._numbers.value(f"{REWARD_WEIGHT}{name}", weight) for name, weight in weights.items()
            }
        if any(getattr(self._algorithm.config, name) != value for name, value in numbers.items()):
            self._algorithm.config = replace(self._algorithm.config, **numbers)
        return prepared if prepared.config is self._algorithm.config else self._prepare(prepared.batch)

    def _learn(self, learner: Learner, prepared: _Prepared) -> None:
        """Learn from one batch: admit samples, run all SGD steps, release the slots, update schedules."""
        self._ledger.enter(LearnerPhase.LEARNING)
        progress, batch = self._progress, prepared.batch
        if self._collective.rank:
            # Dropout in a network of the user's must differ between ranks. A checkpoint has the state of rank 0 alone.
            torch.manual_seed(noise_seed(self._plan, self._collective, progress.sgd_steps))
        steps_before = progress.sgd_steps
        keep = self._admit(batch, learner.version)
        targets = self._on_one_scale(batch, prepared.targets, keep)
        whole = Whole.of(targets, keep, self._collective, self._config)
        self.invalid_samples += int((~whole.keep).sum()) - int((~keep).sum())  # without the other ranks' rows
        self._update.follow(self._numbers, self._learning_rate.value(self._run_steps.value))
        self._update_normalisers(batch, targets, keep, whole)
        if self._bounds is not None:
            self._at_bound = self._bounds.share_at(batch.arrays["action_continuous"], keep)
        entropy_coef = self._numbers.value("entropy_coef", self._entropy.value(self._run_steps.value))
        coefficients = {
            "clip_range": self._numbers.value("clip_range", self._clip.value(self._run_steps.value)),
            "entropy_coef": self._entropy_guard.coefficient(entropy_coef),
        }
        self.can_resume = False
        is_complete = self._take_steps(learner, batch, targets, keep, coefficients, whole)
        self._slow_down()
        self.can_resume = is_complete
        if not is_complete:
            self._stop_with_others()
        # A batch that was interrupted by the end of the run is not counted.
        consumed = int(whole.keep.sum()) if is_complete else 0
        if self._tasks is not None and batch.tasks is not None and is_complete:
            self._tasks.count(batch.tasks, keep)
        progress.agent_steps += consumed
        if self._fingerprints is not None and is_complete:
            self._fingerprints.add(progress.batches, batch, self._algorithm, self._update.optimisers)
        progress.batches += is_complete
        self._context.inject_delay()
        learner.publish_if_newer()
        self._context.inject_delay()
        # In lockstep a released slot announces the next version, which an interrupted update does not publish.
        if is_complete:
            self._reserve.release(batch.slots, is_late=self._ready.count > 0)
        self._ledger.add(LearnerCounter.SAMPLES, consumed)
        if progress.sgd_steps > steps_before:
            self._adapt(entropy_coef)

    def _adapt(self, entropy_coef: float) -> None:
        """Update the adaptive schedules with statistics of the last SGD step."""
        if self._is_adaptive and not self._numbers.is_set("learning_rate"):
            divergence = self._update.last("approx_kl")
            if divergence is None:
                raise ValueError(
                    f"learner.schedule='kl', but the loss of {type(self._algorithm).__name__} has no statistic "
                    "'approx_kl': add it, or use another schedule"
                )
            self._learning_rate.update(divergence)
        if self._entropy_guard.is_asking and (entropy := self._update.last("entropy")) is not None:
            self._entropy_guard.update(entropy, entropy_coef)

    def _take_steps(
        self,
        learner: Learner,
        batch: Trajectories,
        targets: Targets,
        keep: NDArray[np.bool_],
        scheduled: Mapping[str, float],
        whole: Whole,
    ) -> bool:
        """Run all epochs over a batch; False if the run was stopped in the middle."""
        is_stopping = self._context.stop.is_set
        is_alone = self._collective.world_size == 1
        is_complete = True
        coefficients = self._algorithm.coefficients(scheduled)
        for minibatch in self._minibatches.of(batch, targets, keep, coefficients, whole):
            step = self._update.step(minibatch, is_stopping=is_stopping)
            if step is not None:
                self._minibatches.keep_moments(step.moments)
                learner.after_step()
                self._ledger.enter(LearnerPhase.LEARNING)  # after each step, as a sign of life
            if step is None or (is_alone and is_stopping()):
                is_complete = False
                break
        self._update.check(lambda: self._minibatches.non_finite(batch))
        return is_complete

    def _slow_down(self) -> None:
        until = time.monotonic() + self._slow_down_s
        while not self._context.stop.is_set() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _admit(self, batch: Trajectories, version: int) -> NDArray[np.bool_]:
        """Select samples, bool ``[T, N]``: valid and within ``max_policy_lag``."""
        self._versions.check(batch, version)
        valid = batch.arrays["valid"].astype(np.bool_)
        keep, stale = admitted(
            valid,
            batch.arrays["policy_version"],
            version=version,
            most=self._max_policy_lag,
            statistics=self._lag,
            oldest=self._oldest_version,
        )
        self.stale_samples += stale
        self.invalid_samples += int((~valid).sum())
        return keep

    def _update_normalisers(self, batch: Trajectories, targets: Targets, keep: NDArray[np.bool_], whole: Whole) -> None:
        """Update running statistics with a batch, once, before learning from it."""
        if not whole.keep.any():
            return
        index = batch.observation_index[: batch.rollout_length]
        if self._model.normalised_entries:
            observations = self._minibatches.observations(index[keep], self._model.normalised_entries)
            self._model.update_normaliser(observations, sum_over_ranks=self._collective.sum)
        if self._model.centres_pixels:
            counted = np.flatnonzero(whole.keep)
            chosen = self._random.choice(counted, min(len(counted), _PICTURES), replace=False)
            pictures = self._minibatches.observations(index.reshape(-1)[whole.own_samples(chosen)])
            self._model.update_pixel_levels(self._pictures_of_all(pictures))
        if targets.return_ is not None and self._model.normalises_returns:
            returns = torch.from_numpy(targets.return_[keep]).to(self._device)
            tasks = None
            if batch.tasks is not None:
                of_samples = np.broadcast_to(batch.tasks, keep.shape)[keep]
                tasks = torch.from_numpy(of_samples).to(self._device)
            self._model.update_value_normaliser(returns, tasks=tasks, sum_over_ranks=self._collective.sum)
            self._read_normaliser()

    def _read_normaliser(self) -> None:
        self._moments, self._return_scales = self._model.value_moments(), self._model.return_scales()

    def _on_one_scale(self, batch: Trajectories, targets: Targets, keep: NDArray[np.bool_]) -> Targets:
        """Put the advantages of all tasks on one scale, before this batch changes the deviation of their returns."""
        scales = self._return_scales
        if scales is None or targets.advantage is None:
            return targets
        if batch.tasks is None or not self._algorithm.config.normalise_advantages:
            return targets._replace(advantage=divided_by_returns(targets.advantage, batch.tasks, scales))
        advantage = normalised_in_tasks(targets.advantage, keep, batch.tasks, len(scales), self._collective)
        return targets._replace(advantage=advantage)

    def _pictures_of_all(self, pictures: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._collective.world_size == 1:
            return pictures
        parts = self._collective.gather({name: tensor.cpu() for name, tensor in pictures.items()})
        return {name: torch.cat([part[name] for part in parts]).to(self._device) for name in pictures}


def _of_earlier_version(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the state of the only optimiser in checkpoints of earlier versions."""
    if "optimiser" not in state:
        raise ValueError("it lacks updater, so no on-policy run wrote it")
    return {"sgd_steps": state["counters"]["sgd_steps"], "optimisers": {"actor_critic": state["optimiser"]}}
