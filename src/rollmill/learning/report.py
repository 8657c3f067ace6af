"""Messages from the learner to the main process. Does not import torch, because the main process must not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollmill.storage.episodes import EpisodeEnd

RECENT_EPISODES = 100
"""Number of last episodes over which returns are averaged; of several tasks, their share of each, at least 5."""

_ROWS_BY_BATCHES = 50


def is_milestone(batches: int) -> bool:
    """Whether a row of metrics is due after this number of batches, regardless of time.

    One is due for each of the first 100 batches, for every second one of the next 100, for every fourth one of the next
    200, and so on: a run of at least 100 batches has at least 100 rows, and each doubling of its length adds 50. The
    answer depends on the count only, so that two lockstep runs agree.
    """
    every = 1 << max(0, (batches // _ROWS_BY_BATCHES).bit_length() - 1)
    return batches % every == 0


@dataclass(frozen=True, kw_only=True)
class PolicyLag:
    """Policy lag of on-policy samples since the previous row.

    Attributes:
        mean: Mean over samples of (learner's version - sample's version) at admission, in policy versions; None if
            there was no sample.
        maximum: The largest lag; None if there was no sample.
        histogram: Samples by lag; the last entry counts all larger ones.
        versions_per_trajectory: Mean number of policy versions in one trajectory; None if there was none.
        stale_samples: Valid samples since the run's first start that were excluded because they were older than
            ``max_policy_lag``.
        invalid_samples: Masked rows since the run's first start: final observations and failed environments.
    """

    mean: float | None = None
    maximum: int | None = None
    histogram: tuple[int, ...] = ()
    versions_per_trajectory: float | None = None
    stale_samples: int = 0
    invalid_samples: int = 0


@dataclass(frozen=True, kw_only=True)
class LearnerReport:
    """Counters since the run's first start, and means since the previous row of metrics.

    Attributes:
        agent_steps: Distinct valid samples consumed.
        batches: Batches learned from.
        sgd_steps: Optimiser steps.
        policy_version: Version of the last published weights. Versions count
            SGD steps in async and replay, and batches in lockstep.
        episodes: Episodes that have ended within the batches.
        recent_episodes: The last hundred of them; of several tasks, their share of each, at least 5.
        learning_rate: The current learning rate.
        fast_path: The learner's compute settings, in words.
        losses: Name -> mean.
        lag: Lag of on-policy samples; None in the replay regime.
        training_s: Seconds of training since the run's first start, without startup and pauses between sessions.
        precision: The learner's precision, "fp32" or "bf16"; empty if its settings fix it.
        figures: Name -> further columns; None without data.
        policy: Index of the policy.
        is_row: Whether this becomes a row of metrics. Otherwise it is only displayed: it has no losses, and the next
            row's means include its period.
        at: Time of the report by ``time.monotonic``, which all processes of a machine share.
    """

    agent_steps: int
    batches: int = 0
    sgd_steps: int = 0
    policy_version: int = 0
    episodes: int = 0
    recent_episodes: tuple[EpisodeEnd, ...] = ()
    learning_rate: float = 0.0
    fast_path: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)
    lag: PolicyLag | None = None
    training_s: float = 0.0
    precision: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    policy: int = 0
    is_row: bool = True
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class CheckpointWritten:
    """The learner has written a checkpoint.

    Attributes:
        path: The file.
    """

    path: str


@dataclass(frozen=True)
class LearnerNote:
    """A note for the user.

    Attributes:
        text: One line.
    """

    text: str


@dataclass(frozen=True)
class LearnerFinished:
    """The learner has reached ``total_steps`` or was stopped, and has written its last checkpoint.

    Attributes:
        report: The last report.
        checkpoint: Path of the last checkpoint.
        stopped_by_others: Whether another rank was stopped, not this one.
    """

    report: LearnerReport
    checkpoint: str
    stopped_by_others: bool = False
