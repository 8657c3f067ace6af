"""Equal time for all tasks."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from rollmill.envs import task_clock
from rollmill.envs.task_clock import TaskClock


def test_the_time_of_a_step_is_added_to_the_worker_s_own() -> None:
    seconds = np.zeros((3, 2))
    TaskClock(seconds, 2, equal=True).add(1, 0.25)
    TaskClock(seconds, 2, equal=True).add(1, 0.5)
    assert seconds.tolist() == [[0.0, 0.0], [0.0, 0.0], [0.0, 0.75]]


@pytest.mark.parametrize(("equal", "pauses"), [(True, True), (False, False)])
def test_a_task_that_is_ahead_pauses_for_a_moment(equal: bool, pauses: bool) -> None:
    seconds = np.array([[9.0, 1.0], [0.0, 1.0]])
    clock = TaskClock(seconds, 0, equal=equal)
    began = time.perf_counter()
    clock.pause(0)
    waited = time.perf_counter() - began
    assert (waited >= 0.2) == pauses
    assert waited < 5.0, "it does not wait until the others have caught up, which may be waiting for it"


def test_a_task_that_is_behind_or_a_little_ahead_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    # In place of the module `time`, whose own sleep() other threads may call.
    no_sleep = SimpleNamespace(sleep=lambda seconds: pytest.fail(f"pauses for {seconds} s"))
    monkeypatch.setattr(task_clock, "time", no_sleep)
    clock = TaskClock(np.array([[1.0, 9.0, 1.01], [1.0, 0.0, 1.0]]), 0, equal=True)
    clock.pause(0)
    clock.pause(2)
    TaskClock(np.array([[1.0, 1.04]]), 0, equal=True).pause(1)


@pytest.mark.parametrize(
    ("last", "parked", "pauses"), [(1.0, [0, 1], True), (1.0, [1, 1], False), (0.0, [0, 0], False)]
)
def test_a_task_that_cannot_go_on_is_not_waited_for(last: float, parked: list[bool], pauses: bool) -> None:
    paused: list[float] = []
    # Groups 1 and 3 have the last task.
    groups = np.array([False, parked[0], False, parked[1]])
    with pytest.MonkeyPatch.context() as patch:
        # In place of the module `time`, as above: other threads may call the module's own sleep().
        patch.setattr(task_clock, "time", SimpleNamespace(sleep=paused.append))
        TaskClock(np.array([[9.0, last]]), 0, equal=True, parked=groups).pause(0)
    assert bool(paused) == pauses


def seconds_of_tasks(costs: list[float], waits: list[float]) -> NDArray[np.float64]:
    """Step tasks 20,000 times, each on a core of its own; after a step it waits for its actions."""
    seconds: NDArray[np.float64] = np.zeros((1, len(costs)))
    clock = TaskClock(seconds, 0, equal=True)
    free_at = [0.0] * len(costs)
    paused: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        # In place of the module `time`, as above: other threads may call the module's own sleep().
        patch.setattr(task_clock, "time", SimpleNamespace(sleep=paused.append))
        for _ in range(20_000):
            task = int(np.argmin(free_at))
            paused.clear()
            clock.pause(task)
            clock.add(task, costs[task])
            free_at[task] += sum(paused) + costs[task] + waits[task]
    of_tasks: NDArray[np.float64] = seconds[0]
    return of_tasks


def test_tasks_of_different_cost_get_equal_time() -> None:
    """As in a run in which a step of one task takes three times as long, and nothing else holds either back."""
    seconds = seconds_of_tasks([0.003, 0.001], [0.002, 0.002])
    assert seconds / seconds.sum() == pytest.approx([0.5, 0.5], rel=0.02)


def test_one_of_ten_tasks_does_not_fall_behind() -> None:
    """It waits longer for its actions than the others; nothing else holds them back."""
    seconds = seconds_of_tasks([0.001] * 10, [0.004] + [0.002] * 9)
    assert seconds.max() - seconds.min() < 0.1
