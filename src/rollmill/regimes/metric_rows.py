"""Rows of metrics from the learner's reports: the only place that defines the keys of ``metrics.jsonl``.

:mod:`rollmill.reporting.metric_table` documents the keys; a test compares both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from rollmill.envs.info_metrics import EnvMetrics
from rollmill.learning.report import LearnerReport, PolicyLag
from rollmill.reporting.ledger_report import Stage, share_metrics
from rollmill.reporting.metrics import Record
from rollmill.reporting.status import Status


def row_of(
    report: LearnerReport,
    status: Status,
    shares: Mapping[str, Stage],
    *,
    env: Mapping[str, float | None],
    time_before_s: float,
) -> Record:
    """Build a row of ``metrics.jsonl`` from a report.

    A value is null if nothing was measured since the previous row; keys depend on the regime.

    Args:
        report: The learner's report.
        status: The display's status.
        shares: How the processes spent their time since the last row that says so; empty where that is too short a time
            to tell.
        env: Key -> mean of what environments have given, and of the returns of agents, since the previous row.
        time_before_s: Seconds that earlier sessions of a resumed run trained for.
    """
    returns = [episode.episode_return for episode in report.recent_episodes]
    row: Record = {
        "time_s": time_before_s + status.time_s,
        "agent_steps": report.agent_steps,
        "frames": status.frames,
        "batches": report.batches,
        "sgd_steps": report.sgd_steps,
        "policy_version": report.policy_version,
        "steps_per_second": status.steps_per_second,
        "frames_per_second": status.frames_per_second,
        "episodes": report.episodes,
        "episode_return": status.episode_return,
        # Environments may give infinite rewards (``env.check_finite=false``).
        "episode_return_std": statistics.pstdev(returns) if returns and all(map(math.isfinite, returns)) else None,
        "episode_length": status.episode_length,
        "learning_rate": report.learning_rate,
    }
    if report.lag is not None:
        row |= _lag(report.lag, status.policy_lag_expected)
    row |= report.figures
    row |= env
    row |= {f"loss/{name}": value for name, value in report.losses.items()}
    return row | share_metrics(shares)


def sums_of(environments: EnvMetrics) -> dict[str, tuple[float, int]]:
    """Return key -> sum and count of what rollout workers have told of their environments."""
    given = {f"env/{name}": found for name, found in environments.sums.items()}
    return given | {f"agent/{name}/episode_return": found for name, found in environments.returns.items()}


def _lag(lag: PolicyLag, expected: float | None) -> Record:
    return {
        "policy_lag_mean": lag.mean,
        "policy_lag_max": lag.maximum,
        "policy_lag_expected": expected,
        "policy_lag_histogram": _without_tail(lag.histogram),
        "versions_per_trajectory": lag.versions_per_trajectory,
        "stale_samples": lag.stale_samples,
        "invalid_samples": lag.invalid_samples,
    }


def _without_tail(histogram: Sequence[int]) -> list[int]:
    """Truncate trailing zeros of the histogram."""
    last = max((lag for lag, count in enumerate(histogram) if count), default=-1)
    return list(histogram[: last + 1])
