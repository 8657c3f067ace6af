"""Measured training: slices, and what is measured between them while the run is held still."""

from __future__ import annotations

import multiprocessing
import os
import time
from ctypes import c_long
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pytest

import rollmill
from rollmill.benchmarking import train
from rollmill.benchmarking.pausing import paused_children
from rollmill.learning.report import LearnerReport


def report(agent_steps: int, sgd_steps: int | None = None) -> LearnerReport:
    return LearnerReport(agent_steps=agent_steps, sgd_steps=agent_steps // 10 if sgd_steps is None else sgd_steps)


class TestSlices:
    def test_counts_within_slices_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(train, "_WARM_UP_S", 10.0)
        window = train._Slices(2, 2.0)
        window.take(report(0), 1.0)  # Nothing learned yet: the warm-up has not begun.
        window.take(report(500), 5.0)
        window.take(report(900), 14.9)
        for time_s, steps in [(15.0, 1000), (16.0, 1100), (17.5, 1250)]:
            assert not window.is_slice_full
            window.take(report(steps), time_s)
        assert window.is_slice_full
        assert not window.is_last_slice
        window.next_slice()
        assert window.is_last_slice
        window.take(report(1290), 60.0)  # Written before the pause, and read after it.
        window.take(report(1400), 61.0)
        window.take(report(1800), 63.0)
        assert window.is_slice_full
        assert window.seconds == pytest.approx(2.5 + 2.0)
        assert window.steps_per_second == pytest.approx((250 + 400) / 4.5)
        assert window.sgd_steps_per_second == pytest.approx((25 + 40) / 4.5)

    def test_collecting_before_a_replay_can_be_drawn_from_does_not_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(train, "_WARM_UP_S", 1.0)
        window = train._Slices(1, 2.0)
        for time_s in range(1, 60):
            window.take(report(1000 * time_s, 0), float(time_s))
        assert window.slices == [[]]
        for time_s in range(60, 65):
            window.take(report(59_000 + 10 * time_s, time_s), float(time_s))
        assert window.steps_per_second == pytest.approx(10.0)
        assert window.sgd_steps_per_second == pytest.approx(1.0)

    def test_too_short(self) -> None:
        window = train._Slices(1, 2.0)
        window.take(report(10), 1.0)
        window.take(report(20), 100.0)
        with pytest.raises(train.TooShortError, match="measure for longer"):
            _ = window.steps_per_second


def count_up(counter: Synchronized[int]) -> None:
    os.setpgid(0, 0)
    while True:
        counter.value += 1
        time.sleep(1e-3)


def wait_until_it_counts(counter: Synchronized[int]) -> None:
    before, deadline = counter.value, time.monotonic() + 30
    while counter.value == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stand_still_and_fail(counter: Synchronized[int]) -> None:
    with paused_children():
        time.sleep(0.1)  # A signal takes a moment to arrive.
        before = counter.value
        time.sleep(0.3)
        assert counter.value == before
        raise ZeroDivisionError


def test_paused_children_stand_still() -> None:
    context = multiprocessing.get_context("spawn")
    counter = context.Value(c_long, 0, lock=False)
    process = context.Process(target=count_up, args=(counter,))
    process.start()
    try:
        wait_until_it_counts(counter)
        with pytest.raises(ZeroDivisionError):
            stand_still_and_fail(counter)
        wait_until_it_counts(counter)
    finally:
        process.kill()
        process.join()


def cpu_ticks_of_children() -> int:
    """User and system time of all processes that multiprocessing has started here."""
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks


@pytest.mark.slow
def test_training_is_held_still_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_WARM_UP_S", 0.5)
    pauses: list[int] = []

    def between() -> None:
        time.sleep(0.1)
        before = cpu_ticks_of_children()
        assert before > 0
        time.sleep(0.5)
        pauses.append(cpu_ticks_of_children() - before)

    config = rollmill.make_config("CartPole-v1", {"num_envs": 16}).resolved()
    training = train.measure_training(config, 3.0, slices=3, between=between)
    assert pauses == [0, 0]
    assert training.steps_per_second > 0
    assert training.seconds >= 3.0
