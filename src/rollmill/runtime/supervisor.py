"""Starts, watches and ends the processes of a run.

    with Supervisor(log_path=...) as supervisor:
        supervisor.start("rollout worker 0", target, argument, role=ROLLOUT_ROLE)
        while running:
            for event in supervisor.poll(0.2):
                match event:
                    case Failed():
                        raise event.error()

However the block is left, no process of the run remains: workers are asked to end (the stop flag), then terminated
(SIGTERM), then killed by group, and a sweep finds what their simulators started. If the main process itself is killed,
the kernel kills its workers, and the watchdog everything else.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, current_process
from pathlib import Path
from types import MappingProxyType, TracebackType

from rollmill.runtime import cgroups, sweep
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.channel import Receiver, SentDescriptor
from rollmill.runtime.child import (
    STACK_SIGNAL,
    Launch,
    Started,
    StopFlag,
    Traceback,
    Work,
    run_child,
)
from rollmill.runtime.events import (
    Event,
    Exited,
    Failed,
    Handle,
    Hung,
    Message,
    ProcessFailed,
    describe_death,
    describe_end_of_fork_server,
    describe_failure,
    has_fork_server_died,
)
from rollmill.runtime.fork_server import (
    ensure_fork_server,
    fork_server_exit_code,
    fork_server_pid,
    thread_environment,
)
from rollmill.runtime.ledger import LedgerBoard, LedgerSeat, ProcessAccount, Role
from rollmill.runtime.spawning import ServedProcess, resource_tracker_pid, start_process
from rollmill.runtime.watchdog import Watchdog

# Seconds between two checks for hung processes; the main loop takes a quarter of a second, and a report some more. Time
# beyond the first of these does not count, because other processes may have been stopped with this one. Beyond the
# second one they were, and the time of all processes starts again.
_COUNTED_S = 1.0
_HELD_STILL_S = 5.0
# After this time without a sign of life, a process is checked for having been stopped by a signal.
_SILENT_S = 1.0

log = logging.getLogger("rollmill.supervisor")

NO_ROLE = Role(name="process")
TERMINATE_GRACE_S = 1.0
# A death is usually noticed at once; if a grandchild holds the pipe that reports it, within this time.
LONGEST_WAIT_S = 0.25


@dataclass(kw_only=True)
class _Child:
    """The supervisor's record of a process whose end it has not reported yet."""

    handle: Handle
    process: ServedProcess
    server: int
    receiver: Receiver
    notes: int
    seat: LedgerSeat
    token: str
    started: bool = False
    unwanted: bool = False
    traceback: Traceback | None = None
    last_sign: tuple[str, float] = ("", 0.0)  # The phase that it entered last, and when.
    seen_at: float = 0.0
    stopped_at: float | None = None


class Supervisor:
    """The processes of one run; a context manager. Its methods are called by one thread.

    Attributes:
        stop_flag: The children's ``context.stop``.
        board: The run's ledger; a thread or the main process takes a seat of its own.
        run_id: Names the run in its processes' environments (``ROLLMILL_RUN_ID``).
    """

    def __init__(self, *, log_path: Path | None = None, max_processes: int = 1024) -> None:
        """Nothing is started before the context is entered.

        Args:
            log_path: The run's ``run.log``, for the children's log records; None for none.
            max_processes: Most ledger accounts (processes, restarts counted) that the run may take.
        """
        self.run_id = uuid.uuid4().hex
        self._log_path = log_path
        self._control = Arena.create(ArenaLayout().add(StopFlag.FIELD, 1, "int64", poisoned=False))
        self.stop_flag = StopFlag(self._control)
        self.board = LedgerBoard(max_processes)
        self._children: dict[Handle, _Child] = {}
        self._started = 0
        self._pending: list[Event] = []
        self._watchdog: Watchdog | None = None
        self._watchdog_handle = Handle("watchdog", 0, -1)
        self._watchdog_reported = False
        self._oom_kills = cgroups.oom_kills()
        # Seconds in which this process was awake, as `check_hung` counts them; it compares nothing else.
        self._looked_at, self._awake_s = math.inf, 0.0
        self._helpers_looked_at = 0.0

    def __enter__(self) -> Supervisor:
        ensure_fork_server()
        self._watchdog = Watchdog(self.run_id)
        self._watchdog_handle = Handle("watchdog", self._watchdog.pid, -1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._children:
                self.stop(grace_s=_grace(kind))
        finally:
            self._end_everything()

    @property
    def handles(self) -> list[Handle]:
        """The processes whose end has not been reported, in the order of their start."""
        return list(self._children)

    def start(
        self,
        name: str,
        target: Callable[..., object],
        *args: object,
        role: Role = NO_ROLE,
        env: Mapping[str, str] | None = None,
        cpus: Sequence[int] | None = None,
        nice: int = 0,
    ) -> Handle:
        """Starts a process that runs ``target(context, *args)``, ``context`` being a `ChildContext`.

        The kernel ends the child with the fork server, and that with the main process if the main thread has entered
        the program's first supervisor; otherwise, since the kernel would end it with the thread that did, that is left
        to the watchdog.

        Args:
            name: Unique among the living processes.
            target: A function that the child can import, or one of the user's script.
            args: Picklable; arenas, queues and ledger seats travel by descriptor.
            role: What its ledger accounts for.
            env: Environment variables on top of ours, for example ``{"OMP_NUM_THREADS": "2"}`` (default: "1").
            cpus: The CPUs it may use; None leaves them as they are.
            nice: Added to its niceness.

        Raises:
            RuntimeError: The supervisor is not entered, or has been left.
            ValueError: The name is in use.
            TypeError: The target or an argument cannot be sent to a process.
            ProcessFailed: The fork server, or the process, ended meanwhile.
        """
        if self._watchdog is None:
            raise RuntimeError(f"Process {name!r} cannot be started outside of the supervisor's `with` block.")
        if any(handle.name == name for handle in self._children):
            raise ValueError(f"There is a process {name!r} already; give this one another name.")
        token = f"{self.run_id}.{self._started}"
        server = ensure_fork_server()
        seat = self.board.seat(name, role)
        launch = Launch(
            name=name,
            parent=server,
            cpus=None if cpus is None else tuple(cpus),
            nice=nice,
            log_path=self._log_path,
        )
        reading, writing = os.pipe()
        notes = os.memfd_create("rollmill-notes", os.MFD_CLOEXEC)
        # Not a daemon: daemons may not have children, and environments do.
        process = ServedProcess(
            target=run_child,
            args=(launch, SentDescriptor(writing), SentDescriptor(notes), Work(self.stop_flag, seat, target, args)),
            name=name,
            daemon=False,
        )
        tokens = [part for part in (os.environ.get(sweep.VARIABLE), self.run_id, token) if part]
        try:
            start_process(process, thread_environment(env) | {sweep.VARIABLE: ":".join(tokens)})
        except BaseException as error:
            os.close(reading)
            os.close(notes)
            self.board.end(seat)
            if isinstance(error, EOFError | ConnectionError):
                self._raise_if_ended(server, error)
                raise ProcessFailed(
                    f"{name} ended while it was being started; what it printed says why, or memory was not sufficient."
                ) from error
            if isinstance(error, OSError | KeyboardInterrupt):
                raise
            if current_process().daemon:
                raise RuntimeError(
                    f"Process {name!r} cannot be started, because this program is a daemonic process, which may have "
                    "no children: use concurrent.futures.ProcessPoolExecutor instead of multiprocessing.Pool"
                ) from error
            raise TypeError(
                f"Process {name!r} cannot be started: its target {target!r} or one of its arguments cannot be sent "
                f"to a process ({type(error).__name__}: {error}). Functions must be importable, not local."
            ) from error
        finally:
            os.close(writing)
        assert process.pid is not None
        self.board.set_pid(seat, process.pid)
        self._watchdog.add_group(process.pid)
        for helper in (resource_tracker_pid(), server):
            if helper is not None:
                self._watchdog.wakes_at_end(helper)
        handle = Handle(name, process.pid, self._started)
        self._started += 1
        self._children[handle] = _Child(
            handle=handle,
            process=process,
            server=server,
            receiver=Receiver(reading),
            notes=notes,
            seat=seat,
            token=token,
        )
        return handle

    def poll(self, timeout_s: float) -> list[Event]:
        """What has happened since the last call, waiting up to ``timeout_s`` seconds for something.

        A process's messages come before its end, and its end comes once. What a dead process's simulators have left
        running is killed before its end is reported.
        """
        deadline = time.monotonic() + timeout_s
        if time.monotonic() - self._helpers_looked_at > _SILENT_S:
            self._wake_helpers()
        while True:
            events = self._collect()
            remaining = deadline - time.monotonic()
            if events or remaining <= 0:
                return events
            self._wait(min(remaining, LONGEST_WAIT_S))

    def stop(self, grace_s: float = 5.0) -> list[Event]:
        """Ends all processes: asks, after ``grace_s`` seconds sends SIGTERM, a second later SIGKILL.

        Returns:
            What happened meanwhile: last messages, failures, ends.
        """
        self.stop_flag.set()
        events = self._wait_for_ends(grace_s)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self._children:
                break
            for child in self._children.values():
                account = self.board.account(child.seat)
                log.warning(
                    "%s did not stop; it is in phase %r. Sending %s.", child.handle, account.current_phase, number.name
                )
                child.unwanted = True
                _signal_group(child, number)
            events += self._wait_for_ends(TERMINATE_GRACE_S if number == signal.SIGTERM else 10.0)
        return events

    def kill(self, handle: Handle) -> None:
        """Kills one process with everything that it started; ``poll`` then reports it as `Exited`."""
        child = self._children.get(handle)
        if child is not None:
            child.unwanted = True
            _signal_group(child, signal.SIGKILL)
            sweep.kill_all(child.token, [handle.pid])

    def snapshot(self) -> dict[str, ProcessAccount]:
        """The ledger's accounts, by process name, now."""
        return self.board.snapshot()

    def check_hung(
        self, limits: Mapping[str, float], stopped: Mapping[str, float] = MappingProxyType({})
    ) -> list[Hung]:
        """Processes that have shown no sign of life for too long. To be called at least once a second.

        Entering a phase, also the current one, is a sign of life: loops that wait do so several times a second. Only
        time in which this process was awake itself counts: if the calls stop, it was paused (Ctrl-Z, a paused
        container, a debugger), and the others may have been.

        Args:
            limits: Phase -> seconds; ``"start"`` is the phase before a process enters one of its own. Phases without
                a limit may last.
            stopped: Role -> seconds that a process of that role may be stopped by a signal (SIGSTOP), whatever its
                phase. Roles without a limit may be stopped.
        """
        hung = []
        now = time.monotonic()
        gap = max(0.0, now - self._looked_at)
        is_first, was_held_still = math.isinf(self._looked_at), gap > _HELD_STILL_S
        counted = 0.0 if is_first else min(gap, _COUNTED_S)
        self._awake_s += counted
        self._looked_at = now
        for child in self._children.values():
            account = self.board.account(child.seat)
            sign = (account.current_phase, account.current_since)
            if sign != child.last_sign or was_held_still:
                age = max(0.0, now - account.current_since)
                child.seen_at = self._awake_s - (age if is_first else 0.0 if was_held_still else min(age, counted))
                child.last_sign, child.stopped_at = sign, None
            silent_s = self._awake_s - child.seen_at
            is_stopped = silent_s > _SILENT_S and sweep.is_stopped(child.handle.pid)
            if not is_stopped:
                child.stopped_at = None
            elif child.stopped_at is None:
                child.stopped_at = self._awake_s
            for seconds, limit in (
                (silent_s, limits.get(account.current_phase)),
                (0.0 if child.stopped_at is None else self._awake_s - child.stopped_at, stopped.get(account.role)),
            ):
                if limit is not None and seconds > limit:
                    phase, is_waiting = account.current_phase, account.current_phase in account.waiting
                    hung.append(Hung(child.handle, phase, seconds, limit, account.role, is_waiting, is_stopped))
                    break
        return hung

    def stopped(self) -> list[Handle]:
        """The processes that a signal has stopped (SIGSTOP, or a debugger), now."""
        return [handle for handle in self._children if sweep.is_stopped(handle.pid)]

    def stacks(self, handle: Handle, timeout_s: float = 1.0) -> str:
        """The Python stacks of all threads of a living process, even one stuck in native code; empty if it gives none.

        Raises:
            KeyError: No such process is alive.
        """
        child = self._children.get(handle)
        if child is None:
            raise KeyError(f"{handle} has ended; only a living process has stacks.")
        if not child.started:
            self._receive(child, self._pending)
        if not child.started:
            return ""  # The signal would kill it.
        if child.process.exitcode is not None:
            return ""
        before = os.fstat(child.notes).st_size
        os.kill(handle.pid, STACK_SIGNAL)
        deadline = time.monotonic() + timeout_s
        size = before
        while time.monotonic() < deadline:
            time.sleep(0.02)
            previous, size = size, os.fstat(child.notes).st_size
            if before < size == previous:
                break
        return os.pread(child.notes, size - before, before).decode(errors="replace")

    def _collect(self) -> list[Event]:
        events, self._pending = self._pending, []
        for child in list(self._children.values()):
            exit_code = child.process.exitcode  # Before reading: what it sent is then all there.
            self._receive(child, events)
            if exit_code is not None:
                self._finish(child, exit_code, events)
        watchdog = self._watchdog
        if watchdog is not None and watchdog.exit_code is not None and not self._watchdog_reported:
            self._watchdog_reported = True
            text = describe_death(
                self._watchdog_handle, watchdog.exit_code, started=True, oom_kills_before=self._oom_kills
            )
            events.append(Failed(self._watchdog_handle, text, ""))
        return events

    def _receive(self, child: _Child, events: list[Event]) -> None:
        for message in child.receiver.receive():
            match message:
                case Started():
                    child.started = True
                case Traceback():
                    child.traceback = message
                case _:
                    events.append(Message(child.handle, message))

    def _finish(self, child: _Child, exit_code: int, events: list[Event]) -> None:
        handle = child.handle
        # At once: the group's number cannot be given away while it has members, but could be after that.
        sweep.kill_all(child.token, [handle.pid])
        if self._watchdog is not None:
            self._watchdog.remove_group(handle.pid)
        self.board.end(child.seat)
        del self._children[handle]
        if child.traceback is not None:
            is_short = child.traceback.lacks_memory
            text = describe_failure(handle, child.traceback.summary, out_of_memory=is_short)
            events.append(Failed(handle, text, child.traceback.text, lacks_memory=is_short))
        elif exit_code == 0 or child.unwanted:
            events.append(Exited(handle))
        elif has_fork_server_died(exit_code, server_exit_code := fork_server_exit_code(child.server)):
            assert server_exit_code is not None
            text = describe_end_of_fork_server(handle, child.server, server_exit_code, oom_kills_before=self._oom_kills)
            log.error("%s", text)
            events.append(Failed(handle, text, ""))
        else:
            text = describe_death(handle, exit_code, started=child.started, oom_kills_before=self._oom_kills)
            notes = os.pread(child.notes, os.fstat(child.notes).st_size, 0).decode(errors="replace")
            log.error("%s\n%s", text, notes)
            events.append(Failed(handle, text, notes, killed_by=max(0, -exit_code)))
        child.receiver.close()
        os.close(child.notes)
        child.process.close()

    def _raise_if_ended(self, server: int, error: Exception) -> None:
        deadline = time.monotonic() + LONGEST_WAIT_S
        while (code := fork_server_exit_code(server)) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if code is not None:
            who = Handle("fork server", server, -1)
            if code >= 0:
                raise ProcessFailed(
                    f"{who} exited with code {code}, and all processes of the run with it: its traceback is on the "
                    "console. Usually a limit on processes or memory is reached (`ulimit -u`, pids.max of a container)."
                ) from error
            text = describe_death(who, code, started=True, oom_kills_before=self._oom_kills)
            raise ProcessFailed(text) from error

    def _wait(self, seconds: float) -> None:
        waitables: list[int] = [child.process.sentinel for child in self._children.values()]
        waitables += [child.receiver.descriptor for child in self._children.values() if child.receiver.open]
        if self._watchdog is not None and not self._watchdog_reported:
            waitables.append(self._watchdog.descriptor)
        if waitables:
            connection.wait(waitables, seconds)
        else:
            time.sleep(seconds)

    def _wait_for_ends(self, seconds: float) -> list[Event]:
        deadline = time.monotonic() + seconds
        events = self._collect()
        while self._children and (remaining := deadline - time.monotonic()) > 0:
            self._wait(min(remaining, LONGEST_WAIT_S))
            events += self._collect()
        return events

    def _wake_helpers(self) -> None:
        """Continues stopped processes that end with this one: while stopped, they would remain."""
        self._helpers_looked_at = time.monotonic()
        watchdog = None if self._watchdog is None else self._watchdog.pid
        for name, pid in (
            ("watchdog", watchdog),
            ("resource tracker", resource_tracker_pid()),
            ("fork server", fork_server_pid()),
        ):
            if pid is not None and sweep.is_stopped(pid):
                log.warning("The %s (pid %d) was stopped by a signal; it is continued.", name, pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _end_everything(self) -> None:
        self._wake_helpers()
        sweep.kill_all(self.run_id, [handle.pid for handle in self._children])
        self._wait_for_ends(10.0)
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.close()


def _grace(kind: type[BaseException] | None) -> float:
    """Seconds that processes have to end by themselves; fewer after an exception, as their results are not needed."""
    if kind is None:
        return 5.0
    return 0.0 if issubclass(kind, KeyboardInterrupt) else 3.0


def _signal_group(child: _Child, number: signal.Signals) -> None:
    # The fork server has waited for one that has ended, and its number may mean another process.
    if child.process.exitcode is not None:
        return
    # A child that has not yet made its own group is signalled alone.
    for send in (os.killpg, os.kill):
        try:
            send(child.handle.pid, number)
            return
        except ProcessLookupError:
            continue
