"""What the display of a campaign says."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from rollmill.campaigns.jobs import Job, Record
from rollmill.campaigns.progress import (
    CampaignDisplay,
    Progress,
    RunProgress,
    describe_end,
    format_duration,
    format_line,
)

RUNNING = RunProgress(name="pong-seed_1", share=0.5, seconds=61.0, episode_return=12.34, steps_per_second=4321.0)
HALF = Progress(total=6, done=2, pruned=0, failed=1, before=1, elapsed_s=1800.0, running=[RUNNING])


def test_rate_and_time_left_count_parts_of_runs() -> None:
    assert HALF.share == pytest.approx(3.5 / 6)
    assert HALF.runs_per_hour == pytest.approx(5.0)  # 2.5 runs in half an hour
    assert HALF.eta_s == pytest.approx(1800.0)
    assert format_line(HALF) == "2 of 6 runs done, 1 running, 1 failed  5.0 runs/h  58.3%  30:00  ETA 30:00"


def test_at_the_start_the_time_left_is_unknown() -> None:
    start = Progress(total=2, done=0, pruned=0, failed=0, before=0, elapsed_s=0.0, running=[])
    assert (start.runs_per_hour, start.eta_s) == (None, None)
    again = replace(HALF, before=3.5 - 1e-13, elapsed_s=0.1)
    assert (again.runs_per_hour, again.eta_s) == (None, None), "a rounding error is no speed"
    assert "ETA -" in format_line(start)


def test_a_resumed_session_does_not_count_what_was_there() -> None:
    resumed = Progress(total=4, done=3, pruned=0, failed=0, before=3.5, elapsed_s=5.0, running=[RUNNING])
    assert resumed.runs_per_hour is None


def test_lines_where_there_is_no_terminal() -> None:
    shown = io.StringIO()
    with CampaignDisplay("suite", console=Console(file=shown, width=200), plain_interval_s=3600) as display:
        display.update(HALF)
        display.update(HALF)
        display.ended(Record(Job("a[b]", "x", {}), "failed", "first line\nsecond", 3.0))
    assert shown.getvalue().splitlines() == [format_line(HALF), "a[b]: failed after 0:03: first line"]


def test_a_panel_on_a_terminal() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=100, force_terminal=True, force_interactive=True, color_system=None)
    with CampaignDisplay("rollmill suite mine", console=console) as display:
        display.update(HALF)
    text = shown.getvalue()
    for part in ("rollmill suite mine", "2 of 6 runs done", "pong-seed_1", "return 12.3", "4,321.0 steps/s", "1:01"):
        assert part in text


def test_a_closed_terminal_ends_the_display_alone() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("closed")

    console = Console(file=Gone())
    with CampaignDisplay("suite", console=console) as display:
        display.note("one")
        display.note("two")
    assert console.quiet


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_reader_that_has_gone_ends_the_display_alone(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    # Unbuffered, so that nothing is left to be written when it is closed.
    with io.TextIOWrapper(os.fdopen(writing, "wb", buffering=0), write_through=True) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with CampaignDisplay("suite", plain_interval_s=0.0) as display:
            display._console._force_terminal = is_terminal
            display._console.is_interactive = is_terminal
            display.update(HALF)
            display.note("the end")
        assert display._console.quiet


def test_ends_and_durations() -> None:
    assert describe_end(Record(Job("a", "x", {}), "done", "", 3725.0)) == "a: done after 1:02:05"
    assert format_duration(None) == "-"
