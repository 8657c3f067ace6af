"""Starting, watching and ending processes, tried on real ones."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import runtime_targets as targets

from rollmill.runtime import cgroups, sweep
from rollmill.runtime.events import (
    Event,
    Exited,
    Failed,
    Handle,
    Hung,
    Message,
    ProcessFailed,
    ProcessHung,
    describe_death,
)
from rollmill.runtime.supervisor import Supervisor


def _until(supervisor: Supervisor, *kinds: type[Event], timeout_s: float = 30) -> list[Event]:
    """Polls until there is an event of each of the kinds."""
    deadline = time.monotonic() + timeout_s
    events: list[Event] = []
    while not all(any(isinstance(event, kind) for event in events) for kind in kinds):
        assert time.monotonic() < deadline, f"only {events} came"
        events += supervisor.poll(1)
    return events


def _failure(supervisor: Supervisor) -> Failed:
    return next(event for event in _until(supervisor, Failed) if isinstance(event, Failed))


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def test_messages_come_in_order_and_before_the_end(supervisor: Supervisor) -> None:
    handle = supervisor.start("sender", targets.send_and_return, 1, "two", b"x" * 300_000)
    assert supervisor.handles == [handle]
    events = _until(supervisor, Exited)
    assert events == [Message(handle, 1), Message(handle, "two"), Message(handle, b"x" * 300_000), Exited(handle)]
    assert supervisor.handles == []
    assert supervisor.poll(0) == []


def test_a_child_finds_itself_as_ordered(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    monkeypatch.setenv(sweep.VARIABLE, "outer")
    cpu = min(os.sched_getaffinity(0))
    plain = supervisor.start("plain", targets.report_circumstances)
    special = supervisor.start(
        "special", targets.report_circumstances, env={"OMP_NUM_THREADS": "3", "EXTRA": "yes"}, cpus=[cpu], nice=4
    )
    found: dict[Handle, dict[str, object]] = {}
    while len(found) < 2:
        for event in supervisor.poll(30):
            if isinstance(event, Message):
                assert isinstance(event.content, dict)
                found[event.handle] = event.content
    for handle, report in found.items():
        assert report["pid"] == report["group"] == handle.pid
        # Niceness counts only among processes of one session.
        assert report["session"] == os.getsid(0)
        assert report["sigint"] == signal.SIG_IGN
        assert report["blocked"] == []
        assert report["preloaded"] is True
        assert report["run"] == f"outer:{supervisor.run_id}:{supervisor.run_id}.{handle.number}"
    assert found[plain]["threads"] == "1"
    assert found[plain]["cpus"] == sorted(os.sched_getaffinity(0))
    assert found[special]["threads"] == "3"
    assert found[special]["extra"] == "yes"
    assert found[special]["cpus"] == [cpu]
    assert found[special]["nice"] == os.nice(0) + 4
    assert os.environ["OMP_NUM_THREADS"] == "16"
    assert os.environ[sweep.VARIABLE] == "outer"
    assert "EXTRA" not in os.environ
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_ctrl_c_in_the_terminal_reaches_no_child_at_any_moment(
    supervisor: Supervisor, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        # Sent while the children start up: some are still in this process's group, and must have it blocked.
        handles = [supervisor.start(f"child {i}", targets.wait_for_stop) for i in range(3)]
        ready: set[Handle] = set()
        while len(ready) < 3:
            for handle in handles:
                os.kill(handle.pid, signal.SIGINT)
            ready |= {event.handle for event in supervisor.poll(0.01) if isinstance(event, Message)}
    finally:
        signal.signal(signal.SIGINT, before)
    assert {type(event) for event in supervisor.stop()} == {Exited}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("target", [targets.raise_error, targets.raise_in_thread, targets.raise_beside_a_stuck_thread])
def test_an_exception_comes_with_its_traceback(supervisor: Supervisor, target: object) -> None:
    assert callable(target)
    handle = supervisor.start("mill 3", target)
    failed = _failure(supervisor)
    assert failed.handle == handle
    what, *notes = failed.description.splitlines()
    assert what == f"mill 3 (pid {handle.pid}) failed: ValueError: the third wheel is loose"
    in_thread = "It was raised in the thread 'wheels'; a thread that an environment starts must catch its exceptions."
    assert notes == ([in_thread] if target is targets.raise_in_thread else [])
    assert "in raise_error" in failed.traceback
    with pytest.raises(ProcessFailed, match="the third wheel is loose") as caught:
        raise failed.error()
    assert str(caught.value).splitlines()[-1 - len(notes)].endswith("ValueError: the third wheel is loose")
    assert 'raise ValueError("the third wheel is loose")' in str(caught.value)


def test_an_argument_that_cannot_be_loaded_is_reported_like_any_failure(supervisor: Supervisor) -> None:
    supervisor.start("mill", targets.send_and_return, targets.FailsToLoad())
    failed = _failure(supervisor)
    assert failed.description.endswith("ImportError: no such simulator here")
    assert "_explode" in failed.traceback


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        (signal.SIGTERM, r"was killed by SIGTERM\."),
    ],
)
def test_a_killed_process_is_named_with_its_signal(supervisor: Supervisor, number: int, words: str) -> None:
    handle = supervisor.start("rollout worker 3", targets.kill_itself, int(number))
    failed = _failure(supervisor)
    assert failed.description.startswith(f"rollout worker 3 (pid {handle.pid}) was killed by")
    assert failed.killed_by == number
    with pytest.raises(ProcessFailed, match=words):
        raise failed.error()


def test_a_segfault_shows_where_it_happened(supervisor: Supervisor) -> None:
    supervisor.start("rollout worker 0", targets.read_address_zero)
    failed = _failure(supervisor)
    assert "was killed by SIGSEGV: a crash in native code" in failed.description
    assert "Segmentation fault" in failed.traceback
    assert "in read_address_zero" in failed.traceback


@pytest.mark.parametrize("code", [0, 3])
def test_a_target_that_calls_sys_exit_is_shown_where_it_does(supervisor: Supervisor, code: int) -> None:
    supervisor.start("quitter", targets.exit_with, code)
    failed = _failure(supervisor)
    assert failed.description.endswith(f"failed: SystemExit: {code}")
    assert "in exit_with" in failed.traceback


def test_exit_codes(supervisor: Supervisor) -> None:
    fine = supervisor.start("fine", targets.exit_at_once_with, 0)
    assert _until(supervisor, Exited) == [Exited(fine)]
    supervisor.start("odd", targets.exit_at_once_with, 3)
    assert "exited with code 3 without an exception" in _failure(supervisor).description


def test_deaths_in_words() -> None:
    who = Handle("learner", 12, 0)
    too_early = describe_death(who, 1, started=False, oom_kills_before=0)
    assert "before its target began" in too_early
    assert '__name__ == "__main__"' in too_early
    # A group in which the killer has struck since: any count is more than -1.
    struck = describe_death(who, -9, started=True, oom_kills_before=cgroups.oom_kills() - 1)
    assert "out-of-memory killer has struck" in struck
    assert "shared memory" in describe_death(who, -signal.SIGBUS, started=True, oom_kills_before=0)
    assert describe_death(who, -60, started=True, oom_kills_before=0) == "learner (pid 12) was killed by signal 60."


def test_a_dead_workers_engines_end_before_its_death_is_reported(supervisor: Supervisor) -> None:
    handle = supervisor.start("worker", targets.start_engines, "wait")
    other = supervisor.start("other", targets.start_engines, "wait")
    engines: dict[Handle, list[int]] = {}
    while len(engines) < 2 or not all(len(e) for e in engines.values()):
        for event in supervisor.poll(30):
            if isinstance(event, Message) and isinstance(event.content, list):
                engines[event.handle] = event.content
    assert all(_alive(pid) for pids in engines.values() for pid in pids)
    # An engine that held the worker's pipes or the shared memory would keep them from ending with the worker.
    assert set(os.listdir(f"/proc/{engines[other][0]}/fd")) == {"0", "1", "2"}
    os.kill(handle.pid, signal.SIGKILL)
    assert _failure(supervisor).handle == handle
    assert not any(_alive(pid) for pid in engines[handle])
    assert all(_alive(pid) for pid in engines[other])
    supervisor.kill(other)
    assert not any(_alive(pid) for pid in engines[other])
    assert Exited(other) in _until(supervisor, Exited)


def test_engines_of_a_worker_that_returned_end_too(supervisor: Supervisor) -> None:
    supervisor.start("worker", targets.start_engines, "return")
    events = _until(supervisor, Exited)
    assert isinstance(events[0], Message)
    assert isinstance(events[0].content, list)
    assert not any(_alive(pid) for pid in events[0].content)


def test_a_fork_that_holds_the_pipes_does_not_hide_a_death(supervisor: Supervisor) -> None:
    handle = supervisor.start("forker", targets.fork_and_die)
    events = _until(supervisor, Failed)
    assert isinstance(events[0], Message)
    assert events[1].handle == handle
    assert isinstance(events[0].content, int)
    assert not _alive(events[0].content)


def test_stop_asks_then_forces(supervisor: Supervisor) -> None:
    good = [supervisor.start(f"good {i}", targets.wait_for_stop) for i in range(2)]
    stubborn = supervisor.start("stubborn", targets.ignore_everything)
    stuck = supervisor.start("stuck", targets.get_stuck, role=targets.WORKER)
    ready: set[Handle] = set()
    while len(ready) < 4:
        ready |= {event.handle for event in supervisor.poll(30) if isinstance(event, Message)}
    events = supervisor.stop(grace_s=0.3)
    assert sorted(events) == sorted(Exited(handle) for handle in (*good, stubborn, stuck))
    assert not any(_alive(handle.pid) for handle in (*good, stubborn, stuck))
    assert supervisor.stop() == []


@pytest.mark.slow
def test_leaving_the_block_ends_everything_whatever_the_reason() -> None:
    pids: list[int] = []

    def run_into(error: type[BaseException]) -> None:
        with Supervisor() as supervisor:
            run_ids.append(supervisor.run_id)
            supervisor.start("worker", targets.ignore_everything)
            pids.extend(handle.pid for handle in supervisor.handles)
            _until(supervisor, Message)
            supervisor.start("coming up", targets.wait_for_stop)
            pids.append(supervisor.handles[-1].pid)
            raise error

    run_ids: list[str] = []
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error):
            run_into(error)
        assert sweep.members(run_ids[-1]) == []
    assert not any(_alive(pid) for pid in pids)
    assert multiprocessing.active_children() == []


def test_a_run_leaves_no_descriptors_and_no_shared_memory_behind() -> None:
    def use() -> None:
        with Supervisor() as supervisor:
            supervisor.start("sender", targets.send_and_return, 1)
            supervisor.start("failing", targets.raise_error)
            _until(supervisor, Failed, Exited)

    use()  # multiprocessing's own helper starts with the first.
    named = {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line}
    gc.collect()  # Garbage of other tests must not be collected in the middle of this one.
    descriptors = len(os.listdir("/proc/self/fd"))
    use()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line} == named


def test_a_hung_process_is_found_and_shows_where_it_is_stuck(supervisor: Supervisor) -> None:
    handle = supervisor.start("rollout worker 1", targets.get_stuck, role=targets.WORKER)
    waiting = supervisor.start("patient", targets.wait_for_stop, role=targets.WORKER)
    hung: list[Hung] = []
    while not hung:
        time.sleep(0.02)
        hung = supervisor.check_hung({"work": 0.1, "wait": 0.0})
    assert [(h.handle, h.phase, h.limit) for h in hung] == [(handle, "work", 0.1)]
    assert hung[0].seconds > 0.1
    stacks = supervisor.stacks(handle)
    assert "in get_stuck" in stacks
    assert supervisor.stacks(handle).count("most recent call first") == stacks.count("most recent call first")
    with pytest.raises(ProcessHung, match=r"rollout worker 1 .* hangs: .* in phase 'work' .*\n\n(.|\n)*in get_stuck"):
        raise hung[0].error(stacks)
    # Looking at the stacks has swallowed no message.
    messages = _until(supervisor, Message)
    while len(messages) < 2:
        messages += supervisor.poll(30)
    assert set(messages) == {Message(handle, "before"), Message(waiting, "ready")}
    supervisor.kill(handle)
    assert _until(supervisor, Exited) == [Exited(handle)]
    with pytest.raises(KeyError, match="has ended"):
        supervisor.stacks(handle)
    assert supervisor.check_hung({"work": 0.0}) == []


def test_a_process_that_is_not_up_yet_is_not_asked_for_its_stacks(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = supervisor.start("worker", targets.wait_for_stop)
    with monkeypatch.context() as patches:
        patches.setattr(Supervisor, "_receive", lambda *_: None)  # As if it had not said so yet.
        patches.setattr(os, "kill", lambda *_: pytest.fail("the signal could kill it"))
        assert supervisor.stacks(handle) == ""
    assert _until(supervisor, Message) == [Message(handle, "ready")]


def test_a_run_that_was_held_still_as_a_whole_has_all_its_time_again(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.start("rollout worker 1", targets.get_stuck, role=targets.WORKER)
    while not supervisor.check_hung({"work": 0.1}):
        time.sleep(0.02)
    clock, paused_s = time.monotonic, 3600.0
    monkeypatch.setattr(time, "monotonic", lambda: clock() + paused_s)
    assert supervisor.check_hung({"work": 0.3}) == []
    time.sleep(0.5)
    assert [round(hung.seconds, 1) < 1.0 for hung in supervisor.check_hung({"work": 0.3})] == [True]


def test_a_process_that_does_not_come_up_is_in_phase_start(supervisor: Supervisor) -> None:
    handle = supervisor.start("slow", targets.wait_for_stop, role=targets.WORKER)
    _until(supervisor, Message)
    assert [(h.handle, h.phase) for h in supervisor.check_hung({"start": 0.0})] == [(handle, "start")]
    assert supervisor.check_hung({"start": 600.0}) == []


def test_a_process_that_waits_shows_signs_of_life_until_it_is_stopped(supervisor: Supervisor) -> None:
    handle = supervisor.start("waiter", targets.wait_with_signs_of_life, role=targets.WORKER)
    _until(supervisor, Message)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        time.sleep(0.05)
        assert supervisor.check_hung({"wait": 5.0}, {"worker": 0.0}) == []
    os.kill(handle.pid, signal.SIGSTOP)
    silent: list[Hung] = []
    while not silent:
        time.sleep(0.05)
        silent = supervisor.check_hung({"wait": 0.8})
    assert (silent[0].handle, silent[0].is_waiting) == (handle, True)
    assert "no sign of life" in str(silent[0]._replace(is_stopped=False).error())
    stopped: list[Hung] = []
    while not stopped:
        time.sleep(0.05)
        stopped = supervisor.check_hung({}, {"worker": 0.2})
    assert (stopped[0].handle, stopped[0].role, stopped[0].is_stopped) == (handle, "worker", True)
    assert "it has been stopped in phase 'wait'" in str(stopped[0].error())
    assert supervisor.stopped() == [handle]
    os.kill(handle.pid, signal.SIGCONT)
    while supervisor.check_hung({"wait": 0.8}, {"worker": 0.2}):
        time.sleep(0.05)


def test_a_dead_watchdog_is_noticed_once(supervisor: Supervisor) -> None:
    handle = supervisor.start("worker", targets.wait_for_stop)
    _until(supervisor, Message)
    assert supervisor._watchdog is not None
    os.kill(supervisor._watchdog.pid, signal.SIGKILL)
    failed = _failure(supervisor)
    assert failed.description.startswith("watchdog (pid ")
    assert "SIGKILL" in failed.description
    assert supervisor.poll(0.1) == []
    assert supervisor.handles == [handle]
    supervisor.start("still possible", targets.send_and_return)


def test_a_child_started_by_a_thread_outlives_the_thread(supervisor: Supervisor) -> None:
    thread = threading.Thread(target=supervisor.start, args=("worker", targets.wait_for_stop))
    thread.start()
    thread.join()
    _until(supervisor, Message)
    assert supervisor.poll(0.3) == []
    assert len(supervisor.handles) == 1


def test_a_process_that_dies_while_it_is_sent_its_work_is_a_failure(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("rollmill.runtime.supervisor.start_process", dies)
    with pytest.raises(ProcessFailed, match="worker ended while it was being started"):
        supervisor.start("worker", targets.wait_for_stop)
    assert supervisor.handles == []


def test_wrong_uses_are_refused(supervisor: Supervisor) -> None:
    with pytest.raises(RuntimeError, match="outside of the supervisor's `with` block"):
        Supervisor().start("worker", targets.wait_for_stop)
    supervisor.start("worker", targets.wait_for_stop)
    with pytest.raises(ValueError, match="There is a process 'worker' already"):
        supervisor.start("worker", targets.wait_for_stop)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TypeError, match="cannot be sent to a process"):
        supervisor.start("local", lambda context: None)
    with pytest.raises(TypeError, match="Process 'lock' cannot be started"):
        supervisor.start("lock", targets.send_and_return, threading.Lock())
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(supervisor.handles) == 1
