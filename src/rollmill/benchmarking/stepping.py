"""Processes that step environments, measured in slices and paused between them.

Two of these can take turns on the same cores within a second and keep their environments. The speed of a shared machine
changes from second to second, and restarting processes for each turn would take longer.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rollmill.benchmarking.pausing import pause, resume
from rollmill.regimes.ending import exited_early
from rollmill.runtime.events import Exited, Failed
from rollmill.runtime.ledger import Role
from rollmill.runtime.supervisor import Supervisor

__all__ = ["SteppingProcesses", "TooShortError"]

_START_TIMEOUT_S = 300.0
_WARM_UP_S = 3.0
# After a pause caches are cold, and pending results arrive at once.
_SETTLE_S = 0.25
_POLL_S = 0.1


class TooShortError(RuntimeError):
    """A measurement was too short to give a result."""


class SteppingProcesses(ABC):
    """A context manager: inside it, the environments are built, warmed up, and paused except during :meth:`measure`.

    Args:
        role: Of the processes that step; their first counter counts valid agent steps.
    """

    def __init__(self, role: Role) -> None:
        """Starts nothing."""
        self._role = role
        self._supervisor = Supervisor()

    @abstractmethod
    def _start(self, supervisor: Supervisor) -> None:
        """Start the processes."""

    @abstractmethod
    def _serve(self, timeout_s: float) -> None:
        """Serve the processes for about ``timeout_s``."""

    def _warm_up(self) -> None:
        """Let the processes run until they may be measured; all of them have stepped."""
        self._run_for(_WARM_UP_S)

    def __enter__(self) -> Self:
        """Start the processes, and return when all of them have stepped for a while.

        Raises:
            ProcessFailed: A process failed, or the environments did not start within five minutes.
        """
        self._supervisor.__enter__()
        try:
            self._start(self._supervisor)
            begun = time.monotonic()
            while not all(self._counts()):
                self._run_for(_POLL_S)
                if time.monotonic() - begun > _START_TIMEOUT_S:
                    handle = self._supervisor.handles[-1]
                    text = f"the environments did not start within {_START_TIMEOUT_S:.0f} s"
                    raise Failed(handle, text, self._supervisor.stacks(handle)).error()
            self._warm_up()
            pause(self._groups())
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Continue the processes, so that they receive the request, and end them."""
        try:
            resume(self._groups())
        finally:
            self._supervisor.__exit__(kind, error, trace)

    def measure(self, seconds: float) -> float:
        """Continue the processes and measure agent steps a second for ``seconds``, without masked rows.

        Raises:
            ProcessFailed: A process failed.
            TooShortError: No group of environments was stepped meanwhile.
        """
        resume(self._groups())
        try:
            self._run_for(_SETTLE_S)
            before, started = sum(self._counts()), time.monotonic()
            self._run_for(seconds)
            steps, elapsed = sum(self._counts()) - before, time.monotonic() - started
        finally:
            pause(self._groups())
        if steps == 0:
            raise TooShortError(
                f"no group of environments was stepped within {seconds:.1f} s: measure for longer (--seconds), or make "
                "groups smaller (--envs-per-group)."
            )
        return steps / elapsed

    def _groups(self) -> list[int]:
        return [handle.pid for handle in self._supervisor.handles]

    def _counts(self) -> list[int]:
        """Agent steps of each stepping process."""
        name = self._role.counters[0]
        accounts = self._supervisor.snapshot().values()
        return [int(account.counters[name]) for account in accounts if account.role == self._role.name]

    def _run_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._serve(min(left, _POLL_S))
            for event in self._supervisor.poll(0.0):
                if isinstance(event, Failed | Exited):
                    raise (event if isinstance(event, Failed) else exited_early(event)).error()
