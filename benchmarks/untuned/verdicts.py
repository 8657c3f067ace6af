"""Better, equal or worse: two libraries' returns on one environment, with bootstrap intervals.

The bootstrap is hierarchical (Davison and Hinkley 1997, section 3.8): it draws training seeds with replacement, and
then, within each, episodes with replacement. An interval so covers both the chance in training and that in evaluation.
It cannot be wider than what the seeds show, so with two seeds it understates how much a third could differ: where seeds
differ much, "better" and "worse" are often wrong. `false_verdicts` measures how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MARGIN = 0.02
"""A difference smaller than this share of the better library's gain counts as none."""
WIDE = 0.2
"""An interval of the difference that reaches beyond this share of the better library's gain decides nothing."""

_RESAMPLES = 10_000
_TAILS = (0.025, 0.975)

Returns = Sequence[Sequence[float]]  # for each training seed, the returns of its episodes


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """How Rollmill compares with the other library.

    Attributes:
        word: "better", "equal" or "worse".
        difference: Of the means over seeds, Rollmill's less the other's.
        is_wide: "equal" only because the interval is too wide to tell; more seeds are needed.
        neither_learned: "equal" because neither library is above the baseline.
    """

    word: str
    difference: Interval
    is_wide: bool = False
    neither_learned: bool = False


def mean_interval(returns: Returns) -> Interval:
    """Mean over seeds of the mean return, each seed weighing the same, with its interval."""
    return _interval(_mean(returns), _resampled(returns, 0))


def compare(ours: Returns, theirs: Returns, baseline: Returns) -> Verdict:
    """Rollmill beside another library.

    The better library's gain is its mean less the baseline's, or 0. "better" and "worse" need both: the 95 % interval
    of the difference excludes 0, and the difference is more than ``MARGIN`` of the gain. Everything else is "equal".

    Args:
        ours: Rollmill's returns.
        theirs: The other library's.
        baseline: Those of play that has learned nothing.
    """
    nothing = _mean(baseline)
    resampled_ours, resampled_theirs, resampled_nothing = (
        _resampled(returns, stream) for stream, returns in enumerate((ours, theirs, baseline))
    )
    difference = _interval(_mean(ours) - _mean(theirs), resampled_ours - resampled_theirs)
    gain = max(_mean(ours) - nothing, _mean(theirs) - nothing, 0.0)
    if difference.low > 0.0 and difference.value > MARGIN * gain:
        return Verdict("better", difference)
    if difference.high < 0.0 and -difference.value > MARGIN * gain:
        return Verdict("worse", difference)
    neither = not any(
        _interval(0.0, resampled - resampled_nothing).low > 0.0 for resampled in (resampled_ours, resampled_theirs)
    )
    is_wide = not neither and max(-difference.low, difference.high) > WIDE * gain
    return Verdict("equal", difference, is_wide, neither)


def false_verdicts(num_seeds: int, ratio: float, *, episodes: int = 50, repetitions: int = 300) -> float:
    """Share of comparisons of two equal libraries whose interval of the difference excludes 0; the margin is left out.

    Args:
        num_seeds: Training seeds of each library.
        ratio: Standard deviation between the seeds' true means, in standard errors of one seed's evaluation.
        episodes: Of each evaluation.
        repetitions: Comparisons.
    """
    generator = np.random.default_rng((8, num_seeds))

    def returns() -> Returns:
        means = ratio / np.sqrt(episodes) * generator.normal(size=(num_seeds, 1))
        drawn: list[list[float]] = (means + generator.normal(size=(num_seeds, episodes))).tolist()
        return drawn

    found = [compare(returns(), returns(), [[0.0]]).difference for _ in range(repetitions)]
    return sum(difference.low > 0.0 or difference.high < 0.0 for difference in found) / repetitions


def _mean(returns: Returns) -> float:
    if not returns or not all(returns):
        raise ValueError("no returns: at least one episode of one seed is needed")
    return float(np.mean([np.mean(of_seed) for of_seed in returns]))


def _interval(value: float, resampled: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(resampled, _TAILS)
    return Interval(value, float(low), float(high))


def _resampled(returns: Returns, stream: int) -> NDArray[np.float64]:
    """Means of ``_RESAMPLES`` hierarchical resamples; the same returns and stream give the same ones."""
    generator = np.random.default_rng((7, stream))
    seeds = [np.asarray(of_seed, np.float64) for of_seed in returns]
    total = np.zeros(_RESAMPLES)
    for _ in seeds:  # one draw of a seed for each seed that there is
        drawn = generator.integers(len(seeds), size=_RESAMPLES)
        for index, values in enumerate(seeds):
            rows = np.flatnonzero(drawn == index)
            total[rows] += values[generator.integers(values.size, size=(rows.size, values.size))].mean(1)
    return total / len(seeds)
