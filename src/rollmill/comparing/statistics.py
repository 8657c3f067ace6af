"""Statistics of scores over several seeds and games.

In one environment: the mean return with its interval of the percentile bootstrap over runs. Over several Atari games,
after Agarwal et al. (2021, arXiv:2108.13264), by their own library: scores are human-normalised, ``[runs, games]`` for
each method, and intervals are of the stratified bootstrap, which resamples the runs of each game.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.comparing.runs import Comparison
from rollmill.evaluation.stats import Estimate, mean_interval
from rollmill.extras import install_command

Floats = NDArray[np.float64]
AGGREGATES = ("median", "iqm", "mean", "optimality_gap")
_RESAMPLES = 5_000  # the ends of an interval vary by about 1 % of its width
_PROFILE_RESAMPLES = 2_000
_PROFILE_POINTS = 101


class MissingReportExtraError(ImportError):
    """rliable, the library of the statistics, is not installed."""


class Profile(NamedTuple):
    """Share of runs with more than each score: ``[points]`` each, with 95 % bands."""

    scores: Floats
    share: Floats
    low: Floats
    high: Floats


def mean_intervals(comparison: Comparison, env: str, *, seed: int = 0) -> dict[str, Estimate]:
    """Mean raw return of each method in one environment, with its 95 % interval of the percentile bootstrap over runs.

    A method without a return is omitted. The interval of a single run is the run itself, because its spread is unknown.

    Args:
        comparison: The runs.
        env: The environment.
        seed: Keys the bootstrap.
    """
    scores = {label: [r.score for r in comparison.of(label, env) if r.score is not None] for label in comparison.labels}
    return {label: mean_interval(of_method, seed=seed) for label, of_method in scores.items() if of_method}


def score_matrices(comparison: Comparison) -> tuple[list[str], dict[str, Floats]]:
    """Human-normalised scores of the games in which every method has a run with a score.

    Returns:
        The games, and for each method ``[runs, games]``. A matrix has no gaps: of games with more runs than others, the
        runs with the smallest seeds are in it.
    """
    scores = {
        (label, env): [
            run.human_normalised_score for run in comparison.of(label, env) if run.human_normalised_score is not None
        ]
        for label in comparison.labels
        for env in comparison.envs
    }
    games = [env for env in comparison.envs if all(scores[label, env] for label in comparison.labels)]
    matrices = {}
    for label in comparison.labels if games else ():
        columns = [scores[label, game] for game in games]
        count = min(map(len, columns))
        matrices[label] = np.array([column[:count] for column in columns], np.float64).T
    return games, matrices


def aggregates(
    matrices: Mapping[str, Floats], *, seed: int = 0, resamples: int = _RESAMPLES
) -> dict[str, dict[str, Estimate]]:
    """Median, interquartile mean, mean and optimality gap of each method: {method: {aggregate: interval}}.

    Args:
        matrices: ``[runs, games]`` for each method.
        seed: Keys the bootstrap.
        resamples: How many.

    Raises:
        MissingReportExtraError: rliable is not installed.
    """
    library, metrics = _rliable()

    def of(scores: Floats) -> Floats:
        return np.array(
            [
                metrics.aggregate_median(scores),
                metrics.aggregate_iqm(scores),
                metrics.aggregate_mean(scores),
                metrics.aggregate_optimality_gap(scores),
            ]
        )

    found = {}
    for label, scores in matrices.items():
        with _seeded(seed):
            points, intervals = library.get_interval_estimates({label: scores}, of, reps=resamples)
        low, high = intervals[label] if len(scores) > 1 else np.full((2, len(AGGREGATES)), np.nan)
        found[label] = {
            name: Estimate(float(points[label][i]), float(low[i]), float(high[i])) for i, name in enumerate(AGGREGATES)
        }
    return found


def profile(
    matrices: Mapping[str, Floats], *, seed: int = 0, resamples: int = _PROFILE_RESAMPLES
) -> dict[str, Profile]:
    """For each method, the share of its runs that score more than tau, over tau (performance profiles)."""
    library, _ = _rliable()
    best = max(float(scores.max()) for scores in matrices.values())
    taus = np.linspace(0.0, max(1.0, best) * 1.02, _PROFILE_POINTS)
    found = {}
    for label, scores in matrices.items():
        with _seeded(seed):
            shares, bands = library.create_performance_profile({label: scores}, taus, reps=resamples)
        low, high = bands[label] if len(scores) > 1 else (shares[label], shares[label])
        found[label] = Profile(taus, shares[label], low, high)
    return found


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, which rliable always uses, and restore it on exit."""
    before = np.random.get_state()  # noqa: NPY002  # rliable has no other
    np.random.seed(seed)  # noqa: NPY002  # likewise
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002  # likewise


def _rliable() -> tuple[Any, Any]:
    try:
        from rliable import library, metrics
    except ImportError as error:
        raise MissingReportExtraError(
            f"the statistics of a report need rliable, which is not installed ({error}): {install_command('report')}"
        ) from error
    return library, metrics
