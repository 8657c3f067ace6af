"""Bootstrap intervals against a literal bootstrap, the normal approximation, and their promise of coverage."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.evaluation.stats import Estimate, mean_interval


def test_the_interval_is_that_of_a_literal_bootstrap() -> None:
    values = np.random.default_rng(0).exponential(size=30)
    rng = np.random.default_rng(1)
    means = sorted(np.mean([values[rng.integers(30)] for _ in range(30)]) for _ in range(4000))
    found = mean_interval(values)
    # Standard error of a percentile near 2.5 % from 4,000 resamples: about 0.05 standard errors of the mean.
    tolerance = 4 * 0.05 * values.std() / np.sqrt(30)
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(means[100], abs=tolerance)
    assert found.high == pytest.approx(means[3900], abs=tolerance)


def test_large_samples_give_the_normal_interval() -> None:
    values = np.random.default_rng(0).normal(5.0, 2.0, size=1000)
    found = mean_interval(values)
    error = values.std() / np.sqrt(1000)
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = sum(
        found.low <= 1.0 <= found.high
        for found in (mean_interval(rng.normal(1.0, 1.0, size=40), seed=i) for i in range(60))
    )
    # 57 of 60 expected, standard error 1.7; percentile intervals of 40 values cover a little less.
    assert covered >= 50


def test_the_seed_decides_the_interval() -> None:
    values = np.random.default_rng(0).normal(size=20)
    assert mean_interval(values, seed=1) == mean_interval(values, seed=1)
    assert mean_interval(values, seed=1) != mean_interval(values, seed=2)


def test_one_value_is_its_own_interval() -> None:
    assert mean_interval([3.0]) == Estimate(3.0, 3.0, 3.0)


def test_samples_larger_than_a_block_are_resampled_in_parts() -> None:
    values = np.random.default_rng(0).normal(size=3000)
    found = mean_interval(values)
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / np.sqrt(3000), rel=0.05)


def test_means_of_different_numbers_of_observations_are_weighed() -> None:
    values, counts = np.random.default_rng(0).normal(size=20), np.random.default_rng(1).integers(1, 4, 20)
    rng = np.random.default_rng(2)
    means = []
    for _ in range(4000):
        chosen = rng.integers(20, size=20)
        means.append(np.repeat(values[chosen], counts[chosen]).mean())
    found = mean_interval(values, weights=counts)
    tolerance = 4 * 0.05 * values.std() / np.sqrt(20)
    assert found.value == pytest.approx(np.repeat(values, counts).mean())
    assert found[1:] == pytest.approx(np.percentile(means, (2.5, 97.5)), abs=tolerance)
    assert mean_interval(values, weights=np.full(20, 2)) == mean_interval(values)


@pytest.mark.parametrize(
    ("values", "message"), [([], "values is empty"), ([1.0, np.nan], "1 numbers that are not finite")]
)
def test_what_has_no_interval_is_refused(values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_interval(values)
