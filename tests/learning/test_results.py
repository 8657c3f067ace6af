"""The window of a policy's newest results."""

from __future__ import annotations

import json

import pytest

from rollmill.learning.results import OwnResults, RecentResults
from rollmill.storage.episodes import EpisodeEnd
from rollmill.storage.matches import Match


def test_the_newest_results_are_kept_saved_and_forgotten() -> None:
    results = RecentResults(2)
    results.add([EpisodeEnd(1.0, 3), EpisodeEnd(2.0, 4)], [Match(1, 0.5)])
    results.add([EpisodeEnd(5.0, 6)])
    assert list(results.episodes) == [EpisodeEnd(2.0, 4), EpisodeEnd(5.0, 6)]
    assert list(results.points) == [0.5]
    other = RecentResults(2)
    other.add([EpisodeEnd(9.0, 9)], [Match(0, 1.0)])
    other.load_state_dict(results.state_dict())
    assert other.episodes == results.episodes
    assert other.points == results.points
    results.clear()
    assert not results.episodes
    assert not results.points


@pytest.mark.parametrize(
    ("window", "tasks", "each"), [(30, 3, 10), (31, 3, 11), (3, 2, 5), (100, 57, 5), (300, 57, 6), (1, 1, 5)]
)
def test_a_window_has_as_many_episodes_of_each_task_and_never_few(window: int, tasks: int, each: int) -> None:
    results = RecentResults(window, [f"task {index}" for index in range(tasks)])
    for number in range(each):
        assert not results.has_all_episodes
        results.add([EpisodeEnd(float(number), 3, task=task) for task in reversed(range(tasks))])
    assert results.has_all_episodes
    results.add([EpisodeEnd(-1.0, 3, task=0)])
    assert len(results.episodes) == each * tasks
    # Those of the first task first.
    assert [episode.task for episode in results.episodes] == [task for task in range(tasks) for _ in range(each)]
    assert [episode.episode_return for episode in results.episodes[:each]] == [*map(float, range(1, each)), -1.0]


def test_a_window_is_full_once_that_of_every_task_is() -> None:
    results = RecentResults(10, ("a", "b"))
    results.add([EpisodeEnd(1.0, 3, task=0)] * 20 + [EpisodeEnd(1.0, 3, task=1)] * 4)
    assert not results.has_all_episodes
    results.add([EpisodeEnd(1.0, 3, task=1)])
    assert results.has_all_episodes


def test_means_are_those_of_tasks_with_episodes() -> None:
    results = RecentResults(10, ("a", "b"))
    assert results.mean_returns() == {}
    results.add([EpisodeEnd(1.0, 3, task=1), EpisodeEnd(4.0, 3, task=1)])
    assert results.mean_returns() == {"b": 2.5}
    results.add([EpisodeEnd(-1.0, 3, task=0)])
    assert results.mean_returns() == {"a": -1.0, "b": 2.5}
    results.clear()
    assert results.mean_returns() == {}
    alone = RecentResults(10)
    alone.add([EpisodeEnd(1.0, 3), EpisodeEnd(2.0, 3)])
    assert alone.mean_returns() == {"": 1.5}


def test_results_of_tasks_are_saved_and_restored() -> None:
    results = RecentResults(10, ("a", "b"))
    results.add([EpisodeEnd(1.0, 3, task=1), EpisodeEnd(2.0, 4, 0.5, 0), EpisodeEnd(3.0, 5, task=1)])
    other = RecentResults(10, ("a", "b"))
    other.add([EpisodeEnd(9.0, 9, task=0)])
    other.load_state_dict(json.loads(json.dumps(results.state_dict())))
    assert other.episodes == results.episodes
    assert other.mean_returns() == {"a": 2.0, "b": 2.0}
    assert other.tasks == ("a", "b")


def test_results_that_began_before_a_replacement_are_not_the_policy_s_own() -> None:
    own, short, long, match = OwnResults(4), EpisodeEnd(1.0, 3), EpisodeEnd(2.0, 9), Match(1, 0.5)
    assert own.select([short, long], [match], 40) == ([short, long], [match])
    own.begin(100)
    assert own.select([], [match], 200) == ([], ()), "no episode says how long matches are"
    own.begin(100)
    assert own.select([short], [match], 111) == ([], ())
    assert own.select([short, long], [match], 112) == ([short], ())
    assert own.select([short], [match], 135) == ([short], ()), "one of nine steps ended before"
    assert own.select([long], [match], 136) == ([long], [match])
    own.begin(136)
    assert own.select([short], [match], 136) == ([], ())
