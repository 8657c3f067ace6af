"""What a process that the fork server forks has of the process that starts it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import runtime_targets as targets
from tests.runtime.reporting_process import first_report

from rollmill.runtime import sweep
from rollmill.runtime.fork_server import fork_server_pid
from rollmill.runtime.supervisor import Supervisor


def test_a_process_has_the_surroundings_of_the_moment_in_which_it_is_started(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SET_AFTER_THE_SERVER", "yes")
    monkeypatch.setenv("NOT_UTF_8", b"\xff".decode(errors="surrogateescape"))
    monkeypatch.delenv("PATH_OF_NOBODY", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    fewer = (files[0] - 1, files[1])
    umask = os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, fewer)
    try:
        report = first_report(supervisor, targets.report_surroundings, env={"EXTRA": "a=b"})
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    assert isinstance(report, dict)
    changed = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "EXTRA"}
    changed |= {"TORCHINDUCTOR_COMPILE_THREADS"}
    found = report["environment"]
    assert {name: found[name] for name in changed} == dict.fromkeys(changed, "1") | {"EXTRA": "a=b"}
    token = found[sweep.VARIABLE]
    ours = {name: value for name, value in os.environ.items() if name not in changed | {sweep.VARIABLE}}
    assert {name: value for name, value in found.items() if name not in changed | {sweep.VARIABLE}} == ours
    # What it starts has the same, and what the kernel shows of it has the same tokens.
    assert f"{sweep.VARIABLE}={token}\0" in report["of its child"]
    assert "SET_AFTER_THE_SERVER=yes\0" in report["of its child"]
    assert f"{sweep.VARIABLE}={token}:".encode() in report["shown"]
    assert supervisor.run_id in token
    assert report["directory"] == str(tmp_path)
    assert report["path"][0] == str(tmp_path)
    assert report["umask"] == 0o027
    assert report["files"] == fewer
    assert report["parent"] == fork_server_pid()
    assert capfd.readouterr() == ("printed by the child\n", "printed by its child\n")


def test_the_output_of_a_process_goes_where_that_of_the_program_goes(supervisor: Supervisor, tmp_path: Path) -> None:
    before = os.dup(1)
    try:
        for name in ("first", "second"):
            with (tmp_path / name).open("w") as file:
                os.dup2(file.fileno(), 1)
                first_report(supervisor, targets.report_surroundings)
    finally:
        os.dup2(before, 1)
        os.close(before)
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text() == "printed by the child\n"


def test_processes_draw_different_random_numbers(supervisor: Supervisor) -> None:
    first, second = (first_report(supervisor, targets.report_random_numbers) for _ in range(2))
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert all(one != other for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_threads_of_a_process_are_as_its_environment_says(supervisor: Supervisor, threads: int) -> None:
    report = first_report(supervisor, targets.report_threads, env={"OMP_NUM_THREADS": str(threads)})
    assert isinstance(report, tuple)
    assert report[0] == threads
    assert (report[1] > 1) == (threads > 1)
