"""What the learner tells the main process every few seconds. Imports no torch: the main process does without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollmill.storage.episodes import EpisodeEnd

RECENT_EPISODES = 100
"""Over so many episodes, the last to end, returns are averaged."""


@dataclass(frozen=True)
class LearnerReport:
    """Counters since the run's first start, and means since the previous record.

    Attributes:
        agent_steps: Distinct valid samples consumed.
        updates: Batches learned from.
        sgd_steps: Optimiser steps; also the policy version.
        stale_samples: Valid samples left out because they were older than ``max_policy_lag``.
        invalid_samples: Masked rows: final observations and failed environments.
        episodes: How many have ended within the batches.
        recent_episodes: The last hundred of them.
        policy_lag_mean: Mean over samples of (learner's version - sample's version) at admission, in SGD steps; None
            where samples are replayed, and of any age.
        policy_lag_max: Largest such lag since the previous record.
        policy_lag_histogram: Samples by lag; the last entry collects everything above.
        versions_per_trajectory: Mean number of policy versions in one trajectory.
        losses: Name -> mean.
        learning_rate: The present one.
        fast_path: What the learner chose to compute with, in words.
        training_s: Seconds of training since the run's first start, without starting up and without pauses between
            sessions.
        figures: Name -> what else is worth a column; None where there was nothing of it.
        is_record: Whether this is to be a row of metrics. What is not is for the display: it has no losses, and the
            next record's means do not begin anew.
    """

    agent_steps: int
    updates: int
    sgd_steps: int
    stale_samples: int
    invalid_samples: int
    episodes: int
    recent_episodes: tuple[EpisodeEnd, ...]
    policy_lag_mean: float | None
    policy_lag_max: int | None
    policy_lag_histogram: tuple[int, ...]
    versions_per_trajectory: float
    losses: Mapping[str, float]
    learning_rate: float
    fast_path: str
    is_record: bool = True
    training_s: float = 0.0
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class LearnerFinished:
    """The learner has reached ``total_steps``, or was told to stop, and has written its last checkpoint.

    Attributes:
        report: The last one.
        checkpoint: Its path.
        stopped_by_others: Another rank was told to stop, not this one.
    """

    report: LearnerReport
    checkpoint: str
    stopped_by_others: bool = False
