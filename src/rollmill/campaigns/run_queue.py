"""Runs as processes of their own: a few at a time, each with its share of the cores.

Each run is the ordinary command ``rollmill train``. A watchdog ends all of them if this process is killed, as it does
for the processes of a single run (:mod:`rollmill.runtime.watchdog`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rollmill.campaigns.follow import RunFollower
from rollmill.campaigns.jobs import Campaign, CampaignError, Job, Record, Status, has_checkpoint, refused_files
from rollmill.runtime import sweep
from rollmill.runtime.affinity import usable_cpus
from rollmill.runtime.signals import comes_here_too
from rollmill.runtime.signed_files import signed
from rollmill.runtime.watchdog import Watchdog

_EXIT_INTERRUPTED = 130
# How a run ends that was asked to: after it has begun, and before.
_SIGNALLED = (_EXIT_INTERRUPTED, -signal.SIGTERM)

# A run ends within ten seconds of a request.
_GRACE_S = 15.0
_LONGEST_ERROR = 2000  # characters
_LONGEST_TRACEBACK = 65_536  # bytes, of which the error is the last part
_PREFIX = "rollmill: "


@dataclass
class RunningJob:
    """A run that trains.

    Attributes:
        job: What it is.
        process: Its main process.
        share: Which share of the cores it has.
        started_at: When, on the monotonic clock.
        follower: Reads its metrics.
        log_begins: Where its part of the log begins, in bytes; earlier sessions have written what is before.
        wanted_end: The status that it gets when it ends on request; None before a request.
    """

    job: Job
    process: subprocess.Popen[bytes]
    share: int
    started_at: float
    follower: RunFollower
    log_begins: int
    wanted_end: Status | None = field(default=None)


class RunQueue:
    """Starts runs of a campaign, and follows them to their end.

    Args:
        campaign: Whose runs they are.
        jobs: Runs at the same time.
        cpus: CPUs that they share; by default all that this process may use.
        is_ending: Whether a signal has asked this process to end.
    """

    def __init__(
        self,
        campaign: Campaign,
        jobs: int,
        cpus: Sequence[int] | None = None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._campaign = campaign
        self._is_ending = is_ending
        self._shares = shares_of(usable_cpus() if cpus is None else cpus, jobs)
        self._running: dict[str, RunningJob] = {}
        self._watchdog: Watchdog | None = None

    def __enter__(self) -> Self:
        self._watchdog = Watchdog(self._campaign.token)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._watchdog is not None
        try:
            # After a second Ctrl-C nothing is waited for.
            self.end_all(0.0 if isinstance(error, KeyboardInterrupt) else _GRACE_S)
        except CampaignError:
            if error is None:  # Otherwise the first error tells more.
                raise
        finally:
            self._watchdog.close()

    @property
    def running(self) -> Sequence[RunningJob]:
        """The runs that train now."""
        return tuple(self._running.values())

    @property
    def has_room(self) -> bool:
        """Whether another run can be started."""
        return len(self._running) < len(self._shares)

    def start(self, job: Job) -> RunningJob:
        """Start a run, or resume it where a killed or interrupted one has left a checkpoint.

        Raises:
            CampaignError: A file cannot be written.
        """
        assert self._watchdog is not None
        share = next(i for i in range(len(self._shares)) if i not in {each.share for each in self._running.values()})
        words = self._words(job)
        with refused_files(self._campaign.log_file(job.name)):
            opened = self._campaign.log_file(job.name).open("ab")
        with opened as log, _confined(self._shares[share]):
            log_begins = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                # -P: modules in the working directory must not shadow installed ones.
                [sys.executable, "-P", "-m", "rollmill", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, sweep.VARIABLE: ":".join([*_outer_tokens(), self._campaign.token])},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the runs.
            )
        self._watchdog.add_group(process.pid)
        follower = RunFollower(self._campaign.run_dir(job.name))
        self._running[job.name] = RunningJob(job, process, share, time.monotonic(), follower, log_begins)
        self._campaign.update(job.name, status="running", error="")
        return self._running[job.name]

    def stop(self, name: str, status: Status) -> None:
        """Ask a run to end, and to save what it has learned.

        Args:
            name: The run.
            status: What it is then.
        """
        running = self._running[name]
        if running.wanted_end is None:
            running.wanted_end = status
            with contextlib.suppress(ProcessLookupError):
                running.process.send_signal(signal.SIGTERM)

    def poll(self) -> list[Record]:
        """The records of runs that have ended since the last call."""
        ended = []
        for name, running in list(self._running.items()):
            code = running.process.poll()
            if code is not None:
                if running.wanted_end is None and code in _SIGNALLED and comes_here_too(self._is_ending):
                    running.wanted_end = "waiting"
                del self._running[name]
                ended.append(self._ended(running, code))
        return ended

    def end_all(self, grace_s: float) -> None:
        """End all runs; they are resumed by the next session.

        Args:
            grace_s: Seconds in which they can save; then they are killed.

        Raises:
            CampaignError: All have ended, but a record could not be saved. The next session finds it "running" in the
                file, and continues the run.
        """
        for running in self._running.values():
            self.stop(running.job.name, "waiting")
        deadline = time.monotonic() + grace_s
        errors: list[CampaignError] = []
        try:
            while self._running and time.monotonic() < deadline:
                self._poll_into(errors)
                time.sleep(0.05)
        finally:  # A second Ctrl-C ends the wait.
            self._kill(errors)
        if errors:
            raise errors[0]

    def _poll_into(self, errors: list[CampaignError]) -> None:
        """Poll; if a record cannot be saved, keep the error, so that the other runs can end, too."""
        try:
            self.poll()
        except CampaignError as error:
            errors.append(error)

    def _kill(self, errors: list[CampaignError]) -> None:
        """Kill what still runs."""
        for running in self._running.values():
            running.process.kill()
        if self._running:
            sweep.kill_all(self._campaign.token)
            for running in self._running.values():
                running.process.wait()
        while self._running:  # All have ended.
            self._poll_into(errors)

    def _words(self, job: Job) -> list[str]:
        """The command that starts or resumes the run."""
        run_dir = self._campaign.run_dir(job.name)
        if has_checkpoint(run_dir):
            return ["train", "--resume", "--run-dir", str(run_dir), "--quiet"]
        if run_dir.exists():
            shutil.rmtree(run_dir)  # It was killed before its first checkpoint, and begins again.
        settings = self._campaign.settings_file(job.name)
        with refused_files(settings):
            settings.write_text(json.dumps(signed(dict(job.settings)), indent=1) + "\n")
        words = ["train", job.preset, "--run-dir", str(run_dir), "--settings", str(settings), "--quiet"]
        for option in ("algo", "protocol"):
            if (value := getattr(job, option)) is not None:
                words += [f"--{option}", value]
        return words

    def _ended(self, running: RunningJob, code: int) -> Record:
        assert self._watchdog is not None
        self._watchdog.remove_group(running.process.pid)
        name = running.job.name
        error = ""
        if running.wanted_end is not None:
            status = running.wanted_end
            if code not in (0, _EXIT_INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL):
                # It could not end in time; what it saved before stays.
                error = _error_of(self._campaign.log_file(name), code, running.log_begins)
            if status == "waiting" and code == 0:
                status = "done"  # It was complete before the signal came.
        elif code == 0:
            status = "done"
        else:
            status, error = "failed", _error_of(self._campaign.log_file(name), code, running.log_begins)
        seconds = self._campaign.records[name].seconds + time.monotonic() - running.started_at
        return self._campaign.update(name, status=status, error=error, seconds=round(seconds, 1))


def shares_of(cpus: Sequence[int], jobs: int) -> list[tuple[int, ...]]:
    """Divide CPUs between runs; where there are more runs than CPUs, several have the same one.

    Args:
        cpus: Their numbers.
        jobs: Runs at the same time.
    """
    count = len(cpus)
    if jobs > count:
        return [(cpus[job % count],) for job in range(jobs)]
    return [tuple(cpus[job * count // jobs : (job + 1) * count // jobs]) for job in range(jobs)]


@contextlib.contextmanager
def _confined(cpus: Sequence[int]) -> Iterator[None]:
    """Let processes that this thread starts meanwhile inherit these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _outer_tokens() -> list[str]:
    return [token for token in (os.environ.get(sweep.VARIABLE),) if token]


def _error_of(log: Path, code: int, begins: int) -> str:
    """The error that a run printed last, in its log from byte ``begins`` on."""
    with log.open("rb") as file:
        text = _tail(file, begins).decode(errors="replace").strip()
    _, found, message = text.rpartition(f"\n{_PREFIX}") if f"\n{_PREFIX}" in text else ("", "", text)
    if not found:
        message = text.removeprefix(_PREFIX)
    if code == _EXIT_INTERRUPTED:
        message = "a signal from outside of the campaign has interrupted it"
    elif code < 0:
        message = f"{signal.Signals(-code).name} killed it. {message}"
    return _shortened(message.strip()) or f"it exited with code {code}"


def _shortened(message: str) -> str:
    """Leave out the middle of a long message: it begins with what failed, and ends with why."""
    if len(message) <= _LONGEST_ERROR:
        return message
    half = _LONGEST_ERROR // 2
    return f"{message[:half]}\n...\n{message[-half:]}"


def _tail(file: IO[bytes], begins: int) -> bytes:
    file.seek(max(begins, file.seek(0, os.SEEK_END) - _LONGEST_TRACEBACK))
    return file.read()
