"""Limits on the silence of a run's processes, beyond which they count as hung.

Loops that wait for another process wake up five times a second and re-enter their phase, so a wait has no limit, but
the silence of the waiting process has. Each piece of work has a limit. A process stopped by a signal is detected in
every phase, including those without a limit: startup, measuring, saving.
"""

from __future__ import annotations

from typing import NamedTuple

from rollmill.roles import (
    EVALUATOR,
    GRADIENT_LEARNER,
    LEARNER,
    POLICY_WORKER,
    ROLLOUT_WORKER,
    EvaluatorPhase,
    InferencePhase,
    LearnerPhase,
    RolloutPhase,
)
from rollmill.runtime.events import Hung
from rollmill.runtime.ledger import START
from rollmill.runtime.supervisor import NO_ROLE, Supervisor
from rollmill.settings.config import Config

_BUILDING_S = 2.0
# A waiting process may get no core for a moment, or read back swapped pages.
_SHORTEST_SILENCE_S = 5.0
# Between waits a worker writes a group's state to disk, or acquires contended locks.
_BOOKKEEPING_S = 60.0
# Imports of torch and the user's modules from a slow disk, and a policy worker's initial measurements.
_START_S = 900.0
_EVALUATION_S = 60.0


class _Limit(NamedTuple):
    seconds: float
    option: str

    def at_least(self, seconds: float) -> _Limit:
        return self._replace(seconds=max(self.seconds, seconds))

    def plus(self, seconds: float) -> _Limit:
        return self._replace(seconds=self.seconds + seconds)


class HangLimits:
    """The limits of one run.

    Args:
        config: The resolved configuration.
        is_alone: Whether this is the only rank; with several, a learner also waits for the others.
        start_s: How long a process may take to start at the least.
    """

    def __init__(self, config: Config, *, is_alone: bool = True, start_s: float = _START_S) -> None:
        """Compute the limits."""
        assert config.envs_per_group != "auto"
        of_rollout = _Limit(config.rollout.step_timeout_s, "rollout.step_timeout_s")
        of_inference = _Limit(config.inference.step_timeout_s, "inference.step_timeout_s")
        of_learner = _Limit(config.compute.step_timeout_s, "learner.step_timeout_s")
        for_others = 0.0 if is_alone else config.distributed.timeout_s
        # A policy worker also waits for further groups.
        for_groups = config.inference.max_wait_us * 1e-6

        # Pieces of work, at any time of the run.
        self._work = {
            ROLLOUT_WORKER.phases[RolloutPhase.SIMULATING]: of_rollout,
            # A group's environments are built and reset sequentially.
            ROLLOUT_WORKER.phases[RolloutPhase.BUILDING]: of_rollout.plus(_BUILDING_S * config.envs_per_group),
            LEARNER.phases[LearnerPhase.LEARNING]: of_learner.plus(for_others),
            POLICY_WORKER.phases[InferencePhase.FORWARD]: of_inference,
        }
        # Short phases. While a run ends, environments are closed in them, for example.
        self._silence = {
            START: _Limit(max(_START_S, start_s) + for_others, ""),
            LEARNER.phases[LearnerPhase.MEASURING]: of_learner.at_least(_START_S).plus(for_others),
            ROLLOUT_WORKER.phases[RolloutPhase.BOOKKEEPING]: of_rollout.at_least(_BOOKKEEPING_S),
            **{phase: of_rollout.at_least(_SHORTEST_SILENCE_S) for phase in ROLLOUT_WORKER.waiting},
            **{phase: of_inference.at_least(_SHORTEST_SILENCE_S).plus(for_groups) for phase in POLICY_WORKER.phases},
            **{
                LEARNER.phases[phase]: of_learner.at_least(_SHORTEST_SILENCE_S).plus(for_others)
                for phase in (LearnerPhase.WAITING, LearnerPhase.PUBLISHING, LearnerPhase.REPORTING)
            },
            EVALUATOR.phases[EvaluatorPhase.WAITING]: of_rollout.at_least(_SHORTEST_SILENCE_S),
            # Includes building environments, in a process with low priority.
            EVALUATOR.phases[EvaluatorPhase.PLAYING]: of_rollout.at_least(_EVALUATION_S),
        }
        self._stopped = {
            ROLLOUT_WORKER.name: of_rollout,
            POLICY_WORKER.name: of_inference,
            LEARNER.name: of_learner,
            GRADIENT_LEARNER.name: of_learner,
            EVALUATOR.name: of_rollout,
            NO_ROLE.name: of_rollout,  # the probe
        }

    def check(self, supervisor: Supervisor) -> list[Hung]:
        """Return the processes that hang now; called several times a second."""
        is_ending = supervisor.stop_flag.is_set()
        limits = self._work if is_ending else self._silence | self._work
        # A run that ends waits only for its learner.
        stopped = {LEARNER.name: self._stopped[LEARNER.name]} if is_ending else self._stopped
        return supervisor.check_hung(
            {phase: limit.seconds for phase, limit in limits.items()},
            {role: limit.seconds for role, limit in stopped.items()},
        )

    def advice_for(self, hung: Hung) -> str:
        """Name the setting of the limit; empty if there is none."""
        limit = self._stopped[hung.role] if hung.is_stopped else (self._silence | self._work)[hung.phase]
        return f"{limit.option} sets how many" if limit.option else ""
