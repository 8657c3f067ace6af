"""run.log: records of all processes, one line each, without the noise of libraries, nothing on the console."""

from __future__ import annotations

import logging
import re
import resource
from pathlib import Path

import pytest
import runtime_targets

from rollmill.runtime.logs import run_log
from rollmill.runtime.supervisor import Supervisor

HEAD = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "


def test_main_and_children_write_one_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run" / "run.log"
    root_handlers, level = list(logging.getLogger().handlers), logging.getLogger("rollmill").level
    with run_log(path) as log:
        log.info("run begins, 100 %")
        logging.getLogger("rollmill.part").debug("too fine")
        logging.getLogger("noisy.library").info("chatter")
        with Supervisor(log_path=path) as supervisor:
            supervisor.start("worker 7", runtime_targets.log_things)
            supervisor.poll(30)
        text = path.read_text()
    assert logging.getLogger().handlers == root_handlers
    assert logging.getLogger("rollmill").level == level
    lines = text.splitlines()
    assert all(re.match(HEAD + r"(INFO   |WARNING) \[(main|worker 7)\] ", line) for line in lines)
    bodies = [re.sub(HEAD, "", line) for line in lines]
    assert bodies[0] == "INFO    [main] rollmill: run begins, 100 %"
    assert "INFO    [worker 7] rollmill.worker 7: first line" in bodies
    assert "INFO    [worker 7] rollmill.worker 7: second line" in bodies
    assert "WARNING [worker 7] somebody.else: a warning of theirs" in bodies
    assert any("python's own warning" in body for body in bodies)
    assert "chatter" not in text
    assert "too fine" not in text
    out, err = capfd.readouterr()
    assert out == "printed by a simulator\nprinted by its engine\n"
    assert err == ""


def test_a_traceback_carries_the_head_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    with run_log(path, "main") as log:
        try:
            raise KeyError("lost")
        except KeyError:
            log.exception("it broke")
    lines = path.read_text().splitlines()
    assert len(lines) >= 5
    assert all(re.match(HEAD + r"ERROR   \[main\] rollmill: ", line) for line in lines)
    assert lines[-1].endswith("KeyError: 'lost'")


def test_a_full_disk_loses_lines_and_says_nothing_of_each(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with run_log(path) as log:
        log.info("before")
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
        try:
            log.info("lost")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "before" in path.read_text()
    assert "Logging error" not in capfd.readouterr().err
