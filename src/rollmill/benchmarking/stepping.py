"""Processes that step environments, measured in slices and paused between them.

Two of these can take turns on the same cores within a second and keep their environments. The speed of a shared machine
changes from second to second, and restarting processes for each turn would take longer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from rollmill.benchmarking.pausing import pause, resume
from rollmill.regimes.ending import exited_early
from rollmill.runtime.events import Exited, Failed
from rollmill.runtime.ledger import Role
from rollmill.runtime.supervisor import Supervisor

_START_TIMEOUT_S = 300.0
_WARM_UP_S = 3.0
# After a pause caches are cold, and pending results arrive at once.
_SETTLE_S = 0.25
_POLL_S = 0.1


class TooShortError(RuntimeError):
    """A measurement was too short to give a result."""


class SteppingProcesses:
    """A context manager: inside it, the environments are built, warmed up, and paused except in :meth:`running`.

    Args:
        role: Of the processes that step; their first counter counts valid agent steps.
        start: Starts the processes, and returns a function that serves them for about so many seconds.

    Attributes:
        supervisor: Has started them.
    """

    def __init__(self, role: Role, start: Callable[[Supervisor], Callable[[float], object]]) -> None:
        """Starts nothing."""
        self.supervisor = Supervisor()
        self._role = role
        self._start = start

    def __enter__(self) -> Self:
        """Start the processes, and return when all of them have stepped for a while.

        Raises:
            ProcessFailed: A process failed, or the environments did not start within five minutes.
        """
        self.supervisor.__enter__()
        try:
            self._serve = self._start(self.supervisor)
            begun = time.monotonic()
            while not all(self.counts()):
                self.run_for(_POLL_S)
                if time.monotonic() - begun > _START_TIMEOUT_S:
                    handle = self.supervisor.handles[-1]
                    text = f"the environments did not start within {_START_TIMEOUT_S:.0f} s"
                    raise Failed(handle, text, self.supervisor.stacks(handle)).error()
            self.run_for(_WARM_UP_S)
            pause(self.pids)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Continue the processes, so that they receive the request, and end them."""
        try:
            resume(self.pids)
        finally:
            self.supervisor.__exit__(kind, error, trace)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Inside it the processes are continued, and have settled."""
        resume(self.pids)
        try:
            self.run_for(_SETTLE_S)
            yield
        finally:
            pause(self.pids)

    def measure(self, seconds: float) -> float:
        """Continue the processes and measure agent steps a second for ``seconds``, without masked rows.

        Raises:
            ProcessFailed: A process failed.
            TooShortError: No group of environments was stepped meanwhile.
        """
        with self.running():
            before, started = sum(self.counts()), time.monotonic()
            self.run_for(seconds)
            steps, elapsed = sum(self.counts()) - before, time.monotonic() - started
        if steps == 0:
            raise TooShortError(
                f"no group of environments was stepped within {seconds:.1f} s: measure for longer (--seconds), or make "
                "groups smaller (--envs-per-group)."
            )
        return steps / elapsed

    @property
    def pids(self) -> list[int]:
        """Process ids, each also that of a process group."""
        return [handle.pid for handle in self.supervisor.handles]

    def counts(self) -> list[int]:
        """Agent steps of each stepping process."""
        name = self._role.counters[0]
        accounts = self.supervisor.snapshot().values()
        return [int(account.counters[name]) for account in accounts if account.role == self._role.name]

    def run_for(self, seconds: float) -> None:
        """Serve the processes, which are not paused, for so many seconds.

        Raises:
            ProcessFailed: A process failed.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._serve(min(left, _POLL_S))
            for event in self.supervisor.poll(0.0):
                if isinstance(event, Failed | Exited):
                    raise (event if isinstance(event, Failed) else exited_early(event)).error()
