"""Policy lag: expected from sizes, measured from versions."""

from __future__ import annotations

import numpy as np

from rollmill.learning.lag import HISTOGRAM_BINS, LagStatistics, expected_lag


def test_expected_lag_equals_the_papers() -> None:
    # Sample Factory, section 3.4: N_iter / N_batch - 1, in SGD steps of one minibatch a batch.
    assert expected_lag(num_rows=64, rollout_length=32, batch_size=1024, sgd_steps_per_batch=1) == 1.0
    assert expected_lag(num_rows=64, rollout_length=32, batch_size=1024, sgd_steps_per_batch=4) == 4.0
    assert expected_lag(num_rows=8, rollout_length=32, batch_size=1024, sgd_steps_per_batch=1) == 0.0


def test_statistics_count_valid_samples_only() -> None:
    statistics = LagStatistics()
    lag = np.array([[3, 1], [3, 0], [2, 0]])
    valid = np.array([[True, True], [True, False], [True, True]])
    statistics.observe(lag, valid)
    assert statistics.samples == 5
    assert statistics.mean == (3 + 1 + 3 + 2 + 0) / 5
    assert statistics.maximum == 3
    assert statistics.histogram[:4].tolist() == [1, 1, 1, 2]
    # Each of the two trajectories has two policy versions.
    assert statistics.versions_per_trajectory == 2.0


def test_large_lags_share_the_last_bin() -> None:
    statistics = LagStatistics()
    statistics.observe(np.array([[HISTOGRAM_BINS + 5], [10**6]]), np.ones((2, 1), bool))
    assert statistics.histogram[-1] == 2
    assert statistics.maximum == 10**6


def test_lag_without_samples_is_zero() -> None:
    statistics = LagStatistics()
    statistics.observe(np.zeros((3, 0), np.int64), np.zeros((3, 0), bool))
    assert (statistics.mean, statistics.maximum, statistics.versions_per_trajectory) == (None, None, None)
