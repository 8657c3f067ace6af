"""What the learner tells the main process every few seconds. Imports no torch: the main process does without."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollmill.storage.episodes import EpisodeEnd

RECENT_EPISODES = 100
"""Over so many episodes, the last to end, returns are averaged."""

_ROWS_BY_BATCHES = 50


def is_milestone(batches: int) -> bool:
    """Whether a row of metrics is due after so many batches, however little time has passed.

    One is due for each of the first 100 batches, for every second one of the next 100, for every fourth one of the next
    200, and so on: a run of at least 100 batches has at least 100 rows, whenever and for whatever reason it ends, and
    each doubling of its length adds 50. The answer depends on the count alone, so that two lockstep runs agree.
    """
    every = 1 << max(0, (batches // _ROWS_BY_BATCHES).bit_length() - 1)
    return batches % every == 0


@dataclass(frozen=True, kw_only=True)
class PolicyLag:
    """How old the samples were that on-policy learning admitted since the previous row.

    Attributes:
        mean: Mean over samples of (learner's version - sample's version) at admission, in policy versions; None where
            there was no sample.
        maximum: The largest; None where there was no sample.
        histogram: Samples by lag; the last entry counts all larger ones.
        versions_per_trajectory: Mean number of policy versions in one trajectory; None where there was none.
        stale_samples: Valid samples since the run's first start that were left out because they were older than
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
        policy_version: Version of the weights that were published last, which is the newest that acts. Versions count
            SGD steps in async and replay, and batches in lockstep.
        episodes: How many have ended within the batches.
        recent_episodes: The last hundred of them.
        learning_rate: The present one.
        fast_path: What the learner chose to compute with, in words.
        losses: Name -> mean.
        lag: Of on-policy learning; None in the replay regime, whose samples are of any age.
        training_s: Seconds of training since the run's first start, without starting up and without pauses between
            sessions.
        precision: What the learner computes in, "fp32" or "bf16"; empty where its settings say so.
        figures: Name -> what else is worth a column; None where there was nothing of it.
        is_row: Whether this is to be a row of metrics. What is not is for the display: it has no losses, and the means
            of the next row include it.
        at: When it was made, by ``time.monotonic``, which all processes of a machine share.
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
    """What the user should know.

    Attributes:
        text: One line.
    """

    text: str


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
