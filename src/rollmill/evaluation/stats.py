"""Bootstrap intervals of means and of differences of means (percentile method, Efron and Tibshirani 1993, ch. 13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollmill.runtime.seeds import stream

__all__ = ["Estimate", "mean_difference", "mean_interval"]

_RESAMPLES = 10_000
_BLOCK = 2_000_000  # numbers drawn at once: 16 MB


class Estimate(NamedTuple):
    """A figure with its interval.

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


def mean_interval(values: ArrayLike, *, seed: int = 0, confidence: float = 0.95) -> Estimate:
    """Mean with its bootstrap interval.

    Args:
        values: At least one finite number; a single one is its own interval.
        seed: Keys the resampling; the same seed gives the same interval.
        confidence: Probability, between 0 and 1.

    Raises:
        ValueError: No values, values that are not finite, or a confidence outside of (0, 1).
    """
    array = _checked(values, "values")
    means = _resampled_means(array, seed, 0)
    return Estimate(float(array.mean()), *_percentiles(means, confidence))


def mean_difference(after: ArrayLike, before: ArrayLike, *, seed: int = 0, confidence: float = 0.95) -> Estimate:
    """``mean(after) - mean(before)`` of two independent samples, with its bootstrap interval; see `mean_interval`."""
    new, old = _checked(after, "after"), _checked(before, "before")
    differences = _resampled_means(new, seed, 0) - _resampled_means(old, seed, 1)
    return Estimate(float(new.mean() - old.mean()), *_percentiles(differences, confidence))


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


def _percentiles(means: NDArray[np.float64], confidence: float) -> Sequence[float]:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence={confidence}: a probability between 0 and 1 is needed, such as 0.95")
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return float(low), float(high)
