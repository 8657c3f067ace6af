"""What a learner counts of several tasks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from rollmill.learning.report import RECENT_EPISODES
from rollmill.learning.task_record import TaskRecord, score_figures
from rollmill.scores import SCORES, human_normalised
from rollmill.storage.episodes import EpisodeEnd

NAMES = ("a", "b", "c")
PONG, QBERT, BOXING = ATARI = ("atari/pong", "atari/qbert", "atari/boxing")


def record_of(names: tuple[str, ...] = NAMES, workers: int = 2) -> tuple[TaskRecord, NDArray[np.float64]]:
    seconds = np.zeros((workers, len(names)))
    return TaskRecord(names, seconds), seconds


def samples(record: TaskRecord, *numbers: int) -> None:
    """Count as many samples of each task, one trajectory of each."""
    keep = np.arange(max(numbers))[:, None] < np.array(numbers)
    record.count(np.arange(len(numbers)), keep)


def shares(record: TaskRecord, kind: str = "samples", *, is_row: bool = True) -> list[float | None]:
    figures = record.figures(is_row=is_row)
    return [figures[f"task/{name}/{kind}"] for name in NAMES]


def episodes(*ends: tuple[int | None, float]) -> list[EpisodeEnd]:
    return [EpisodeEnd(value, 7, task=task) for task, value in ends]


def test_nothing_is_known_before_anything_is_learned() -> None:
    record, _ = record_of()
    kinds = ("episode_return", "samples", "compute")
    assert record.figures(is_row=True) == {f"task/{name}/{kind}": None for name in NAMES for kind in kinds}


def test_samples_that_are_kept_are_counted_for_the_task_of_their_trajectory() -> None:
    record, _ = record_of()
    keep = np.array([[1, 1, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1], [0, 0, 0, 1]], bool)
    # Task 2 has two of the trajectories, of which only one has samples.
    record.count(np.array([2, 0, 2, 1]), keep)
    assert shares(record) == [1 / 8, 4 / 8, 3 / 8]
    assert sum(filter(None, shares(record))) == 1.0


def test_shares_are_those_since_ten_rows_ago() -> None:
    record, seconds = record_of()
    samples(record, 100, 0, 0)
    seconds[0] += [1.0, 0.0, 0.0]
    assert shares(record) == [1.0, 0.0, 0.0]
    for row in range(1, 12):
        samples(record, 0, 1, 3)
        seconds[1] += [0.0, 1.0, 0.0]
        figures = record.figures(is_row=True)
        found = [figures[f"task/{name}/samples"] for name in NAMES]
        # The tenth row before is that of nothing until there are so many.
        expected = [100, row, 3 * row] if row < 10 else [0, 10, 30]
        assert found == [pytest.approx(number / sum(expected)) for number in expected], row
        computed = [figures[f"task/{name}/compute"] for name in NAMES]
        assert computed == (
            [pytest.approx(1 / (1 + row)), pytest.approx(row / (1 + row)), 0.0] if row < 10 else [0, 1, 0]
        )


def test_what_is_shown_between_rows_does_not_make_one() -> None:
    record, _ = record_of()
    samples(record, 1, 0, 0)
    for _ in range(30):
        assert shares(record, is_row=False) == [1.0, 0.0, 0.0]
    samples(record, 0, 1, 0)
    assert shares(record) == [0.5, 0.5, 0.0]


def test_the_time_of_all_workers_is_added_up() -> None:
    record, seconds = record_of()
    seconds[:] = [[1.0, 0.0, 3.0], [2.0, 0.0, 2.0]]
    assert shares(record, "compute") == [3 / 8, 0.0, 5 / 8]
    assert shares(record, "samples") == [None] * 3


def test_time_before_the_record_was_made_does_not_count() -> None:
    seconds = np.array([[5.0, 0.0, 0.0]])
    record = TaskRecord(NAMES, seconds)
    seconds[0, 1] += 2.0
    assert shares(record, "compute") == [0.0, 1.0, 0.0]


def test_the_return_of_a_task_is_the_mean_of_its_newest_episodes() -> None:
    record, _ = record_of()
    record.take_episodes(episodes((0, 1.0), (2, 5.0), (0, 4.0)))
    record.take_episodes(episodes((2, 7.0), (None, 1000.0)))

    def means() -> list[float | None]:
        figures = record.figures(is_row=False)
        return [figures[f"task/{name}/episode_return"] for name in NAMES]

    assert means() == [2.5, None, 6.0]
    record.take_episodes(episodes(*[(0, -1.0)] * RECENT_EPISODES))
    assert means() == [-1.0, None, 6.0]
    record.forget_episodes()
    assert means() == [None, None, None]


def test_scores_wait_for_a_return_of_every_task() -> None:
    record, _ = record_of(ATARI)
    random, human = (SCORES[PONG].random, SCORES[PONG].human)
    record.take_episodes(episodes((0, human), (1, SCORES[QBERT].random)))
    figures = record.figures(is_row=True)
    assert figures[f"task/{PONG}/score"] == 1.0
    assert figures[f"task/{QBERT}/score"] == 0.0
    assert figures[f"task/{BOXING}/score"] is None
    assert [figures[f"score/{kind}"] for kind in ("mean", "median", "mean_capped")] == [None] * 3
    boxing = SCORES[BOXING]
    record.take_episodes(episodes((2, boxing.random + 8 * (boxing.human - boxing.random)), (0, 2 * human - random)))
    figures = record.figures(is_row=True)
    # Pong's mean is 1.5 of a human's score.
    assert figures["score/mean"] == pytest.approx((1.5 + 0.0 + 8.0) / 3)
    assert figures["score/median"] == pytest.approx(1.5)
    assert figures["score/mean_capped"] == pytest.approx(2 / 3)


def test_tasks_without_scores_have_no_columns_of_them_and_do_not_count_in_means() -> None:
    assert score_figures(NAMES, {"a": 1.0}) == {}
    names = (PONG, "gym/CartPole-v1")
    figures = score_figures(names, {PONG: 0.0})
    score = human_normalised(PONG, 0.0)
    assert figures.keys() == {f"task/{PONG}/score", "score/mean", "score/median", "score/mean_capped"}
    assert set(figures.values()) == {score}
    assert score_figures(names, {"gym/CartPole-v1": 9.0}) == dict.fromkeys(figures)


def test_counts_and_returns_are_saved_and_restored() -> None:
    record, _ = record_of()
    samples(record, 3, 0, 1)
    record.take_episodes(episodes((0, 1.0), (0, 3.0), (2, 5.0)))
    state = json.loads(json.dumps(record.state_dict()))
    assert state == {
        "names": ["a", "b", "c"],
        "samples": [3, 0, 1],
        "samples_of_rows": [[0, 0, 0]],
        "returns": [[1.0, 3.0], [], [5.0]],
    }
    other, seconds = record_of()
    seconds[:] = 4.0
    samples(other, 50, 50, 50)
    other.load_state_dict(state)
    assert other.state_dict() == state
    # Shares of samples go on; those of the time count from here.
    assert shares(other) == [0.75, 0.0, 0.25]
    assert shares(other, "compute") == [None] * 3
    samples(other, 0, 2, 2)
    seconds[0, 1] += 1.0
    assert shares(other) == [3 / 8, 2 / 8, 3 / 8]
    assert shares(other, "compute") == [0.0, 1.0, 0.0]
    # A checkpoint of an earlier version.
    other.load_state_dict({key: value for key, value in state.items() if key != "samples_of_rows"})
    assert shares(other) == [None] * 3


def test_counts_of_tasks_that_are_no_longer_learned_are_left_out() -> None:
    record, _ = record_of()
    samples(record, 3, 4, 5)
    record.take_episodes(episodes((0, 1.0), (1, 2.0), (2, 3.0)))
    other, _ = record_of(("c", "new", "a"))
    other.load_state_dict(record.state_dict())
    assert other.state_dict() == {
        "names": ["c", "new", "a"],
        "samples": [5, 0, 3],
        "samples_of_rows": [[0, 0, 0]],
        "returns": [[3.0], [], [1.0]],
    }


def test_restored_returns_replace_those_so_far() -> None:
    record, _ = record_of()
    record.take_episodes(episodes((0, 1.0)))
    other, _ = record_of()
    other.take_episodes(episodes((0, 100.0), (1, 100.0)))
    other.load_state_dict(record.state_dict())
    assert other.state_dict() == record.state_dict()
