"""Passes what a run measures to its trackers, none of which can hold the run up or end it.

Each tracker has a thread and a bounded queue of its own. A service's own asynchronous mode would not be enough: its
first and its last call wait for the network in each of them, MLflow's log calls do so, too, and a user's tracker may do
anything. The main loop only puts jobs into queues, which never waits.

A tracker that raises, whose call takes longer than ``tracking.call_timeout_s``, or whose queue is full is switched off
for the rest of the run, and one note says so.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rollmill.extras import install_command, missing_modules
from rollmill.tracking.base import FileKind, TrackedRun, Tracker, TrackerFactory
from rollmill.tracking.config import TENSORBOARD
from rollmill.tracking.ids import TrackedIds
from rollmill.tracking.registry import TRACKERS

_log = logging.getLogger("rollmill.tracking")

# Jobs that wait for a tracker: half an hour of rows.
_MOST_WAITING = 1000
# What a run that was told to end waits for its trackers.
_SHORT_S = 3.0
_LOOK_S = 0.05

_Job = Callable[[Tracker], object]


class Trackers:
    """The trackers of a run; a context manager that ends them.

    Args:
        run: The run; ``resume_id`` is set for each tracker.
        note: Shows a line and logs it.
        trust: Whether to continue tracked runs that a file of another user names.
        is_stop_wanted: Whether the run was told to end, so that it must not wait long.
    """

    def __init__(
        self,
        run: TrackedRun,
        *,
        note: Callable[[str], None],
        trust: bool = False,
        is_stop_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._note = note
        self._is_stop_wanted = is_stop_wanted
        self._timeout_s = run.settings.call_timeout_s
        self._ended_by = "failure"
        ids = TrackedIds(run.directory, trust=trust)
        self._running: list[_TrackerThread] = []
        for name in run.settings.names:
            if name == TENSORBOARD and missing_modules(TENSORBOARD):
                note(f"tensorboard/ is not written ({install_command(TENSORBOARD)}); metrics.jsonl has all metrics")
                continue
            resume_id = ids.get(name) if run.is_resumed else None
            own = replace(run, resume_id=resume_id)
            self._running.append(_TrackerThread(name, TRACKERS.find(name, "tracker"), own, ids))

    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None = None) -> None:
        """Pass a row on; see :meth:`rollmill.tracking.base.Tracker.log`. Returns at once."""
        self._pass_on(lambda tracker: tracker.log(numbers, agent_steps, policy))

    def log_file(self, path: Path, kind: FileKind, name: str, agent_steps: int, policy: str | None = None) -> None:
        """Pass a file on; see :meth:`rollmill.tracking.base.Tracker.log_file`. Returns at once."""
        self._pass_on(lambda tracker: tracker.log_file(path, kind, name, agent_steps, policy))

    def ended(self, ended_by: str) -> None:
        """Say how the run has ended; without this it has failed."""
        self._ended_by = ended_by

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End all trackers, and wait for what they still have to send."""
        if isinstance(error, KeyboardInterrupt):
            self._ended_by = "signal"
        is_told = isinstance(error, KeyboardInterrupt) or self._ended_by in ("signal", "caller")
        self._pass_on(partial(_finish, ended_by=self._ended_by))
        # A call that hangs since before is noticed by its own limit, a moment before this one.
        deadline = time.monotonic() + (_SHORT_S if is_told else self._timeout_s + 2 * _LOOK_S)
        while any(not thread.has_ended for thread in self._running) and time.monotonic() < deadline:
            self.check()
            time.sleep(_LOOK_S)
            if not is_told and self._is_stop_wanted():
                is_told = True
                deadline = min(deadline, time.monotonic() + _SHORT_S)
        self.check()
        for thread in self._running:
            if not thread.has_ended:
                self._note(f"tracker {thread.name}: not finished in time; the end of the run may be missing there")

    def check(self) -> None:
        """Note what has happened in the threads: places of runs, and trackers that failed or hang."""
        for thread in list(self._running):
            if (place := thread.take_place()) is not None:
                self._note(f"tracker {thread.name}: {place}")
            failure = thread.failure or thread.hang(self._timeout_s)
            if failure:
                self._switch_off(thread, failure)

    def _pass_on(self, job: _Job) -> None:
        self.check()
        for thread in list(self._running):
            if not thread.put(job):
                self._switch_off(thread, f"it is {_MOST_WAITING:,} calls behind")

    def _switch_off(self, thread: _TrackerThread, why: str) -> None:
        self._running.remove(thread)
        thread.abandon()
        self._note(f"tracker {thread.name} failed, and the run continues without it: {why}")
        if thread.traceback:
            _log.info("the tracker %s failed:\n%s", thread.name, thread.traceback)


class _TrackerThread:
    """One tracker and its thread.

    Attributes:
        name: The tracker's name.
        failure: The exception that it raised, in one line; empty if none.
        traceback: Its traceback.
        has_ended: Whether it has sent everything.
    """

    def __init__(self, name: str, factory: TrackerFactory, run: TrackedRun, ids: TrackedIds) -> None:
        self.name = name
        self.failure = ""
        self.traceback = ""
        self.has_ended = False
        self._factory = factory
        self._run = run
        self._ids = ids
        self._jobs: queue.Queue[_Job] = queue.Queue(_MOST_WAITING)
        self._is_abandoned = False
        self._place: str | None = None
        # When the present call began; None between two.
        self._since: float | None = time.monotonic()
        # A daemon, because a call that hangs must not keep the program from ending.
        threading.Thread(target=self._serve, name=f"tracker {name}", daemon=True).start()

    def put(self, job: _Job) -> bool:
        """Add a job; returns whether there was room for it."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def abandon(self) -> None:
        """Do no further jobs, should the present call ever return."""
        self._is_abandoned = True

    def take_place(self) -> str | None:
        """Where to look at the run, once it has started; None if that is unknown or was taken."""
        place, self._place = self._place, None
        return place

    def hang(self, longest_s: float) -> str:
        """That the present call takes too long, in words; empty if it does not."""
        since = self._since
        if since is None or time.monotonic() - since <= longest_s:
            return ""
        return f"a call has not returned within {longest_s:g} s (tracking.call_timeout_s)"

    def _serve(self) -> None:
        try:
            tracker = self._factory(self._run)
            if tracker.id is not None:
                self._ids.set(self.name, tracker.id)
            self._place = tracker.place or None
            while not self.has_ended and not self._is_abandoned:
                self._since = None
                job = self._jobs.get()
                self._since = time.monotonic()
                self.has_ended = job(tracker) is _ENDED
        except BaseException as error:  # A service's package may raise anything, SystemExit included.
            reason = str(error).strip().split("\n")[0]
            self.traceback = traceback.format_exc()
            self.failure = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        finally:
            self._since = None


_ENDED = object()


def _finish(tracker: Tracker, *, ended_by: str) -> object:
    tracker.finish(ended_by)
    return _ENDED
