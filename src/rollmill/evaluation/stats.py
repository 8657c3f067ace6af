"""Bootstrap intervals of means and of differences of means (percentile method, Efron and Tibshirani 1993, ch. 13)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollmill.runtime.seeds import stream

_RESAMPLES = 10_000
_BLOCK = 2_000_000  # numbers drawn at once: 16 MB


class Estimate(NamedTuple):
    """A figure with its 95 % interval.

    Attributes:
        value: The estimate from the data themselves.
        low: Lower end of the interval.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside of the interval."""
        return self.low > 0.0 or self.high < 0.0


def mean_interval(values: ArrayLike, *, seed: int = 0) -> Estimate:
    """Mean with its 95 % bootstrap interval.

    Args:
        values: At least one finite number; a single one is its own interval.
        seed: Keys the resampling; the same seed gives the same interval.

    Raises:
        ValueError: No values, or values that are not finite.
    """
    array = _checked(values, "values")
    return _estimate(float(array.mean()), _resampled_means(array, seed, 0))


def mean_difference(after: ArrayLike, before: ArrayLike, *, seed: int = 0) -> Estimate:
    """``mean(after) - mean(before)`` of two independent samples, with its interval; see `mean_interval`."""
    new, old = _checked(after, "after"), _checked(before, "before")
    differences = _resampled_means(new, seed, 0) - _resampled_means(old, seed, 1)
    return _estimate(float(new.mean() - old.mean()), differences)


def _checked(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64).ravel()
    if not array.size:
        raise ValueError(f"{name} is empty; at least one number is needed for a mean")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has {int((~np.isfinite(array)).sum())} numbers that are not finite; leave them out")
    return array


def _resampled_means(array: NDArray[np.float64], seed: int, index: int) -> NDArray[np.float64]:
    generator = stream(seed, "bootstrap", index)
    rows = max(1, min(_RESAMPLES, _BLOCK // array.size))
    means: list[NDArray[np.float64]] = []
    for first in range(0, _RESAMPLES, rows):
        chosen = generator.integers(array.size, size=(min(rows, _RESAMPLES - first), array.size))
        means.append(array[chosen].mean(1))
    return np.concatenate(means)


def _estimate(value: float, resampled: NDArray[np.float64]) -> Estimate:
    low, high = np.percentile(resampled, (2.5, 97.5))
    return Estimate(value, float(low), float(high))
