"""The start of a child process, and what its target is given.

main process                                child process
Supervisor.start  --fork server-->  Surroundings: environment, output and limits of the main process
                                    run_child: own process group, dies with the fork server, SIGINT ignored
                                    target(context, *args)
       poll       <-----pipe------  messages; the traceback of what went wrong
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rollmill.runtime import logs
from rollmill.runtime.arena import Arena
from rollmill.runtime.channel import Sender, SentDescriptor
from rollmill.runtime.events import lacks_memory
from rollmill.runtime.fork_server import die_with_parent
from rollmill.runtime.ledger import Ledger, LedgerSeat
from rollmill.runtime.user_frames import format_error

STACK_SIGNAL = signal.SIGUSR1
"""Makes a child write the Python stacks of all its threads into its notes, whatever it is stuck in."""


class StopFlag:
    """A flag in shared memory that asks every process of the run to end; checking it costs a memory read."""

    FIELD = "stop"

    def __init__(self, arena: Arena) -> None:
        """Uses the arena's array ``"stop"``, int64 [1]."""
        self._arena = arena
        self._view = arena[self.FIELD].data

    def is_set(self) -> bool:
        """Whether the run should end."""
        return bool(self._view[0])

    def set(self) -> None:
        """Asks for the end; cannot be undone."""
        self._view[0] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return StopFlag, (self._arena,)


class Started(NamedTuple):
    """Internal first message: the interpreter is up and the target is about to run."""


class Traceback(NamedTuple):
    """Internal last message of a process that failed."""

    summary: str
    text: str
    lacks_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class ChildContext:
    """First argument of every target.

    Attributes:
        name: The process's name, for example ``"rollout worker 3"``.
        stop: Look at it often and return soon after it is set.
        send: ``send(object)`` sends a message to the main process, where ``poll`` returns it. For the few messages
            that carry no bulk data: reports, results.
        ledger: This process's account of its time.
        log: Logger that writes to ``run.log``.
        inject_delay: Called where a process could be slow. It sleeps at random in runs that check what depends on
            speed, and does nothing in others.
    """

    name: str
    stop: StopFlag
    send: Callable[[object], None]
    ledger: Ledger
    log: logging.Logger
    inject_delay: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a child starts; ``parent`` is the fork server's process id."""

    name: str
    parent: int
    cpus: tuple[int, ...] | None
    nice: int
    log_path: Path | None


class Work:
    """The task of a child. It has a pickle of its own, so that an error while loading it is reported like any failure.

    Everything that shares memory goes into this one pickle, so that an arena that is referenced twice is sent once.
    """

    def __init__(
        self, stop: StopFlag, seat: LedgerSeat, target: Callable[..., object], args: tuple[object, ...]
    ) -> None:
        self._parts = (stop, seat, target, args)

    def __reduce__(self) -> tuple[Any, ...]:
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(self._parts)
        return SealedWork, (buffer.getvalue(),)


class SealedWork(NamedTuple):
    """`Work` as it arrives."""

    data: bytes

    def open(self) -> tuple[StopFlag, LedgerSeat, Callable[..., object], tuple[object, ...]]:
        """Loads it: imports the target's module and maps the shared memory."""
        parts: tuple[StopFlag, LedgerSeat, Callable[..., object], tuple[object, ...]] = pickle.loads(self.data)
        return parts


def run_child(launch: Launch, channel: SentDescriptor, notes: SentDescriptor, work: SealedWork) -> None:
    """What a child process runs; returns when its target does, and exits with 1 when it raises."""
    # The main process decides what Ctrl-C means. The fork server has SIGINT blocked, so none was seen before this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # A group of our own, with the processes that simulators start, to be ended as a whole. Not a session of our own:
    # Linux schedules sessions against each other ("autogroup"), and niceness would mean nothing between them.
    os.setpgid(0, 0)
    die_with_parent(launch.parent)
    _keep_descriptors_to_ourselves()
    faulthandler.enable(notes.number)
    faulthandler.register(STACK_SIGNAL, notes.number)
    sender = Sender(channel.number)
    try:
        sender.send(Started())
    except BrokenPipeError:
        os._exit(1)  # The main process was interrupted while it started us, and knows nothing of us.

    def fail(error: BaseException) -> NoReturn:
        summary = "".join(traceback.format_exception_only(error)).strip()
        text = "".join(traceback.format_exception(error))
        sender.send(Traceback(summary, format_error(error), lacks_memory(error)))
        if launch.log_path is not None:
            logging.getLogger(f"rollmill.{launch.name}").error("%s", text.rstrip())
        # Not sys.exit: threads and exit handlers of a broken process may wait for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def fail_in_thread(event: threading.ExceptHookArgs) -> None:
        # A process that lost one of its threads would wait for it: it fails as a whole.
        if event.exc_value is not None and not isinstance(event.exc_value, SystemExit):
            event.exc_value.add_note(
                f"It was raised in the thread {getattr(event.thread, 'name', None)!r}; a thread that an environment "
                "starts must catch its exceptions."
            )
            fail(event.exc_value)

    threading.excepthook = fail_in_thread
    try:
        if launch.nice:
            os.nice(launch.nice)
        if launch.cpus is not None:
            os.sched_setaffinity(0, launch.cpus)
        if launch.log_path is not None:
            logs.open_in_child(launch.log_path, launch.name)
        stop, seat, target, args = work.open()
        ledger = seat.open()
        log = logging.getLogger(f"rollmill.{launch.name}")
        target(ChildContext(name=launch.name, stop=stop, send=sender.send, ledger=ledger, log=log), *args)
        ledger.write_cpu_time()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        # What the target had to close is closed. Taking a torch process apart in order takes seconds on a busy machine,
        # and a run that was told to end is waited for.
        os._exit(0)
    except BaseException as error:  # SystemExit too: a target ends by returning, and an environment may call sys.exit.
        fail(error)


def _keep_descriptors_to_ourselves() -> None:
    # Descriptors handed to a child are inheritable in it: a simulator that it starts would hold the pipe by which the
    # main process notices the child's death, and the shared memory.
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2:
            try:
                os.set_inheritable(number, False)
            except OSError:
                continue  # The descriptor of the listing itself.
