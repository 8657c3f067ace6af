"""Ends of episodes as one integer, and as plain data."""

import json
import math

import numpy as np
import pytest

from rollmill.storage.episodes import (
    EpisodeEnd,
    episodes_of,
    mean_return,
    newest_episodes,
    pack_episode,
    pack_match,
    plain_episodes,
    unpack_episode,
    unpack_match,
)
from rollmill.storage.matches import Match


@pytest.mark.parametrize("value", [0.0, -21.0, *(float(np.float32(x)) for x in (1e30, -1.5e-30, 0.1))])
@pytest.mark.parametrize("length", [1, 1000, 2**23 - 1])
@pytest.mark.parametrize("task", [None, 0, 56, 254 - 1])
def test_a_return_a_length_and_a_task_come_back(value, length, task):
    message = pack_episode(value, length, task)
    assert 0 <= message < 2**63
    assert unpack_episode(message) == EpisodeEnd(value, length, task=task)
    assert unpack_match(message) is None


def test_what_does_not_fit_is_capped_or_left_out():
    assert unpack_episode(pack_episode(1.0, 2**40)) == EpisodeEnd(1.0, 2**23 - 1)
    assert unpack_episode(pack_episode(1.0, 3, 255)) == EpisodeEnd(1.0, 3)


@pytest.mark.parametrize("opponent", [0, 1, 40, 2**15 - 1])
@pytest.mark.parametrize("points", [0.0, 0.5, 1.0])
def test_results_of_matches_are_told_from_episodes(opponent, points):
    message = pack_match(Match(opponent, points))
    assert 0 <= message < 2**63
    assert unpack_match(message) == Match(opponent, points)
    assert unpack_match(pack_episode(0.0, 1)) is None


@pytest.mark.parametrize(
    ("episode", "plain"),
    [
        (EpisodeEnd(-1.5, 7), [-1.5, 7]),
        (EpisodeEnd(-1.5, 7, 0.25), [-1.5, 7, 0.25]),
        (EpisodeEnd(-1.5, 7, 0.0), [-1.5, 7, 0.0]),
        (EpisodeEnd(-1.5, 7, task=3), [-1.5, 7, None, 3]),
        (EpisodeEnd(-1.5, 7, task=0), [-1.5, 7, None, 0]),
        (EpisodeEnd(-1.5, 7, 0.25, 2), [-1.5, 7, 0.25, 2]),
        (EpisodeEnd(-1.5, 7, 0.0, 0), [-1.5, 7, 0.0, 0]),
    ],
)
def test_plain_episodes_are_as_short_as_they_can_be_and_come_back(episode, plain):
    found = plain_episodes([episode, EpisodeEnd(1.0, 1)])
    assert found == [plain, [1.0, 1]]
    assert episodes_of(json.loads(json.dumps(found))) == [episode, EpisodeEnd(1.0, 1)]


def test_plain_episodes_are_of_plain_numbers():
    (found,) = plain_episodes([EpisodeEnd(np.float32(1.5), np.int32(4), 0.5, 1)])
    assert list(map(type, found)) == [float, int, float, int]


def test_an_objective_that_was_not_given_comes_back_as_such():
    (found,) = episodes_of(plain_episodes([EpisodeEnd(1.0, 2, math.nan, 1)]))
    assert math.isnan(found.objective)
    assert found.task == 1


def test_the_newest_episodes_are_as_many_of_each_task():
    # Nine episodes of the quick task end for each of the slow one.
    episodes = [EpisodeEnd(float(number), 3, task=int(number % 10 == 0)) for number in range(60)]
    kept = [int(episode.episode_return) for episode in newest_episodes(episodes, 20, 2)]
    assert kept == [0, 10, 20, 30, 40, *range(49, 60)]
    alone = [EpisodeEnd(float(number), 3) for number in range(150)]
    assert newest_episodes(alone, 100) == alone[-100:]
    assert newest_episodes(alone[:7], 100) == alone[:7]
    many = [EpisodeEnd(0.0, 1, task=task) for task in range(57) for _ in range(9)]
    assert len(newest_episodes(many, 100, 57)) == 57 * 5


def test_the_mean_return_of_tasks_weighs_them_alike():
    episodes = [EpisodeEnd(10.0, 3, task=0)] * 9 + [EpisodeEnd(-200.0, 200, task=1)]
    assert mean_return(episodes, 2) == -95.0
    assert mean_return(episodes, 2, least=2) is None
    assert mean_return(episodes, 3) is None, "a task has no episode yet"
    assert mean_return(episodes[:9], 2) is None
    alone = [EpisodeEnd(value, 1) for value in (1.0, 2.0, 6.0)]
    assert mean_return(alone) == 3.0
    assert mean_return(alone, least=4) is None
    assert mean_return([]) is None
