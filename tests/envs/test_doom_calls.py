"""Threads for calls that may hang."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from rollmill.envs.doom_calls import EngineCalls, all_returned


def test_calls_are_made_at_the_same_time_and_give_what_they_return_or_raise() -> None:
    calls = EngineCalls(2)
    both = threading.Barrier(2)
    first, second = calls.submit(both.wait, 5), calls.submit(both.wait, 5)
    assert all_returned([first, second], 5)
    assert {first.result(), second.result()} == {0, 1}
    failing = calls.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(timeout=5)
    assert calls.have_returned(5)
    calls.end()


def test_a_call_that_raises_is_noticed_while_another_one_hangs() -> None:
    calls, is_over = EngineCalls(2), threading.Event()
    hanging = calls.submit(is_over.wait)
    assert not all_returned([hanging], 0.01)
    failing = calls.submit(int, "x")
    began = time.monotonic()
    with pytest.raises(ValueError, match="invalid literal"):
        all_returned([hanging, failing], 20)
    assert time.monotonic() - began < 10
    assert not calls.have_returned(0.01)
    calls.end()
    is_over.set()
    assert calls.have_returned(5)


def test_threads_end_after_their_calls() -> None:
    calls = EngineCalls(3)
    for _ in range(2):
        calls.submit(time.sleep, 0)
    threads = list(calls._threads)
    assert len(threads) == 2
    calls.end()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_a_process_exits_while_a_call_hangs() -> None:
    code = (
        "import threading; from rollmill.envs.doom_calls import EngineCalls as C; C(1).submit(threading.Event().wait)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
