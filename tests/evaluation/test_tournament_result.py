"""Scores and ratings."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.evaluation.tournament_result import Score, TournamentResult, elo


def test_the_interval_is_wilsons() -> None:
    # Newcombe (1998), Statistics in Medicine 17, 857-872, table I, method 3.
    for won, matches, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        found = Score(won, 0, matches - won).interval
        assert found == pytest.approx((low, high), abs=1e-4)


def test_ratings_are_those_of_the_logistic_model() -> None:
    # One pair: 400 log10(odds), with a drawn match more.
    scores = {(0, 1, 0): Score(75, 0, 25), (1, 0, 0): Score(25, 0, 75)}
    result = TournamentResult(env="test", players=("a", "b"), seats=("x",), scores=scores, seconds=1.0, seed=0)
    high, low = elo(result)
    assert high - low == pytest.approx(400 * np.log10(75.5 / 25.5))


def test_with_three_seats_losses_as_the_only_one_are_points_of_the_others() -> None:
    # The player with two of the three seats wins every match.
    scores = {(one, other, seat): Score(0, 0, 20) for one, other in ((0, 1), (1, 0)) for seat in range(3)}
    result = TournamentResult(env="test", players=("a", "b"), seats=("x", "y", "z"), scores=scores, seconds=1.0, seed=0)
    assert elo(result) == pytest.approx((0.0, 0.0))
    scores |= {(1, 0, seat): Score(10, 0, 10) for seat in range(3)}
    high, low = elo(TournamentResult(**{**vars(result), "scores": scores}))[::-1]
    assert high - low == pytest.approx(400 * np.log10(90.5 / 30.5))
