"""What every learner does beside learning: publish weights, report, save, go on from a checkpoint."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import nn

from rollmill.learning.clock import TrainingClock
from rollmill.learning.collective import Alone, Collective
from rollmill.learning.report import RECENT_EPISODES, LearnerReport, is_milestone
from rollmill.models.flat_state import FlatState
from rollmill.roles import LearnerPhase
from rollmill.runtime.child import ChildContext
from rollmill.storage.checkpoints import CheckpointStore
from rollmill.storage.episodes import EpisodeEnd
from rollmill.storage.evaluations import EvaluationQueue
from rollmill.storage.weights import WeightStore

__all__ = ["LearnerBase", "RunPlan"]

_NO_ROW = (-1, -1)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a learner is told of its run.

    Attributes:
        total_steps: Agent steps to consume.
        schedule_s: Seconds of training after which schedules are at their end, as at ``total_steps``; None has them go
            by agent steps alone.
        seed: Keys the learner's random streams.
        report_every_s: Seconds between two reports.
        resume: Whether to go on from the newest checkpoint.
        checkpoints: Where state is saved and found.
        evaluations: Where networks are left to be evaluated; None leaves none.
        episodes: That had ended, at least, where the run goes on; its checkpoint may know of fewer.
    """

    total_steps: int
    seed: int
    report_every_s: float
    resume: bool
    checkpoints: CheckpointStore
    evaluations: EvaluationQueue | None = None
    episodes: int = 0
    schedule_s: float | None = None


class LearnerBase(ABC):
    """Owns a policy: its weights and counters.

    Args:
        context: The process's stop flag, ledger and messages.
        weights: Where versions are published.
        plan: The run.
        collective: The ranks that learn together.
    """

    _SAVED_PARTS: ClassVar[Sequence[str]]

    def __init__(
        self, context: ChildContext, weights: WeightStore, plan: RunPlan, collective: Collective | None = None
    ) -> None:
        # Slurm and systemd end a run by a SIGTERM to each of its processes; the one that can save must not die of it.
        signal.signal(signal.SIGTERM, lambda number, frame: context.stop.set())
        self._context = context
        self._ledger = context.ledger
        self._weights = weights
        self._plan = plan
        self._checkpoints = plan.checkpoints
        self._total_steps = plan.total_steps
        self._clock = TrainingClock(plan.schedule_s)
        self._collective = collective or Alone()
        self.agent_steps = 0
        self.batches = 0
        self.sgd_steps = 0
        self.episodes = 0
        self._recent_episodes: list[EpisodeEnd] = []
        self._reported_at = 0.0
        self._row_at = _NO_ROW

    # --- Weights.

    @property
    def version(self) -> int:
        """What the present weights are published as."""
        return self.sgd_steps

    def _mirror(self, module: nn.Module) -> None:
        """From now on these weights are what is published."""
        self._flat = FlatState(module, alias=False)
        self._publish()

    def _publish(self) -> None:
        """Makes the present weights the newest version."""
        self._ledger.enter(LearnerPhase.PUBLISHING)
        self._flat.pack()
        self._weights.publish(self.version, self._flat.bytes)
        self._published = self.version

    def _publish_last(self) -> None:
        """Publishes what the last SGD step left, unless that was done."""
        if self._published < self.version:
            self._publish()

    # --- Reports.

    def _take_episodes(self, episodes: Sequence[EpisodeEnd]) -> None:
        """Counts episodes that have ended."""
        self.episodes += len(episodes)
        self._recent_episodes = [*self._recent_episodes, *episodes][-RECENT_EPISODES:]

    def _report_if_due(self) -> None:
        """Sends a row of metrics if one is due, by batches or by seconds; the display hears of the rest."""
        is_time = self._is_time_to_report()
        if self._has_new_row and (is_time or self._is_milestone):
            self._send(self._report())
        elif is_time:
            self._send(self._progress())

    @abstractmethod
    def _report(self) -> LearnerReport:
        """A row of metrics; the means of the next one begin anew."""

    @abstractmethod
    def _progress(self) -> LearnerReport:
        """What has changed, for the display alone."""

    @property
    def _has_new_row(self) -> bool:
        """Whether anything has been learned, or collected, since the last row."""
        return self._row_at != (self.batches, self.agent_steps)

    @property
    def _is_milestone(self) -> bool:
        return self.batches > self._row_at[0] and is_milestone(self.batches)

    def _is_time_to_report(self) -> bool:
        return time.monotonic() - self._reported_at >= self._plan.report_every_s

    def _send(self, report: LearnerReport) -> None:
        self._ledger.enter(LearnerPhase.REPORTING)
        self._clock.start()
        self._context.send(replace(report, training_s=self._clock.seconds))
        self._reported_at = time.monotonic()
        if report.is_row:
            self._row_at = (self.batches, self.agent_steps)

    # --- Checkpoints.

    @property
    @abstractmethod
    def _networks(self) -> nn.Module:
        """All that is learned."""

    def _leave_for_evaluation(self, *, is_end: bool = False) -> None:
        queue = self._plan.evaluations
        if queue is not None and (is_end or queue.is_due(self.agent_steps)):
            self._ledger.enter(LearnerPhase.SAVING)
            queue.leave(self._networks.state_dict(), self.agent_steps)

    def _counters(self) -> dict[str, int]:
        """What a checkpoint counts on from."""
        return {
            "agent_steps": self.agent_steps,
            "batches": self.batches,
            "sgd_steps": self.sgd_steps,
            "episodes": self.episodes,
        }

    def _take_over_counters(self, counters: Mapping[str, int]) -> None:
        self.agent_steps = counters["agent_steps"]
        # Earlier versions called them updates.
        self.batches = counters["batches"] if "batches" in counters else counters["updates"]
        self.sgd_steps = counters["sgd_steps"]
        # Earlier versions' checkpoints do not count them.
        self.episodes = max(counters.get("episodes", 0), self._plan.episodes)

    def _write_state(self, state: Mapping[str, Any], *, is_end: bool = False) -> Path | None:
        """Writes a checkpoint, on rank 0; its metric is the mean return of the last 100 episodes.

        It has none before there are so many: the first to end are the shortest, in many tasks the best or the worst.

        Args:
            state: What is the learner's own.
            is_end: The run cannot go on from here.
        """
        if self._collective.rank:
            return None
        self._ledger.enter(LearnerPhase.SAVING)
        returns = [episode.episode_return for episode in self._recent_episodes]
        return self._checkpoints.save(
            {
                "counters": self._counters(),
                "recent_episodes": [[e.episode_return, e.episode_length] for e in self._recent_episodes],
                "training_s": self._clock.seconds,
                **state,
            },
            agent_steps=self.agent_steps,
            metric=float(np.mean(returns)) if len(returns) == RECENT_EPISODES else None,
            is_initial=self.sgd_steps == 0,
            is_end=is_end,
        )

    def _restore(self) -> None:
        """Goes on from the newest checkpoint that can be read and is of this network: rank 0's, on every rank."""
        state = None
        if not self._collective.rank:
            state = self._checkpoints.load_latest(use=self._take_over, to_resume=True).state
        if self._collective.world_size > 1:
            state = self._collective.broadcast(state)
            assert state is not None
            if self._collective.rank:
                self._take_over(state)

    def _take_over(self, state: Mapping[str, Any]) -> None:
        """Takes everything over from a checkpoint.

        Raises:
            ValueError: It is of another network or optimiser; what was taken over until then is the next one's to mend.
        """
        if missing := [part for part in self._SAVED_PARTS if part not in state]:
            raise ValueError(f"it lacks {', '.join(missing)}, so no run of this kind wrote it")
        try:
            self._networks.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ValueError(f"it is of another network: {error}") from error
        self._take_over_counters(state["counters"])
        self._clock.restore(state.get("training_s", 0.0))  # Earlier versions' checkpoints do not say.
        self._recent_episodes = [EpisodeEnd(*episode) for episode in state["recent_episodes"]]
