"""Policy lag, measured and bounded: by how many versions an action's policy is behind the learner.

Versions count SGD steps in async, and batches in lockstep; ``max_policy_lag`` uses the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

HISTOGRAM_BINS = 64


def expected_lag(*, num_rows: int, rollout_length: int, batch_size: int, sgd_steps_per_batch: int) -> float:
    """Return the lag implied by an async run's sizes, in SGD steps: (N_iter / N_batch - 1) x SGD steps a batch.

    N_iter samples are collected in one iteration of all rows over one rollout, N_batch are in one batch (Sample
    Factory, section 3.4). Queues add to this, so the measured lag may be larger.
    """
    return max(0.0, num_rows * rollout_length / batch_size - 1.0) * sgd_steps_per_batch


@dataclass
class LagStatistics:
    """Statistics of the lag of observed samples.

    Attributes:
        samples: Valid samples observed.
        total: Sum of their lags, in policy versions.
        maximum: The largest lag; None without samples.
        histogram: int64 ``[HISTOGRAM_BINS]`` samples by lag; the last bin collects everything above.
        trajectories: Trajectories observed.
        versions: Sum over trajectories of the number of policy versions in each.
    """

    samples: int = 0
    total: float = 0.0
    maximum: int | None = None
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(HISTOGRAM_BINS, np.int64))
    trajectories: int = 0
    versions: int = 0

    def observe(self, lag: NDArray[np.integer], valid: NDArray[np.bool_]) -> None:
        """Observe a batch: ``lag`` and ``valid`` are ``[T, N]``."""
        of_valid = lag[valid]
        if len(of_valid):
            self.samples += len(of_valid)
            self.total += float(of_valid.sum())
            self.maximum = max(self.maximum or 0, int(of_valid.max()))
            self.histogram += np.bincount(np.clip(of_valid, 0, HISTOGRAM_BINS - 1), minlength=HISTOGRAM_BINS)
        self.trajectories += lag.shape[1]
        self.versions += lag.shape[1] + int((lag[1:] != lag[:-1]).sum())

    @property
    def mean(self) -> float | None:
        """Mean lag; None without samples."""
        return self.total / self.samples if self.samples else None

    @property
    def versions_per_trajectory(self) -> float | None:
        """Mean number of policy versions in one trajectory; None without trajectories."""
        return self.versions / self.trajectories if self.trajectories else None


def admitted(
    valid: NDArray[np.bool_],
    versions: NDArray[np.integer],
    *,
    version: int,
    most: int,
    statistics: LagStatistics,
    oldest: int = 0,
) -> tuple[NDArray[np.bool_], int]:
    """Select the samples to learn from: valid, within the lag limit, and of the present generation.

    Args:
        valid: bool ``[T, N]``.
        versions: Integer ``[T, N]``: the policy version that chose each action.
        version: The learner's version.
        most: The largest admitted lag.
        statistics: Observes the lag of all valid samples.
        oldest: The oldest admitted version: that with which another policy's weights replaced this one's.

    Returns:
        bool ``[T, N]``, and the number of valid samples that were too old.
    """
    lag = version - versions.astype(np.int64)
    statistics.observe(lag, valid)
    keep: NDArray[np.bool_] = valid & (lag <= most) & (versions >= oldest)
    return keep, int(valid.sum()) - int(keep.sum())
