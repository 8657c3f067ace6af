"""Objectives of a policy's newest results."""

from __future__ import annotations

import pytest

from rollmill.learning.results import RecentResults
from rollmill.pbt.objectives import OBJECTIVES, ObjectiveError, check_objective, register_objective, score
from rollmill.scores import SCORES
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.episodes import EpisodeEnd
from rollmill.storage.matches import Match


def results(*returns: float, points: tuple[float, ...] = (), window: int = 3) -> RecentResults:
    found = RecentResults(window)
    found.add([EpisodeEnd(value, 5) for value in returns], [Match(1, value) for value in points])
    return found


def test_a_policy_takes_part_once_its_window_is_full() -> None:
    assert score("return", results(1.0, 2.0), None) is None
    assert score("return", results(1.0, 2.0, -9.0), None) == -2.0
    assert score("return", results(5.0, 1.0, 2.0, -9.0), None) == -2.0
    assert score("win_rate", results(1.0, 2.0, 3.0, points=(1.0, 0.5)), None) is None
    assert score("win_rate", results(points=(1.0, 0.5, 0.0)), None) == 0.5
    assert score("rating", results(points=(1.0,)), 100.0) is None
    assert score("rating", results(points=(1.0, 1.0, 1.0)), 24.0) == 24.0


def test_an_objective_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OBJECTIVES, "factories", dict(OBJECTIVES.factories))
    register_objective("worst", lambda found: min(episode.episode_return for episode in found.episodes))
    register_objective("broken", lambda found: float("nan"))
    assert score("worst", results(1.0, -2.0, 3.0), None) == -2.0
    with pytest.raises(ObjectiveError, match=r"pbt\.objective='broken' gave nan: return a finite number"):
        score("broken", results(1.0, 2.0, 3.0), None)
    for nonsense, shown in ((None, "None"), ("3", "'3'"), ([1.0], "")):
        monkeypatch.setitem(OBJECTIVES.factories, "broken", lambda found, value=nonsense: value)
        with pytest.raises(ValueError, match=rf"pbt\.objective='broken' gave .*{shown}.*: return a finite number"):
            score("broken", results(1.0, 2.0, 3.0), None)
    with pytest.raises(ValueError, match=r"pbt\.objective='wrst': this objective is not known; did you mean 'worst'"):
        score("wrst", results(1.0, 2.0, 3.0), None)
    with pytest.raises(ValueError, match="objective 'return' exists already"):
        register_objective("return", lambda found: 0.0)


PONG, QBERT = "atari/pong", "atari/qbert"


def results_of_tasks(*returns: tuple[int, float], tasks: tuple[str, ...] = (PONG, QBERT)) -> RecentResults:
    """Of each task there are five episodes in the window."""
    found = RecentResults(10, tasks)
    found.add(EpisodeEnd(value, 5, task=task) for task, value in returns)
    return found


def at_score(task: str, value: float) -> float:
    """The return with this human-normalised score."""
    return SCORES[task].random + value * (SCORES[task].human - SCORES[task].random)


def test_a_policy_takes_part_once_the_window_of_every_task_is_full() -> None:
    first = [(0, at_score(PONG, 0.5))] * 5
    assert score("return", results_of_tasks(*first * 3), None) is None
    assert score("score", results_of_tasks(*first, *[(1, 0.0)] * 4), None) is None
    assert score("score", results_of_tasks(*first, *[(1, at_score(QBERT, 0.25))] * 5), None) == pytest.approx(0.375)


def test_the_score_of_tasks_is_the_mean_of_their_capped_scores() -> None:
    returns = [(0, at_score(PONG, value)) for value in (4.0, 0.0, 1.0, 1.0, 4.0)]
    found = results_of_tasks(*returns, *[(1, at_score(QBERT, 0.2))] * 5)
    # Pong's mean is twice a human's score and counts as one. The mean of a task is capped, not an episode's.
    assert score("score", found, None) == pytest.approx((1.0 + 0.2) / 2)
    below = results_of_tasks(
        *[(0, at_score(PONG, v)) for v in (2.0, -1.0, 0.5, 0.5, 0.5)], *[(1, SCORES[QBERT].random)] * 5
    )
    assert score("score", below, None) == pytest.approx((0.5 + 0.0) / 2)


def test_each_task_counts_as_much_in_the_mean_return() -> None:
    found = RecentResults(3, ("a", "b"))
    found.add(EpisodeEnd(value, 5, task=0) for value in (1.0, 2.0, 3.0, 4.0, 5.0))
    found.add(EpisodeEnd(100.0, 5, task=1) for _ in range(7))
    assert score("return", found, None) == pytest.approx((3.0 + 100.0) / 2)


@pytest.mark.parametrize(
    ("name", "rest", "message"),
    [
        ("score", {"tasks": ()}, r"pbt\.objective='score' needs several tasks .*; gym/Own is not one: use 'return'\."),
        ("score", {"tasks": (PONG, "gym/CartPole-v1")}, r"as Atari games; gym/CartPole-v1 is not one: use 'return'\."),
        ("true_objective", {"tasks": (PONG, QBERT), "in_replay": True}, "'true_objective' in the replay regime"),
        ("win_rate", {"tasks": (PONG, QBERT)}, "compares results of matches, but gym/Own has one agent"),
        ("scor", {}, r"did you mean 'score'"),
    ],
)
def test_objectives_that_a_run_cannot_compute_are_refused(name: str, rest: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_objective(name, 1, "gym/Own", **{"in_replay": False} | rest)  # type: ignore[arg-type]  # values of two arguments


@pytest.mark.parametrize("name", ["score", "return", "true_objective"])
def test_objectives_of_tasks_with_scores(name: str) -> None:
    if name != "true_objective":
        check_objective(name, 1, "suite/two", in_replay=True, tasks=(PONG, QBERT))
    check_objective(name, 1, "suite/two", in_replay=False, tasks=(PONG, QBERT, "dmlab/rooms_watermaze"))
    if name != "score":
        check_objective(name, 1, "suite/two", in_replay=False, tasks=(PONG, "gym/CartPole-v1"))
