"""Rating systems."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.learning.ratings import Elo, OpenSkill, Rating, RatingSystem, restored

SYSTEMS = [Elo(), OpenSkill()]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.kind)
def test_a_winner_rises_and_a_loser_falls(system: RatingSystem) -> None:
    first = system.initial
    won, lost, drew = (system.rate(first, first, points) for points in (1.0, 0.0, 0.5))
    assert won.value > drew.value > lost.value
    assert drew.value == pytest.approx(first.value)
    assert system.expected(first, first) == pytest.approx(0.5)
    assert system.expected(won, lost) > 0.5 > system.expected(lost, won)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.kind)
def test_ratings_find_the_order_of_players(system: RatingSystem) -> None:
    random = np.random.default_rng(0)
    strength = np.array([0.0, 1.0, 2.0, 3.0])
    ratings = [system.initial] * 4
    for _ in range(3_000):
        one, other = random.choice(4, 2, replace=False).tolist()
        points = float(random.random() < 1 / (1 + np.exp(strength[other] - strength[one])))
        mine, theirs = ratings[one], ratings[other]
        ratings[one], ratings[other] = system.rate(mine, theirs, points), system.rate(theirs, mine, 1.0 - points)
    shown = [system.shown(rating) for rating in ratings]
    assert shown == sorted(shown)
    assert system.expected(ratings[3], ratings[0]) > 0.8


def test_elo_is_the_published_formula() -> None:
    # 400 points more: 10 to 1.
    assert Elo().expected(Rating(400.0, 0.0), Rating(0.0, 0.0)) == pytest.approx(10 / 11)
    assert Elo().rate(Rating(0.0, 0.0), Rating(400.0, 0.0), 1.0).value == pytest.approx(8 * 10 / 11)


def test_a_deviation_shrinks_with_matches() -> None:
    system = OpenSkill()
    rating = system.initial
    for points in (1.0, 0.0) * 50:
        rating = system.rate(rating, Rating(system.initial.value, 0.0), points)
    assert rating.deviation < system.initial.deviation / 4
    assert abs(rating.value - system.initial.value) < 3


def test_saved_ratings_are_restored() -> None:
    assert restored([3.0, 0.5]) == Rating(3.0, 0.5)
    assert restored(120) == Rating(120.0, 0.0)
