"""Scores in units of a human's."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

from rollmill.scores import (
    ATARI_10,
    ATARI_57,
    DMLAB_30,
    SCORES,
    capped,
    human_normalised,
    mean_capped,
    median,
    scores_of,
)


def test_the_benchmarks_have_their_sizes() -> None:
    assert (len(ATARI_57), len(ATARI_10), len(DMLAB_30)) == (57, 10, 30)
    assert set(ATARI_10) < set(ATARI_57)
    assert set(SCORES) == {*ATARI_57, *DMLAB_30}
    assert all(scores.human > scores.random for scores in SCORES.values())


def test_the_scores_are_the_published_ones() -> None:
    # Wang et al. (2016), table 2: the ends of the alphabet and a game with negative scores.
    assert scores_of("atari/alien") == (227.8, 7127.7)
    assert scores_of("atari/skiing") == (-17098.1, -4336.9)
    assert scores_of("atari/zaxxon") == (32.5, 9173.3)
    # dmlab30.py of scalable_agent: the ends of the list and a level with a negative score.
    assert scores_of("dmlab/rooms_collect_good_objects_test") == (0.073, 10.0)
    assert scores_of("dmlab/language_execute_random_task") == (-5.913, 254.05)
    assert scores_of("dmlab/explore_object_rewards_many") == (2.438, 106.7)


@pytest.mark.parametrize("task", SCORES)
def test_random_play_is_0_and_a_human_is_1(task: str) -> None:
    random, human = SCORES[task]
    assert human_normalised(task, random) == 0.0
    assert human_normalised(task, human) == 1.0
    assert human_normalised(task, 2 * human - random) == pytest.approx(2.0)
    assert capped(task, 2 * human - random) == 1.0
    assert capped(task, 2 * random - human) == pytest.approx(-1.0)


def test_a_score_between_random_play_and_a_human() -> None:
    assert human_normalised("atari/breakout", 16.1) == pytest.approx(0.5)
    assert human_normalised("atari/pong", -21.0) == pytest.approx(-0.3 / 35.3)


@pytest.mark.parametrize(
    ("spelling", "task"),
    [
        ("atari/Pong", "atari/pong"),
        ("atari/BattleZone", "atari/battle_zone"),
        ("ATARI/battle-zone", "atari/battle_zone"),
        ("atari/jamesbond", "atari/jamesbond"),
        ("atari/MsPacman", "atari/ms_pacman"),
        ("atari/UpNDown", "atari/up_n_down"),
        ("dmlab/rooms_collect_good_objects_test", "dmlab/rooms_collect_good_objects_train"),
        ("dmlab/contributed/dmlab30/rooms_watermaze", "dmlab/rooms_watermaze"),
        ("dmlab/contributed/dmlab30/rooms_exploit_deferred_effects_test", "dmlab/rooms_exploit_deferred_effects_train"),
    ],
)
def test_spellings_of_a_task(spelling: str, task: str) -> None:
    assert scores_of(spelling) == SCORES[task]
    assert human_normalised(spelling, 3.0) == human_normalised(task, 3.0)


@pytest.mark.parametrize(
    "name",
    ["gym/CartPole-v1", "atari/nothing", "pong", "envpool/pong", "atari/", "", "dmlab/pong", "dmlab/lt_chasm"],
)
def test_other_environments_have_none(name: str) -> None:
    assert scores_of(name) is None
    assert human_normalised(name, 1.0) is None
    assert capped(name, 1.0) is None


def test_mean_and_median_over_tasks() -> None:
    def at(task: str, score: float) -> float:
        random, human = SCORES[task]
        return random + score * (human - random)

    wanted = {task: 0.1 * number for number, task in enumerate(DMLAB_30)}
    returns = {task: at(task, score) for task, score in wanted.items()}
    assert mean_capped(returns) == pytest.approx(statistics.fmean(min(score, 1.0) for score in wanted.values()))
    assert median(returns) == pytest.approx(1.45)
    assert mean_capped({"atari/Pong": 21.0, "atari/breakout": 1.7}) == pytest.approx(0.5)
    assert median({"atari/Pong": 14.6}) == 1.0


@pytest.mark.parametrize("summary", [mean_capped, median])
@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ({}, "no returns were given"),
        ({"atari/pong": 1.0, "gym/CartPole-v1": 500.0}, "'gym/CartPole-v1' has no human score: give games of ATARI_57"),
        ({"atari/pong": 1.0, "atari/Pong": 2.0}, "'atari/pong' and 'atari/Pong' are the same task"),
        (
            {"dmlab/rooms_collect_good_objects_train": 1.0, "dmlab/rooms_collect_good_objects_test": 1.0},
            "are the same task: give one return",
        ),
    ],
)
def test_returns_that_make_no_summary_are_refused(summary, returns: dict[str, float], message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        summary(returns)


def test_the_games_are_ales() -> None:
    games = pytest.importorskip("rollmill.envs.atari").games()
    assert {f"atari/{game}" for game in games} >= set(ATARI_57)


def test_the_module_needs_neither_torch_nor_gymnasium_nor_numpy() -> None:
    code = "import sys, rollmill.scores; print(sorted({'torch', 'gymnasium', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
