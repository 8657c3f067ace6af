"""The live display, on a terminal and off it."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from rollmill.reporting.display import Display, format_line
from rollmill.reporting.ledger_report import Stage
from rollmill.reporting.status import PolicyStatus, Status

STATUS = Status(
    name="atari/pong",
    agent_steps=250_000,
    total_steps=1_000_000,
    frames=1_000_000,
    time_s=100.0,
    steps_per_second=2_500.0,
    frames_per_second=10_000.0,
    episode_return=-18.25,
    episode_length=901.0,
    policy_lag_mean=1.25,
    policy_lag_max=3.0,
    policy_lag_expected=1.5,
    learning_rate=2.5e-4,
    shares={
        "rollout worker": Stage({"simulating": 0.9, "waiting for actions": 0.1}, frozenset({"waiting for actions"})),
        "learner": Stage({"learning": 0.4, "waiting for batches": 0.6}, frozenset({"waiting for batches"})),
    },
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_and_eta() -> None:
    assert STATUS.progress == 0.25
    assert STATUS.eta_s == 300.0
    assert replace(STATUS, steps_per_second=0.0).eta_s is None
    assert replace(STATUS, agent_steps=2_000_000).progress == 1.0
    assert replace(STATUS, agent_steps=2_000_000).eta_s == 0.0
    assert replace(STATUS, total_steps=0).progress == 1.0


def test_progress_and_eta_of_a_run_that_its_time_will_end() -> None:
    limited = replace(STATUS, ends_at_s=200.0)
    assert (limited.progress, limited.eta_s) == (0.5, 100.0)
    assert format_line(limited).startswith("1:40 of 3:20  250,000 steps (50%) | 10,000 frames/s | ETA 1:40 |")
    assert replace(limited, steps_per_second=0.0).eta_s == 100.0
    assert replace(limited, time_s=201.0).eta_s == 0.0
    assert replace(limited, time_before_s=300.0).progress == 0.8, "of a resumed run, earlier sessions count"
    # Its steps come first.
    late = replace(STATUS, ends_at_s=100_000.0)
    assert (late.progress, late.eta_s) == (0.25, 300.0)
    assert format_line(late) == format_line(STATUS)


def test_a_line_has_all_that_matters() -> None:
    assert format_line(STATUS) == (
        "1:40  250,000 of 1,000,000 steps (25%) | 10,000 frames/s | ETA 5:00 | return -18.2 | length 901.0 | "
        "lag 1.2 (max 3) | rollout worker 90% busy, waiting for actions 10%; learner 40% busy, waiting for batches 60%"
    )


def test_what_is_not_known_yet_is_a_dash() -> None:
    status = Status(
        name="x", agent_steps=0, total_steps=10, frames=0, time_s=3700.0, steps_per_second=0.0, frames_per_second=0.0
    )
    assert format_line(status) == ("1:01:40  0 of 10 steps (0%) | 0 frames/s | ETA - | return - | length - | lag -")


def test_off_a_terminal_there_is_a_line_every_few_seconds_and_the_last_status_is_never_lost() -> None:
    out, clock = io.StringIO(), Clock()
    with Display(console=Console(file=out, width=80), plain_interval_s=10.0, clock=clock) as display:
        display.note("starting [2] workers")
        for second in range(25):
            clock.now = float(second)
            display.update(replace(STATUS, agent_steps=second))
    lines = out.getvalue().splitlines()
    assert lines[0] == "starting [2] workers"
    assert [line.split()[1] for line in lines[1:]] == ["0", "10", "20", "24"]


def test_a_note_comes_after_the_lines_before_it() -> None:
    out = io.StringIO()
    with Display(console=Console(file=out, width=80), clock=Clock()) as display:
        display.update(STATUS)
        display.update(replace(STATUS, agent_steps=300_000))
        display.note("the end")
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["250,000", "300,000"]
    assert lines[2:] == ["the end"]


def test_long_lines_are_not_broken() -> None:
    out = io.StringIO()
    with Display(console=Console(file=out, width=20)) as display:
        display.note("word " * 20)
        display.update(STATUS)
    assert len(out.getvalue().splitlines()) == 2


def test_on_a_terminal_the_panel_shows_speed_return_lag_and_stages() -> None:
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, force_terminal=True, force_interactive=True, width=100, color_system=None)
    display = Display(console=console, live_interval_s=0.5, clock=clock)
    display.update(STATUS)
    shown = out.getvalue()
    for text in ("atari/pong", "25.0%", "10,000", "-18.2", "1.2 (max 3)", "2.50e-04", "90% busy", "ETA 5:00",
                 "waiting for batches 60%", "Bottleneck: rollout worker"):  # fmt: skip
        assert text in shown, text
    clock.now = 0.4
    display.update(replace(STATUS, agent_steps=251_000))
    assert out.getvalue() == shown, "too early"
    display.close()
    assert "251,000" in out.getvalue()
    display.close()


def test_a_dumb_terminal_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with Display(console=Console(file=out, force_terminal=True, width=100), plain_interval_s=0.0) as display:
        display.update(STATUS)
        assert "10,000" in out.getvalue()
        display.note("fd00::a:1 :x:")
    assert "fd00::a:1 :x:" in out.getvalue()


def test_a_name_is_no_markup() -> None:
    out = io.StringIO()
    with Display(
        console=Console(file=out, force_terminal=True, force_interactive=True, width=100, color_system=None)
    ) as display:
        display.update(replace(STATUS, name="my[/maze]", shares={"a[/role]": STATUS.shares["learner"]}))
    assert "my[/maze]" in out.getvalue()
    assert "a[/role]" in out.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_reader_that_has_gone_ends_the_display_and_nothing_else(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    # Unbuffered, so that nothing is left to be written when it is closed.
    with io.TextIOWrapper(os.fdopen(writing, "wb", buffering=0), write_through=True) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        display = Display(plain_interval_s=0.0, live_interval_s=0.0)
        display.console._force_terminal = is_terminal
        display.console.is_interactive = is_terminal
        for steps in range(3):
            display.update(replace(STATUS, agent_steps=steps))
        display.note("the end")
        display.close()
        assert display.console.quiet


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_full_disk_ends_the_display_and_nothing_else(is_terminal: bool) -> None:
    stdout = sys.stdout
    # Unbuffered, as above.
    with io.TextIOWrapper(open("/dev/full", "wb", buffering=0), write_through=True) as stream:
        display = Display(
            console=Console(file=stream, force_terminal=is_terminal, force_interactive=is_terminal),
            plain_interval_s=0.0,
        )
        for steps in range(3):
            display.update(replace(STATUS, agent_steps=steps))
        display.note("the end")
        display.close()
        assert display.console.quiet
    assert sys.stdout is stdout, "rich redirects it while a panel is shown"


@pytest.mark.parametrize(("count", "most_lines"), [(2, 24), (30, 32)])
def test_the_panel_shows_every_policy_on_one_screen(count: int, most_lines: int) -> None:
    policies = {
        f"policy_{index}": PolicyStatus(
            agent_steps=100, steps_per_second=12.0 * index, episode_return=1.0, rating=1000.0 + index, lag=0.5
        )
        for index in range(count)
    }
    file = io.StringIO()
    display = Display(console=Console(file=file, force_terminal=True, force_interactive=True, width=120, height=50))
    display.update(replace(STATUS, policies=policies))
    shown = file.getvalue()
    display.close()
    for index in range(count):
        assert f"policy_{index} " in shown
        assert f"{1000 + index:,}.0" in shown
    assert len(shown.splitlines()) <= most_lines
