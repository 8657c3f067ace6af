"""Random delays: how often, how long, and independent of the run's seed."""

from __future__ import annotations

import random
import time

import pytest

from rollmill.runtime.delays import DelayInjector


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each delay, which does not take place."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def test_one_call_of_twenty_sleeps_up_to_the_longest_delay(slept: list[float]) -> None:
    inject = DelayInjector(0.5)
    for _ in range(20_000):
        inject()
    assert 800 < len(slept) < 1200  # six standard deviations around 1000
    assert all(0.0 <= seconds <= 0.5 for seconds in slept)
    assert sum(slept) / len(slept) == pytest.approx(0.25, rel=0.15)


def test_without_a_longest_delay_nothing_sleeps(slept: list[float]) -> None:
    inject = DelayInjector(0.0)
    for _ in range(1000):
        inject()
    assert slept == []


def test_seeds_have_no_influence_and_are_not_used_up(slept: list[float]) -> None:
    patterns = []
    for _ in range(2):
        random.seed(7)
        slept.clear()
        inject = DelayInjector(1.0)
        for _ in range(2000):
            inject()
        patterns.append(list(slept))
        assert random.random() == random.Random(7).random()
    assert patterns[0] != patterns[1]
