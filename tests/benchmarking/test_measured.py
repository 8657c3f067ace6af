"""The line after each of several measurements."""

from __future__ import annotations

import time

import pytest

from rollmill.benchmarking.measured import say_measured


def test_the_time_that_is_left_follows_from_the_measurements_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    say_measured(2, 5, "12 policies", 1234.5, began=time.monotonic() - 240.0)
    printed = capsys.readouterr()
    assert printed.err == "2 of 5: 12 policies, 1,234 agent steps/s; about 6 min left\n"
    assert not printed.out
