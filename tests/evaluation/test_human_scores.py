"""Scores in units of a human's."""

from __future__ import annotations

import pytest

from rollmill.evaluation.human_scores import ATARI_SCORES, human_normalised


def test_there_are_the_57_games_of_the_paper() -> None:
    assert len(ATARI_SCORES) == 57
    assert all(scores.human != scores.random for scores in ATARI_SCORES.values())
    # Wang et al. (2016), table 2: the ends of the alphabet and a game with negative scores.
    assert ATARI_SCORES["alien"] == (227.8, 7127.7)
    assert ATARI_SCORES["skiing"] == (-17098.1, -4336.9)
    assert ATARI_SCORES["zaxxon"] == (32.5, 9173.3)


@pytest.mark.parametrize("game", ATARI_SCORES)
def test_random_play_is_0_and_a_human_is_1(game: str) -> None:
    random, human = ATARI_SCORES[game]
    assert human_normalised(f"atari/{game}", random) == 0.0
    assert human_normalised(f"atari/{game}", human) == 1.0
    assert human_normalised(f"atari/{game}", 2 * human - random) == pytest.approx(2.0)


def test_human_normalised_scores_are_the_published_ones() -> None:
    assert human_normalised("atari/breakout", 30.5) == pytest.approx(1.0)
    assert human_normalised("atari/breakout", 16.1) == pytest.approx(0.5)
    assert human_normalised("atari/pong", -21.0) == pytest.approx(-0.3 / 35.3)


@pytest.mark.parametrize("env", ["gym/CartPole-v1", "atari/nothing", "pong", "envpool/pong", "atari/Pong", "atari/"])
def test_other_environments_have_none(env: str) -> None:
    assert human_normalised(env, 1.0) is None


def test_the_games_are_ales() -> None:
    games = pytest.importorskip("rollmill.envs.atari").games()
    assert set(games) >= set(ATARI_SCORES)
