"""What a process that the fork server forks has of the process that starts it, and what becomes of the server."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import runtime_targets as targets
from tests.runtime.reporting_process import first_report

from rollmill.runtime import sweep
from rollmill.runtime.events import (
    Event,
    Exited,
    Failed,
    Handle,
    Message,
    ProcessFailed,
    describe_end_of_fork_server,
    has_fork_server_died,
)
from rollmill.runtime.fork_server import ensure_fork_server, fork_server_exit_code, fork_server_pid, show_tokens
from rollmill.runtime.supervisor import Supervisor


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _wait(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_up(server: int) -> bool:
    """Whether it has imported everything: it ignores SIGINT from then on."""
    line = next(line for line in Path(f"/proc/{server}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1)


def test_the_compiler_of_a_process_starts_no_others(supervisor: Supervisor) -> None:
    assert first_report(supervisor, targets.report_compile_threads) == 1


def test_the_cpu_time_of_a_process_is_its_own(supervisor: Supervisor) -> None:
    seconds = first_report(supervisor, targets.report_cpu_time)
    assert isinstance(seconds, float)
    assert seconds < 0.5  # Of the two seconds that its imports would take.
    assert supervisor.snapshot()["reporter"].cpu_seconds < 0.5


def test_the_server_has_one_thread_and_the_tokens_of_no_run(supervisor: Supervisor) -> None:
    first_report(supervisor, targets.report_cpu_time)
    server = fork_server_pid()
    assert server is not None
    assert os.listdir(f"/proc/{server}/task") == [str(server)]
    assert supervisor.run_id.encode() not in Path(f"/proc/{server}/environ").read_bytes()
    assert "nvidia" not in Path(f"/proc/{server}/maps").read_text()


def test_the_server_is_not_in_the_file_system(supervisor: Supervisor) -> None:
    first_report(supervisor, targets.report_cpu_time)
    lines = Path("/proc/net/unix").read_text().splitlines()
    listening = [line.split()[7] for line in lines if "listener-" in line]
    assert all(not os.path.exists(path) for path in listening)


def test_a_program_of_another_kind_has_a_server_of_its_own() -> None:
    import multiprocessing
    from multiprocessing import forkserver

    ensure_fork_server()
    process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    assert process.exitcode == 0
    server = forkserver._forkserver
    assert server._forkserver_pid not in (None, fork_server_pid())  # type: ignore[attr-defined]
    server._stop()  # type: ignore[attr-defined]


def test_ctrl_c_does_not_end_the_server() -> None:
    server = ensure_fork_server()
    assert os.getpgid(server) == server or not _is_up(server)
    _wait(lambda: _is_up(server))
    assert os.getpgid(server) == server
    os.kill(server, signal.SIGINT)
    with Supervisor() as supervisor:
        first_report(supervisor, targets.report_cpu_time)
    assert fork_server_pid() == server


def test_a_stopped_server_is_continued_before_a_start_and_while_polling(supervisor: Supervisor) -> None:
    server = ensure_fork_server()
    _wait(lambda: _is_up(server))
    os.kill(server, signal.SIGSTOP)
    _wait(lambda: _state(server) == "T")
    first_report(supervisor, targets.report_cpu_time)
    os.kill(server, signal.SIGSTOP)
    _wait(lambda: _state(server) == "T")
    deadline = time.monotonic() + 30
    while _state(server) == "T":
        assert time.monotonic() < deadline
        supervisor.poll(0.1)


def test_the_end_of_the_server_ends_a_run_with_an_error_and_the_next_has_another(supervisor: Supervisor) -> None:
    worker = supervisor.start("rollout worker 0", targets.wait_for_stop)
    while not supervisor.poll(30):
        pass
    server = fork_server_pid()
    assert server is not None
    os.kill(server, signal.SIGKILL)
    events: list[Event] = []
    while not events:
        events = supervisor.poll(30)
    failed = events[0]
    assert isinstance(failed, Failed)
    assert failed.handle == worker
    assert failed.description.startswith(
        f"rollout worker 0 (pid {worker.pid}) ended with the process that it was forked from: "
        f"the fork server (pid {server}) was killed by SIGKILL"
    )
    assert not Path(f"/proc/{worker.pid}").exists() or _state(worker.pid) == "Z"
    with Supervisor() as following:
        first_report(following, targets.report_cpu_time)
        assert fork_server_pid() not in (None, server)
    assert fork_server_exit_code(server) == -signal.SIGKILL


def test_the_end_of_the_server_during_a_start_is_named(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollmill.runtime import spawning

    server, real = ensure_fork_server(), spawning.connect_to_new_process

    def kill_first(descriptors: list[int]) -> tuple[int, int]:
        os.kill(server, signal.SIGSTOP)
        ends = real(descriptors)
        os.kill(server, signal.SIGKILL)
        return ends

    monkeypatch.setattr(spawning, "connect_to_new_process", kill_first)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessFailed, match=rf"fork server \(pid {server}\) was killed by SIGKILL"):
        supervisor.start("worker", targets.wait_for_stop)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.slow
def test_exit_code_255_is_the_servers_end_only_if_it_has_ended(supervisor: Supervisor) -> None:
    assert has_fork_server_died(255, -9)
    assert not has_fork_server_died(255, None)
    assert not has_fork_server_died(-9, -9)
    supervisor.start("odd", targets.exit_at_once_with, 255)
    events: list[Event] = []
    while not events:
        events = supervisor.poll(30)
    assert isinstance(events[0], Failed)
    assert "exited with code 255 without an exception" in events[0].description
    text = describe_end_of_fork_server(Handle("learner", 2, 0), 1, 255, oom_kills_before=0)
    assert "the fork server (pid 1) exited with code 255" in text


@pytest.mark.slow
def test_a_server_that_was_waited_for_by_someone_else_is_replaced() -> None:
    server = ensure_fork_server()
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    with Supervisor() as supervisor:
        first_report(supervisor, targets.report_cpu_time)
    assert fork_server_pid() not in (None, server)
    assert fork_server_exit_code(server) == 255


def test_a_start_that_is_interrupted_leaves_no_process(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from rollmill.runtime import spawning

    real, pids = spawning.read_signed, []

    def interrupt(descriptor: int) -> int:
        pids.append(real(descriptor))
        raise KeyboardInterrupt

    monkeypatch.setattr(spawning, "read_signed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        supervisor.start("worker", targets.wait_for_stop)
    _wait(lambda: not Path(f"/proc/{pids[0]}").exists())
    assert supervisor.handles == []
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_variable_that_libraries_read_while_they_load_makes_another_server(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = supervisor.start("worker", targets.wait_for_stop)
    while not supervisor.poll(30):
        pass
    first = fork_server_pid()
    assert first is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert ensure_fork_server() == first
    monkeypatch.setenv("TORCH_SHOW_CPP_STACKTRACES", "1")
    report = first_report(supervisor, targets.report_surroundings)
    assert isinstance(report, dict)
    assert report["parent"] == fork_server_pid() != first
    # The first one serves its process until that ends.
    assert supervisor.handles == [handle]
    assert supervisor.stop() == [Exited(handle)]
    _wait(lambda: ensure_fork_server() > 0 and not Path(f"/proc/{first}").exists())
    assert fork_server_exit_code(first) == 0


def test_a_forked_program_starts_a_server_of_its_own() -> None:
    server = ensure_fork_server()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if fork_server_pid() is None and ensure_fork_server() != server else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert fork_server_exit_code(server) is None


@pytest.mark.slow
def test_a_run_within_a_process_of_another_run_is_found_by_the_outer_one(supervisor: Supervisor) -> None:
    handle = supervisor.start("outer", targets.report_nested)
    events: list[Event] = []
    while not events:
        events = supervisor.poll(60)
    assert isinstance(events[0], Message), events
    server, message = events[0].content  # type: ignore[misc]
    assert server != fork_server_pid()
    assert message.content["run"].startswith(f"{supervisor.run_id}:{supervisor.run_id}.{handle.number}:")
    # The inner server is the outer run's.
    assert server in sweep.members(supervisor.run_id)
    os.kill(handle.pid, signal.SIGKILL)
    while not any(isinstance(event, Failed) for event in supervisor.poll(30)):
        pass
    _wait(lambda: not Path(f"/proc/{server}").exists() or _state(server) == "Z")


def test_tokens_without_room_are_refused(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"{sweep.VARIABLE} (is not among|has)"):
        show_tokens("x" * 5000)


PROGRAM = """
import os, sys, threading, time
sys.path.insert(0, {folder!r})
import runtime_targets as targets
from rollmill.runtime.supervisor import Supervisor
from rollmill.runtime.fork_server import fork_server_pid

def run():
    with Supervisor() as supervisor:
        supervisor.start("worker", targets.wait_for_stop)
        while not supervisor.poll(1): pass
        print(supervisor.run_id, fork_server_pid(), flush=True)
        {then}

if __name__ == "__main__":
    {how}
    print("done", flush=True)
"""
IN_THREAD = "thread = threading.Thread(target=run); thread.start(); thread.join()"


def _program(tmp_path: Path, how: str, then: str) -> subprocess.Popen[str]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(folder=str(Path(__file__).parent), how=how, then=then))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)


def _gone(pid: int) -> bool:
    try:
        return _state(pid) == "Z"  # It has ended, and its parent has not read its exit code yet.
    except FileNotFoundError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "is_stopped"),
    [
        pytest.param("run()", True, id="main thread, stopped"),
        pytest.param(IN_THREAD, False, id="another thread"),
        pytest.param("run()", False, id="main thread"),
        pytest.param(IN_THREAD, True, id="another thread, stopped"),
    ],
)
def test_nothing_is_left_when_the_program_is_killed(tmp_path: Path, how: str, is_stopped: bool) -> None:
    with _program(tmp_path, how, "time.sleep(600)") as program:
        assert program.stdout is not None
        run_id, server = program.stdout.readline().split()
        if is_stopped:
            os.kill(int(server), signal.SIGSTOP)
        program.kill()
        _wait(lambda: _gone(int(server)) and not sweep.members(run_id))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(("rollmill", "pymp"))]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["run()", IN_THREAD], ids=["main thread", "another thread"])
def test_the_server_ends_with_the_program_and_outlives_its_runs(tmp_path: Path, how: str) -> None:
    then = "run.__globals__['runs'] = globals().get('runs', 0) + 1"
    with _program(tmp_path, f"{how}; {how}", then) as program:
        first, second = (program.stdout.readline().split() for _ in range(2))  # type: ignore[union-attr]
        assert first[0] != second[0]
        assert first[1] == second[1]
        assert program.stdout.readline() == "done\n"  # type: ignore[union-attr]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert program.wait(30) == 0
    assert _gone(int(first[1]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The server's imports are among what the program has used.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime > 0.5
    assert not [name for name in os.listdir(tmp_path) if name.startswith(("rollmill", "pymp"))]


def test_a_supervisor_of_another_thread_uses_the_same_server() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(ensure_fork_server()))
    thread.start()
    thread.join()
    assert found == [ensure_fork_server()]
