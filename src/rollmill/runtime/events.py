"""Events that the supervisor reports, and descriptions of how processes died."""

from __future__ import annotations

import signal
from typing import NamedTuple

from rollmill.runtime import cgroups
from rollmill.runtime.machine import readable


class Handle(NamedTuple):
    """One process of the run.

    Attributes:
        name: For example ``"rollout worker 3"``.
        pid: Process id; also the id of its process group.
        number: Number of the process within the run, never used again.
    """

    name: str
    pid: int
    number: int

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


class Message(NamedTuple):
    """A process has sent an object."""

    handle: Handle
    content: object


class Failed(NamedTuple):
    """A process has ended unexpectedly.

    Attributes:
        handle: The process.
        description: One sentence: how it ended and what that usually means.
        traceback: The Python traceback of its exception, or the stacks at a crash; empty if there is none.
        killed_by: Number of the signal that killed it; 0 if none did.
        lacks_memory: Whether it was an allocation that failed.
    """

    handle: Handle
    description: str
    traceback: str
    killed_by: int = 0
    lacks_memory: bool = False

    def error(self) -> ProcessFailed:
        """The exception to raise for it."""
        return ProcessFailed(self.description, self.traceback)


class Exited(NamedTuple):
    """A process has ended as expected: its target returned, or it was asked to end."""

    handle: Handle


Event = Message | Failed | Exited


class Hung(NamedTuple):
    """A process has shown no sign of life for longer than allowed.

    Attributes:
        handle: The process.
        phase: The phase that it is in.
        seconds: For how long.
        limit: What was allowed, seconds.
        role: Its role's name.
        is_waiting: Whether it waits for another process in this phase, and so should wake up several times a second.
        is_stopped: Whether a signal has stopped it.
    """

    handle: Handle
    phase: str
    seconds: float
    limit: float
    role: str = ""
    is_waiting: bool = False
    is_stopped: bool = False

    def error(self, stacks: str = "", advice: str = "") -> ProcessHung:
        """The exception to raise for it, with the result of ``Supervisor.stacks`` and the source of the limit."""
        if self.is_stopped:
            what = f"it has been stopped in phase {self.phase!r}, by SIGSTOP or a debugger, for {self.seconds:.0f} s"
        elif self.is_waiting:
            what = (
                f"it has shown no sign of life for {self.seconds:.0f} s in phase {self.phase!r}, in which it wakes up "
                "several times a second"
            )
        else:
            what = f"it has been in phase {self.phase!r} for {self.seconds:.0f} s"
        allowed = f"{self.limit:.0f} s are allowed{f' ({advice})' if advice else ''}"
        return ProcessHung(f"{self.handle} hangs: {what}; {allowed}.", stacks)


class ProcessFailed(RuntimeError):  # noqa: N818  named for what it says
    """A process of the run has failed. Shows that process's traceback as its own.

    Attributes:
        description: One sentence.
        traceback: The traceback in the process, or empty.
    """

    def __init__(self, description: str, traceback: str = "") -> None:
        super().__init__(description, traceback)
        self.description = description
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.description}\n\n{self.traceback.rstrip()}" if self.traceback else self.description


class ProcessHung(ProcessFailed):
    """A process of the run makes no progress. Its traceback shows where it was stuck."""


# Messages of PyTorch and others, which raise RuntimeError on a CPU.
_ALLOCATION_FAILED = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "size calculation overflowed",
)


def lacks_memory(error: BaseException | None) -> bool:
    """Whether an exception or one of its causes is a failed allocation of NumPy, PyTorch or CUDA."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error).lower() if isinstance(error, RuntimeError | OSError) else ""
        if isinstance(error, MemoryError) or any(words in text for words in _ALLOCATION_FAILED):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_failure(who: Handle, summary: str, *, out_of_memory: bool) -> str:
    """Describes an exception that ended a process.

    Args:
        who: The process.
        summary: The exception, in a line.
        out_of_memory: Whether it was an allocation that failed.
    """
    if not out_of_memory:
        return f"{who} failed: {summary}"
    available = readable(cgroups.available_memory())
    return (
        f"{who} ran out of memory: {summary}. {available} of the machine's memory are available now (its free memory "
        "or the container's limit, whichever is less); a GPU has its own. Use smaller observations, a smaller network, "
        "fewer environments (num_envs) or a smaller learner.batch_size or learner.micro_batch."
    )


def describe_death(who: Handle, exit_code: int, *, started: bool, oom_kills_before: int) -> str:
    """Describes an unexplained end, with its likely cause.

    Args:
        who: The process.
        exit_code: As ``multiprocessing`` has it: minus the signal's number for a signal.
        started: Whether it came as far as its target.
        oom_kills_before: ``cgroups.oom_kills()`` when the run began.
    """
    if exit_code >= 0:
        what = f"{who} exited with code {exit_code}"
        if started:
            return f"{what} without an exception: something in it called exit."
        return (
            f"{what} before its target began; its message is on the console. If the run is started from a script, "
            'the call must stand under `if __name__ == "__main__":`, because each child imports the script.'
        )
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"{who} was killed by {name}{_cause(name, oom_kills_before)}."


# The exit code that multiprocessing reports if the fork server is gone.
_UNKNOWN_EXIT_CODE = 255


def has_fork_server_died(exit_code: int, server_exit_code: int | None) -> bool:
    """Whether a process ended because its fork server ended.

    Args:
        exit_code: The process's, as ``multiprocessing`` has it.
        server_exit_code: The fork server's; None while it lives.
    """
    return exit_code == _UNKNOWN_EXIT_CODE and server_exit_code is not None


def describe_end_of_fork_server(who: Handle, pid: int, exit_code: int, *, oom_kills_before: int) -> str:
    """Describes that a process ended with its fork server.

    Args:
        who: The process.
        pid: The fork server's process id.
        exit_code: The fork server's: minus the signal's number for a signal.
        oom_kills_before: ``cgroups.oom_kills()`` when the run began.
    """
    server = describe_death(
        Handle("the fork server", pid, -1), exit_code, started=True, oom_kills_before=oom_kills_before
    )
    return f"{who} ended with the process that it was forked from: {server}"


def _cause(name: str, oom_kills_before: int) -> str:
    match name:
        case "SIGKILL" if cgroups.oom_kills() > oom_kills_before:
            return (
                ": the kernel's out-of-memory killer has struck in this container since the run began; "
                "use fewer processes or environments, or give it more memory"
            )
        case "SIGKILL" if cgroups.available_memory() < 512 << 20:
            return (
                ", probably by the kernel's out-of-memory killer: less than 512 MiB of memory are left; "
                "use fewer processes or environments"
            )
        case "SIGKILL":
            return ", from outside (by hand, a job limit, or the kernel's out-of-memory killer: see its log)"
        case "SIGSEGV" | "SIGILL" | "SIGFPE" | "SIGABRT":
            return ": a crash in native code, for example a simulator's"
        case "SIGBUS":
            return ": usually shared memory that could not be had when it was first touched; memory is exhausted"
    return ""
