"""How many episodes have been played."""

from __future__ import annotations

import io
import sys

import pytest

from rollmill.cli.episode_bar import episode_bar


def test_lines_come_at_intervals_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with episode_bar("evaluating", interval_s=0.0) as show:
        show(0, 8)
        show(2, 8)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "evaluating: 0 of 8 episodes  0 s  ETA -"
    assert second == "evaluating: 2 of 8 episodes  0 s  ETA 0 s"
    with episode_bar("evaluating", interval_s=60.0) as show:
        show(2, 8)
    with episode_bar("evaluating", interval_s=0.0, quiet=True) as show:
        show(2, 8)
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_there_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with episode_bar("recording") as show:
        for done in range(9):
            show(done, 8)
    assert "8/8" in terminal.getvalue()
    assert "recording" in terminal.getvalue()
