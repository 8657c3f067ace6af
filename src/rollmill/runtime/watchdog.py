"""The watchdog: a small process that outlives the main one to end everything that it started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from rollmill.runtime import sweep


class Watchdog:
    """The main process's handle on the watchdog.

    The watchdog stands outside the workers' process groups and in a session of its own, so that neither Ctrl-C nor the
    end of a worker nor a kill of the main process's group reaches it.
    """

    def __init__(self, token: str) -> None:
        """Starts it; it will kill the processes with ``token`` in their environment."""
        self._began = time.time()
        # -I -S: no site packages and none of the user's settings; it is up in 20 ms and takes a few MB.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(sweep.__file__)), str(os.getpid()), token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def descriptor(self) -> int:
        """Becomes readable when the watchdog ends."""
        return self._output.fileno()

    @property
    def exit_code(self) -> int | None:
        """None while it lives; the negative signal number if a signal killed it."""
        return self._process.poll()

    def add_group(self, group: int) -> None:
        """Registers a process group of the run."""
        self._tell(f"+{group}\n")

    def remove_group(self, group: int) -> None:
        """Unregisters a group that has ended: its number may be reused."""
        self._tell(f"-{group}\n")

    def wakes_at_end(self, pid: int) -> None:
        """Registers a helper of multiprocessing's, which ends on its own unless a signal has stopped it."""
        self._tell(f"h{pid}\n")

    def close(self, timeout_s: float = 15.0) -> None:
        """Makes it kill and remove everything that remains, and waits for its end."""
        self._input.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        if self._process.returncode != 0:  # It was killed before it could.
            sweep.remove_leftovers(self._began)

    def _tell(self, line: str) -> None:
        # If it is dead, the supervisor finds that out by `exit_code`.
        with contextlib.suppress(BrokenPipeError):
            self._input.write(line.encode())


@contextlib.contextmanager
def ending_simulators() -> Iterator[None]:
    """End all processes that this one starts in the block, and what they leave in shared memory, however it ends.

    For commands that step environments themselves. A simulator's engine would outlive a command that is killed.
    """
    before, token = os.environ.get(sweep.VARIABLE), uuid.uuid4().hex
    watchdog = Watchdog(token)  # Before the variable is set, which would make it one of those that it ends.
    os.environ[sweep.VARIABLE] = token if before is None else f"{before}:{token}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[sweep.VARIABLE]
        else:
            os.environ[sweep.VARIABLE] = before
        watchdog.close()
