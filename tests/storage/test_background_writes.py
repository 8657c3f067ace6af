"""Writing in a thread."""

from __future__ import annotations

import threading

import pytest

from rollmill.storage.background_writes import BackgroundWrites


def test_one_file_after_another_is_written_while_others_go_on() -> None:
    writes, may_end, written = BackgroundWrites(), threading.Event(), list[str]()

    def slowly() -> str:
        assert may_end.wait(10.0)
        written.append("first")
        return threading.current_thread().name

    assert not writes.is_busy
    first = writes.submit(slowly)
    second = writes.submit(lambda: written.append("second"))
    assert writes.is_busy
    assert written == []
    may_end.set()
    second.result(10.0)
    assert not writes.is_busy
    assert written == ["first", "second"]
    assert first.result() != threading.current_thread().name


def test_an_error_is_that_of_the_write() -> None:
    writes = BackgroundWrites()

    def fail() -> None:
        raise OSError("no space")

    failed = writes.submit(fail)
    with pytest.raises(OSError, match="no space"):
        failed.result(10.0)
    assert not writes.is_busy
