"""Whatever happens to the main process, nothing of the run stays."""

from __future__ import annotations

import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollmill.runtime import sweep
from rollmill.runtime.watchdog import Watchdog

MAIN = """
import sys, time
sys.path.insert(0, {folder!r})
import runtime_targets as targets
from rollmill.runtime.events import Message
from rollmill.runtime.signals import StopSignals
from rollmill.runtime.supervisor import Supervisor

if __name__ == "__main__":
    with StopSignals() as signals, Supervisor() as supervisor:
        print(supervisor.run_id, supervisor._watchdog.pid, flush=True)
        supervisor.start("owner of engines", targets.start_engines, "wait")
        supervisor.start("stubborn", targets.ignore_everything)
        supervisor.start("simulator", targets.share_memory_by_name, "ViZDoomTest" + supervisor.run_id)
        heard = set()
        while len(heard) < 3:
            heard |= {{event.handle for event in supervisor.poll(1) if isinstance(event, Message)}}
        print("up", flush=True)
        while signals.received is None:
            supervisor.poll(0.1)
        supervisor.stop(grace_s=0.2)
    print("ended by", signals.received.name, flush=True)
"""


def _gone(run_id: str, pids: list[int], timeout_s: float = 20) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not sweep.members(run_id) and not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.02)
    return False


@contextmanager
def _main(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A script with a run, in a session of its own; gives it, the run's id and the watchdog's pid."""
    script = tmp_path / "main.py"
    script.write_text(MAIN.format(folder=str(Path(__file__).parent)))
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            run_id, watchdog = process.stdout.readline().split()
            yield process, run_id, int(watchdog)
        finally:
            process.kill()


def _named_memory(run_id: str) -> Path:
    return Path(f"/dev/shm/ViZDoomTest{run_id}")


def _wait_until_up(process: subprocess.Popen[str], run_id: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    # Three workers and those engines that kept their environment.
    assert len(sweep.members(run_id)) >= 6
    assert _named_memory(run_id).exists()


@pytest.mark.parametrize("kill", [os.kill, pytest.param(os.killpg, marks=pytest.mark.slow)])
def test_sigkill_of_the_main_process(tmp_path: Path, kill: Callable[[int, int], None]) -> None:
    with _main(tmp_path) as (process, run_id, watchdog):
        _wait_until_up(process, run_id)
        kill(process.pid, signal.SIGKILL)
        process.wait()
        assert _gone(run_id, [watchdog])
    assert not _named_memory(run_id).exists()


def _resource_tracker_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(c) for c in children if b"resource_tracker" in Path(f"/proc/{c}/cmdline").read_bytes())


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_helpers_that_are_stopped_do_not_stay_behind(tmp_path: Path, number: signal.Signals) -> None:
    with _main(tmp_path) as (process, run_id, watchdog):
        _wait_until_up(process, run_id)
        tracker = _resource_tracker_of(process.pid)
        if number == signal.SIGKILL:  # The watchdog alone is there to see to the tracker.
            os.kill(process.pid, signal.SIGSTOP)
            os.kill(tracker, signal.SIGSTOP)
        else:
            os.kill(watchdog, signal.SIGSTOP)
            os.kill(tracker, signal.SIGSTOP)
        os.kill(process.pid, number)
        process.communicate(timeout=60)
        assert _gone(run_id, [watchdog, tracker])


def test_sigkill_of_the_main_process_while_it_starts_others(tmp_path: Path) -> None:
    with _main(tmp_path) as (process, run_id, watchdog):
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert _gone(run_id, [watchdog])


def test_sigkill_of_the_watchdog_and_then_a_signal_to_the_main_process(tmp_path: Path) -> None:
    with _main(tmp_path) as (process, run_id, watchdog):
        _wait_until_up(process, run_id)
        os.kill(watchdog, signal.SIGKILL)
        os.kill(process.pid, signal.SIGTERM)
        assert process.communicate(timeout=60)[0] == "ended by SIGTERM\n"
        assert process.returncode == 0
        assert _gone(run_id, [watchdog])
    assert not _named_memory(run_id).exists()


def test_ctrl_c_ends_cleanly_and_quietly(tmp_path: Path) -> None:
    with _main(tmp_path) as (process, run_id, watchdog):
        _wait_until_up(process, run_id)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        out, err = process.communicate(timeout=60)
        assert out == "ended by SIGINT\n"
        assert "Traceback" not in err
        assert process.returncode == 0
        assert _gone(run_id, [watchdog])


def test_a_script_without_the_main_guard_raises(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import runtime_targets as targets\n"
        "from rollmill.runtime.supervisor import Supervisor\n"
        "with Supervisor() as supervisor:\n"
        "    supervisor.start('worker', targets.wait_for_stop)\n"
        "    while not (events := supervisor.poll(1)): pass\n"
        "    raise events[0].error()\n"
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert re.search(r"ProcessFailed: worker \(pid \d+\) exited with code 1 before its target began", result.stderr)


def test_tokens_are_distinguished_and_found_among_others() -> None:
    with _sleeper("outer:inner:inner.3") as nested, _sleeper("inner.31") as other:
        assert sweep.members("inner") == [nested.pid]
        assert sweep.members("outer") == [nested.pid]
        assert sweep.members("inner.3") == [nested.pid]
        assert sweep.members("inn") == []
        assert sweep.members("nobody", [nested.pid, other.pid]) == sorted([nested.pid, other.pid])
        assert sweep.kill_all("inner") == []
        assert nested.wait() == -signal.SIGKILL
        assert other.poll() is None


def test_a_killed_process_is_waited_for_although_it_has_lost_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with _sleeper("none") as sleeper:
        answers, kill = [[sleeper.pid]], os.kill
        monkeypatch.setattr(sweep, "members", lambda token, groups: answers.pop() if answers else [])
        monkeypatch.setattr(os, "kill", lambda *killed: threading.Timer(0.3, kill, killed).start())
        assert sweep.kill_all("none") == []
        monkeypatch.undo()
        assert Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_only_new_memory_that_no_process_holds_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Names of this test alone, or a run that ends at the same time removes them, too.
    simulator = f"OfATest{os.getpid()}"
    monkeypatch.setattr(sweep, "LEFTOVERS", (simulator,))
    began = time.time() - 1
    names = (f"{simulator}Used", f"{simulator}Opened", f"data-{os.getpid()}", f"{simulator}Left")
    in_use, opened, other, left = (Path(f"/dev/shm/{name}") for name in names)
    try:
        for path in (in_use, opened, other, left):
            path.write_bytes(bytes(4096))
        with in_use.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 4096)
        with memory, opened.open():
            assert left.name not in sweep.remove_leftovers(time.time() + 60)
            assert left.name in sweep.remove_leftovers(began)
        assert all(path.exists() for path in (in_use, opened, other))
        assert not left.exists()
    finally:
        for path in (in_use, opened, other, left):
            path.unlink(missing_ok=True)


def test_only_new_folders_that_no_process_works_in_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")  # which processes that work there do not know
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path := tmp_path / "link"))
    began = time.time() - 1
    in_use, left, other = (tmp_path / name for name in (f"{sweep.FOLDERS}a", f"{sweep.FOLDERS}b", "another"))
    for folder in (in_use, left, other):
        (folder / "_vizdoom").mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"], cwd=in_use) as sleeper:
        try:
            assert left.name not in sweep.remove_leftovers(time.time() + 60)
            removed = sweep.remove_leftovers(began)
        finally:
            sleeper.kill()
    assert left.name in removed
    assert [path.exists() for path in (in_use, left, other)] == [True, False, True]


def test_the_watchdog_kills_registered_groups_unless_they_were_unregistered() -> None:
    with _sleeper("none") as kept, _sleeper("none") as given_up:
        watchdog = Watchdog("a-token-without-processes")
        watchdog.add_group(kept.pid)
        watchdog.add_group(given_up.pid)
        watchdog.remove_group(kept.pid)
        assert watchdog.exit_code is None
        watchdog.close()
        assert given_up.wait() == -signal.SIGKILL
        assert kept.poll() is None


def test_the_watchdog_heeds_no_polite_signal_and_is_small() -> None:
    watchdog = Watchdog("a-token-without-processes")
    status = Path(f"/proc/{watchdog.pid}/status")
    polite = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    while not all(_ignored(watchdog.pid) >> (number - 1) & 1 for number in polite):
        assert watchdog.exit_code is None
        time.sleep(0.005)
    for number in polite:
        os.kill(watchdog.pid, number)
    time.sleep(0.05)
    assert watchdog.exit_code is None
    memory = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
    assert memory is not None
    assert int(memory[1]) < 20_000
    watchdog.close()
    assert watchdog.exit_code == 0


def test_a_watchdog_that_does_not_end_is_ended() -> None:
    watchdog = Watchdog("a-token-without-processes")
    os.kill(watchdog.pid, signal.SIGSTOP)
    watchdog.close(timeout_s=0.2)
    assert watchdog.exit_code == -signal.SIGKILL


def _ignored(pid: int) -> int:
    found = re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1], 16)


@contextmanager
def _sleeper(tokens: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        ["sleep", "600"], env={sweep.VARIABLE: tokens, "PATH": os.environ["PATH"]}, process_group=0
    ) as p:
        try:
            yield p
        finally:
            p.kill()
