"""Progress of a run, and objects shared by the parts of its learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from rollmill.learning.batch_loader import ReadyBatches
from rollmill.learning.clock import TrainingClock
from rollmill.learning.collective import Collective
from rollmill.learning.config import ComputeConfig, OptimiserConfig
from rollmill.learning.live_numbers import LiveNumbers
from rollmill.learning.report import RECENT_EPISODES
from rollmill.learning.results import RecentResults
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import Ledger
from rollmill.runtime.seeds import int_seed
from rollmill.storage.checkpoints import CheckpointStore
from rollmill.storage.episodes import EpisodeEnd, episodes_of_each_task, mean_return, newest_episodes
from rollmill.storage.evaluations import EvaluationQueue


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Settings of a run for its learner.

    Attributes:
        total_steps: Agent steps to consume.
        schedule_s: Seconds of training after which schedules end, as at ``total_steps``; None makes them depend
            on agent steps only.
        seed: Keys the learner's random streams.
        report_every_s: Seconds between two reports.
        resume: Whether to resume from the newest checkpoint.
        checkpoints: The run's checkpoints.
        evaluations: Queue of networks to evaluate; None disables evaluations.
        episodes: Minimum number of ended episodes when resuming; the checkpoint may have counted fewer.
        policy: Index of the policy that is learned.
        policy_name: Its name, for messages; empty where it is the only one.
    """

    total_steps: int
    seed: int
    report_every_s: float
    resume: bool
    checkpoints: CheckpointStore
    evaluations: EvaluationQueue | None = None
    episodes: int = 0
    schedule_s: float | None = None
    policy: int = 0
    policy_name: str = ""


@dataclass
class Progress:
    """Counters since the run's first start.

    Attributes:
        agent_steps: Distinct valid samples consumed, or collected for a replay.
        batches: Batches learned from.
        sgd_steps: Optimiser steps.
        episodes: Episodes that have ended.
        recent_episodes: The last hundred of them; of several tasks, their share of each, at least 5.
        generation: How often another policy's weights have replaced this one's.
        results: Newest results since then; None without population-based training.
        num_tasks: Number of tasks; 0 without several.
    """

    agent_steps: int = 0
    batches: int = 0
    sgd_steps: int = 0
    episodes: int = 0
    recent_episodes: list[EpisodeEnd] = field(default_factory=list)
    generation: int = 0
    results: RecentResults | None = None
    num_tasks: int = 0

    def take_episodes(self, episodes: Sequence[EpisodeEnd], own: Sequence[EpisodeEnd] | None = None) -> None:
        """Count episodes that have ended.

        Args:
            episodes: All of them.
            own: Those of the present weights; None where all are.
        """
        self.episodes += len(episodes)
        known = [*self.recent_episodes, *(episodes if own is None else own)]
        self.recent_episodes = newest_episodes(known, RECENT_EPISODES, self.num_tasks)

    @property
    def recent_return(self) -> float | None:
        """Mean return of the recent episodes, of several tasks the mean of theirs; None until there are all of them.

        The first episodes to end are the shortest, in many tasks the best or the worst.
        """
        each = episodes_of_each_task(RECENT_EPISODES, self.num_tasks)
        return mean_return(self.recent_episodes, self.num_tasks, least=each)

    def counters(self) -> dict[str, int]:
        """Return the counters for a checkpoint."""
        return {
            "agent_steps": self.agent_steps,
            "batches": self.batches,
            "sgd_steps": self.sgd_steps,
            "episodes": self.episodes,
            "generation": self.generation,
        }

    def restore(self, counters: Mapping[str, int], episodes: Sequence[EpisodeEnd], *, least_episodes: int) -> None:
        """Restore the result of :meth:`counters`."""
        self.agent_steps = counters["agent_steps"]
        # Earlier versions called SGD steps updates.
        self.batches = counters["batches"] if "batches" in counters else counters["updates"]
        self.sgd_steps = counters["sgd_steps"]
        # Checkpoints of earlier versions do not count episodes.
        self.episodes = max(counters.get("episodes", 0), least_episodes)
        # Checkpoints of earlier versions do not say of which of several tasks an episode was.
        self.recent_episodes = [e for e in episodes if e.task is not None or not self.num_tasks]
        self.generation = counters.get("generation", 0)


class RunSteps:
    """The agent steps of all policies together, which decide about schedules and about the end of the run.

    Args:
        policies: The progress of each policy.
        in_rounds: Whether steps count only when every policy has learned from its next batch (in lockstep, where the
            order of the policies must not matter).
    """

    def __init__(self, policies: Sequence[Progress], *, in_rounds: bool = False) -> None:
        self._policies = policies
        self.in_rounds = in_rounds and len(policies) > 1
        self._counted = 0

    @property
    def value(self) -> int:
        """The agent steps."""
        return self._counted if self.in_rounds else self._sum()

    @property
    def learned(self) -> int:
        """The agent steps, those of the present round included."""
        return self._sum()

    def begin_round(self) -> None:
        """Count the steps so far."""
        self._counted = self._sum()

    def _sum(self) -> int:
        return sum(progress.agent_steps for progress in self._policies)


@dataclass(frozen=True, kw_only=True)
class LearnerSetup:
    """Objects shared by the parts of a learner.

    Attributes:
        context: The process's stop flag, ledger and messages.
        optimiser: How gradients change weights.
        compute: Where and how the learner computes.
        plan: The run.
        progress: The policy's counters.
        run_steps: The agent steps of all policies.
        clock: Seconds of training.
        collective: The ranks.
        device: The learner's device.
        ready: The batches that are ready for learners of the process.
        numbers: Numbers that the main process may set during the run.
    """

    context: ChildContext
    optimiser: OptimiserConfig
    compute: ComputeConfig
    plan: RunPlan
    progress: Progress
    run_steps: RunSteps
    clock: TrainingClock
    collective: Collective
    device: torch.device
    ready: ReadyBatches = field(default_factory=ReadyBatches)
    numbers: LiveNumbers = field(default_factory=LiveNumbers)

    @property
    def ledger(self) -> Ledger:
        """The process's ledger."""
        return self.context.ledger


def noise_seed(plan: RunPlan, collective: Collective, sgd_steps: int) -> int:
    """Return the seed of a rank's random numbers in losses from an SGD step on."""
    return int_seed(plan.seed, f"noise of rank {collective.rank}", sgd_steps, bits=63)
