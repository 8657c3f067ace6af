"""Calls the user's callbacks, and makes of an exception in one a failure of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rollmill.callback import Callback, LiveRun
from rollmill.runtime.events import ProcessFailed
from rollmill.runtime.user_frames import format_error

_log = logging.getLogger("rollmill.run")


class CallbackFailed(ProcessFailed):
    """A callback has raised an exception, which ends the run."""


class Callbacks:
    """The callbacks of a run; a context manager that tells them its end, however it ends.

    Args:
        callbacks: In the order in which they are called.
        run: What they are given.
    """

    def __init__(self, callbacks: Sequence[Callback], run: LiveRun) -> None:
        self._callbacks = callbacks
        self._run = run
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._run.let_go()
        if error is None or self._has_ended:
            return
        for callback in self._callbacks:
            try:
                callback.on_end(self._run, "failure")
            except Exception:  # It must not take the place of the error that the run ends with.
                _log.exception("%s.on_end failed while the run was failing", type(callback).__name__)

    @property
    def is_stop_wanted(self) -> bool:
        """Whether one of them has asked for the run's end."""
        return self._run.is_stop_wanted

    def start(self) -> None:
        """The processes are about to be started."""
        self._call("on_start")

    def report(self, row: Mapping[str, Any]) -> None:
        """A row of metrics was written."""
        self._run.metrics = row
        self._call("on_report", dict(row))

    def checkpoint(self, path: Path) -> None:
        """A checkpoint was written."""
        self._call("on_checkpoint", path)

    def end(self, ended_by: str) -> None:
        """Training has ended."""
        self._has_ended = True
        self._call("on_end", ended_by)

    def _call(self, method: str, *arguments: object) -> None:
        for callback in self._callbacks:
            call: Callable[..., object] = getattr(callback, method)
            try:
                call(self._run, *arguments)
            except (Exception, SystemExit) as error:
                name = f"{type(callback).__name__}.{method}"
                _log.error("the callback %s failed", name, exc_info=True)
                text = f"the callback {name} failed: {type(error).__name__}: {error}"
                raise CallbackFailed(text, format_error(error)) from error
