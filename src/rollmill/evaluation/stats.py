"""Bootstrap intervals of means and of differences of means (percentile method, Efron and Tibshirani 1993, ch. 13)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

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


def mean_interval(values: ArrayLike, *, weights: ArrayLike | None = None, seed: int = 0) -> Estimate:
    """Mean with its 95 % bootstrap interval.

    Args:
        values: At least one finite number; a single one is its own interval.
        weights: Of the values, which are resampled with them, where these are means of different numbers of
            observations; None weighs all alike.
        seed: Keys the resampling; the same seed gives the same interval.

    Raises:
        ValueError: No values, or values that are not finite.
    """
    array = np.asarray(values, np.float64).ravel()
    if not array.size:
        raise ValueError("values is empty; at least one number is needed for a mean")
    if not np.isfinite(array).all():
        raise ValueError(f"values has {int((~np.isfinite(array)).sum())} numbers that are not finite; leave them out")
    shares = np.ones(array.size) if weights is None else np.asarray(weights, np.float64).ravel()
    weighs_all_alike = bool((shares == shares[0]).all())
    generator = stream(seed, "bootstrap", 0)
    rows = max(1, min(_RESAMPLES, _BLOCK // array.size))
    means = []
    for first in range(0, _RESAMPLES, rows):
        chosen = generator.integers(array.size, size=(min(rows, _RESAMPLES - first), array.size))
        if weighs_all_alike:
            means.append(array[chosen].mean(1))
        else:
            means.append((array * shares)[chosen].sum(1) / shares[chosen].sum(1))
    low, high = np.percentile(np.concatenate(means), (2.5, 97.5))
    value = array.mean() if weighs_all_alike else np.average(array, weights=shares)
    return Estimate(float(value), float(low), float(high))
