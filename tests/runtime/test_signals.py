"""SIGINT and SIGTERM as a flag."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from rollmill.runtime.signals import StopSignals, sigterm_interrupts


@pytest.fixture(autouse=True)
def _not_under_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_closing_the_terminal_of_a_run_that_is_ending_interrupts_nothing() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.05)
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.received == signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_sets_the_flag_the_second_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert not signals.received
        os.kill(os.getpid(), number)
        assert signals.received == number
        time.sleep(1.05)
        with pytest.raises(KeyboardInterrupt, match="second signal"):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == number
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_that_is_delivered_twice_is_one() -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)  # As coreutils' timeout does: its child, then the child's group.
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGTERM


def test_handlers_are_restored_after_an_exception() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), StopSignals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def use() -> None:
        with StopSignals() as signals:
            seen.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))
            seen.append(signals.received)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [before, None]


def test_sigterm_interrupts_once_and_what_ends_then_is_not_interrupted() -> None:
    before = signal.getsignal(signal.SIGTERM)
    ended: list[bool] = []

    def work() -> None:
        with sigterm_interrupts():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                ended.append(True)

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        work()
    assert ended
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_closed_terminal_ends_a_program_unless_that_is_ignored() -> None:
    def work() -> None:
        with sigterm_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)

    with pytest.raises(KeyboardInterrupt, match="SIGHUP"):
        work()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        work()
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.received
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_sigterm_is_left_alone() -> None:
    seen: list[object] = []

    def look() -> None:
        with sigterm_interrupts():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
