"""Numbers of replaced policies by a bandit: PB2 (Parker-Holder et al. 2020, https://arxiv.org/abs/2002.02518).

A Gaussian process learns how much the objective improves between two events, given the numbers and the time. A replaced
policy gets the numbers with the largest upper confidence bound. Random mutations need large populations to find good
directions; the bandit uses what all policies have seen, so that four policies are enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.pbt.config import PbtConfig
from rollmill.pbt.mutation import NEAR_ONE, factored

Floats = NDArray[np.float64]

# Values of the paper's code: UCB's two constants.
_C1, _C2 = 0.2, 0.4
_CANDIDATES = 1000
_MOST_OBSERVATIONS = 300
# The kernel's parameters are those of this grid that explain the observations best.
_LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
_FORGETTING = (0.0, 0.01, 0.05, 0.2)
_NOISE = (0.01, 0.1, 0.5)
_WITHOUT_LIMITS = 10.0


class Observation(NamedTuple):
    """What a policy has seen between two of its events.

    Attributes:
        event: Number of the event at the end, which is the time.
        numbers: Name -> value in between.
        gain: By how much the objective has become larger.
    """

    event: int
    numbers: Mapping[str, float]
    gain: float


class Scale:
    """The range of a number, as [0, 1]: logarithmic where it has one sign.

    Args:
        name: The number.
        initial: Its values at the start, of all policies, with one sign.
        config: Its limits; without, a tenth of the lowest to ten times the highest value (or distance from 1).
    """

    def __init__(self, name: str, initial: Collection[float], config: PbtConfig) -> None:
        self._name = name
        self._is_near_one = name in NEAR_ONE
        low, high = config.limits_of(name)
        if self._is_near_one:
            low, high = 1.0 - high, 1.0 - low
        starts = [factored(name, value) for value in initial]
        ends = [end for start in starts for end in (start / _WITHOUT_LIMITS, start * _WITHOUT_LIMITS)]
        low, high = (low if math.isfinite(low) else min(ends)), (high if math.isfinite(high) else max(ends))
        if self._is_near_one:
            high = min(high, 1.0)
        self._sign = -1.0 if high <= 0.0 and low < 0.0 else 1.0
        self._is_log = (low > 0.0 or high < 0.0) and low != high
        self._low, self._high = (self._inner(low), self._inner(high))

    def to_unit(self, value: float) -> float:
        """Return the place of a value in the range."""
        if self._low == self._high:
            return 0.0
        inner = self._inner(factored(self._name, value))
        return min(1.0, max(0.0, (inner - self._low) / (self._high - self._low)))

    def from_unit(self, place: float) -> float:
        """Return the value at a place in [0, 1]."""
        inner = self._low + place * (self._high - self._low)
        value = self._sign * math.exp(inner) if self._is_log else inner
        return 1.0 - value if self._is_near_one else value

    def _inner(self, value: float) -> float:
        # The distance from 1 of a beta of 1, for example, has no logarithm.
        return math.log(max(abs(value), 1e-12)) if self._is_log else value


def suggested(
    observations: Sequence[Observation],
    initial: Sequence[Mapping[str, float]],
    event: int,
    config: PbtConfig,
    random: np.random.Generator,
) -> dict[str, float]:
    """Return the numbers with the largest upper confidence bound; random ones while little is known.

    Args:
        observations: Of all policies.
        initial: Name -> value at the start, of each policy.
        event: Number of the present event.
        config: Limits.
        random: Draws candidates.
    """
    scales = {name: Scale(name, [each[name] for each in initial], config) for name in initial[0]}
    candidates = random.random((_CANDIDATES, len(scales)))
    chosen = candidates[0]
    # Those of a session with fewer mutated settings say nothing about the others.
    known = [each for each in observations if scales.keys() <= each.numbers.keys()][-_MOST_OBSERVATIONS:]
    if len(known) > len(scales):
        points = np.array([[scale.to_unit(each.numbers[name]) for name, scale in scales.items()] for each in known])
        times = np.array([each.event for each in known], np.float64)
        process = GaussianProcess.fitted(points, times, np.array([each.gain for each in known]))
        mean, deviation = process.predict(candidates, float(event))
        width = math.sqrt(max(0.0, _C1 + math.log(max(1.0, _C2 * event))))
        chosen = candidates[int(np.argmax(mean + width * deviation))]
    return {name: scale.from_unit(float(place)) for (name, scale), place in zip(scales.items(), chosen, strict=True)}


class GaussianProcess:
    """Regression with a squared-exponential kernel over numbers, times a kernel that forgets with time.

    ``k((x, t), (x', t')) = exp(-|x - x'|^2 / (2 l^2)) (1 - f)^(|t - t'| / 2)``

    Args:
        points: float64 ``[N, D]``.
        times: float64 ``[N]``.
        gains: float64 ``[N]``.
        length: l.
        forgetting: f.
        noise: Variance of the noise, in units of the standardised gains.

    Attributes:
        log_likelihood: Of the standardised gains.
    """

    def __init__(
        self, points: Floats, times: Floats, gains: Floats, *, length: float, forgetting: float, noise: float
    ) -> None:
        self._points, self._times = points, times
        self._length, self._forgetting = length, forgetting
        spread = float(gains.std())
        self._mean, self._spread = float(gains.mean()), spread if spread > 0 else 1.0
        standard = (gains - self._mean) / self._spread
        kernel = self._kernel(points, times) + noise * np.eye(len(points))
        self._factor = np.linalg.cholesky(kernel)
        self._weights = np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, standard))
        self.log_likelihood = float(
            -0.5 * standard @ self._weights
            - np.log(np.diag(self._factor)).sum()
            - 0.5 * len(points) * math.log(2 * math.pi)
        )

    @classmethod
    def fitted(cls, points: Floats, times: Floats, gains: Floats) -> GaussianProcess:
        """Build the process whose parameters explain the observations best."""
        tried = [
            cls(points, times, gains, length=length, forgetting=forgetting, noise=noise)
            for length in _LENGTHS
            for forgetting in _FORGETTING
            for noise in _NOISE
        ]
        return max(tried, key=lambda process: process.log_likelihood)

    def predict(self, points: Floats, time: float) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the gain at some points, both ``[M]``."""
        kernel = self._kernel(points, np.full(len(points), time))
        mean = kernel @ self._weights
        inner = np.linalg.solve(self._factor, kernel.T)
        variance = np.maximum(1.0 - (inner**2).sum(axis=0), 1e-12)
        return self._mean + self._spread * mean, self._spread * np.sqrt(variance)

    def _kernel(self, points: Floats, times: Floats) -> Floats:
        squares = ((points[:, None] - self._points[None]) ** 2).sum(axis=-1)
        apart = np.abs(times[:, None] - self._times[None])
        kernel: Floats = np.exp(-squares / (2 * self._length**2)) * (1.0 - self._forgetting) ** (apart / 2)
        return kernel
