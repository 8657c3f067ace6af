"""What the live display shows: one snapshot of a run's progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rollmill.reporting.ledger_report import Stage


@dataclass(frozen=True, kw_only=True)
class PolicyStatus:
    """One policy of several.

    Attributes:
        agent_steps: Distinct valid samples that it has consumed.
        steps_per_second: The same a second, over the last ten seconds.
        episode_return: Mean return of its last 100 episodes.
        rating: None in environments with one agent.
        lag: Mean lag of its samples, in versions.
    """

    agent_steps: int
    steps_per_second: float | None
    episode_return: float | None
    rating: float | None
    lag: float | None


class TaskStatus(NamedTuple):
    """One task of several.

    Attributes:
        episode_return: Mean return of its last 100 episodes.
        score: The same, human-normalised; None where there is no such score.
        samples: Its share of the samples.
    """

    episode_return: float | None
    score: float | None
    samples: float | None


@dataclass(frozen=True, kw_only=True)
class Status:
    """A run at one moment. Values that are not known yet are ``None``.

    Attributes:
        name: The run's or preset's name.
        agent_steps: Distinct valid samples that the learner has consumed, earlier sessions of a resumed run included.
        total_steps: Agent steps after which the run ends.
        frames: Agent steps x frameskip.
        time_s: Seconds since this session began to train.
        steps_per_second: Agent steps consumed a second, over the last ten seconds.
        frames_per_second: The same in frames.
        batches: Batches learned from.
        sgd_steps: Optimiser steps.
        policy_version: Version of the weights that were published last.
        episodes: Episodes that ended.
        episode_return: Mean return of the last 100 episodes, raw rewards; of several tasks, the mean of theirs.
        episode_length: Their mean length, in agent steps.
        evaluation_return: Mean return of the last evaluation.
        policy_lag_mean: Mean policy lag of the samples that were learned from last, in policy versions.
        policy_lag_max: Their largest.
        policy_lag_expected: The lag that the configuration implies, in policy versions.
        learning_rate: Present learning rate.
        ends_at_s: ``time_s`` at which the run ends at the latest; None without such a limit.
        time_before_s: Seconds that earlier sessions of a resumed run trained for.
        shares: Role (``"learner"``) -> how its processes spent their time lately.
        policies: Name -> each policy, where there are several.
        tasks: Name -> each task, where there are several.
        score: Mean human-normalised score of the tasks, each capped at 1.
    """

    name: str
    agent_steps: int
    total_steps: int
    frames: int
    time_s: float
    steps_per_second: float | None
    frames_per_second: float | None
    batches: int = 0
    sgd_steps: int = 0
    policy_version: int = 0
    episodes: int = 0
    episode_return: float | None = None
    episode_length: float | None = None
    evaluation_return: float | None = None
    policy_lag_mean: float | None = None
    policy_lag_max: float | None = None
    policy_lag_expected: float | None = None
    learning_rate: float | None = None
    ends_at_s: float | None = None
    time_before_s: float = 0.0
    shares: Mapping[str, Stage] = field(default_factory=dict)
    policies: Mapping[str, PolicyStatus] = field(default_factory=dict)
    tasks: Mapping[str, TaskStatus] = field(default_factory=dict)
    score: float | None = None

    @property
    def progress(self) -> float:
        """Share of the run that is done, 0..1: of its steps or of its time, whichever ends it sooner."""
        of_steps = self.agent_steps / self.total_steps if self.total_steps > 0 else 1.0
        of_time = 0.0
        if self.ends_at_s is not None and (whole := self.time_before_s + self.ends_at_s) > 0:
            of_time = (self.time_before_s + self.time_s) / whole
        return min(1.0, max(of_steps, of_time))

    @property
    def eta_s(self) -> float | None:
        """Seconds left at the present speed, or until the run's time is up."""
        left = []
        if self.steps_per_second:
            left.append(max(0, self.total_steps - self.agent_steps) / self.steps_per_second)
        if self.ends_at_s is not None:
            left.append(max(0.0, self.ends_at_s - self.time_s))
        return min(left, default=None)
