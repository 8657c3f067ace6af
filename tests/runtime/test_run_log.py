"""What a log tells about the last session."""

from __future__ import annotations

from pathlib import Path

from rollmill.runtime.run_log import every_line, last_lines


def test_the_last_session_counts(tmp_path: Path) -> None:
    line = "2026-01-01 INFO    [main] rollmill.run: {}\n"
    texts = "command: first", "end: stopped", "command: second\0", "machine: m", "irrelevant", "end: finished: 3 of 3"
    (tmp_path / "run.log").write_text("".join(line.format(text) for text in texts) + "command: not ours\n")
    found = last_lines(tmp_path, ("machine", "command", "end", "versions"))
    assert found == {"machine": "m", "command": "second\0", "end": "finished: 3 of 3"}
    assert every_line(tmp_path, "command") == ["first", "second\0"]
    assert every_line(tmp_path, "versions") == []


def test_the_end_of_an_earlier_session_is_not_that_of_the_last_one(tmp_path: Path) -> None:
    line = "2026-01-01 INFO    [main] rollmill.run: {}\n"
    texts = ["start: new", "command: first", "machine: m", "end: finished", "start: resumed", "command: second"]
    (tmp_path / "run.log").write_text("".join(map(line.format, texts)))
    assert last_lines(tmp_path, ("command", "end", "machine")) == {"command": "second"}
    assert every_line(tmp_path, "end") == ["finished"]


def test_a_run_without_a_log_tells_nothing(tmp_path: Path) -> None:
    assert last_lines(tmp_path, ("end",)) == {}
    (tmp_path / "run.log").mkdir()
    assert last_lines(tmp_path, ("end",)) == {}
