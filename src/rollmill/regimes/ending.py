"""The end of a run: on time, on request, or with the first failure.

A process that dies because the whole run was asked to end is not a failure, and neither is one that dies a moment
before the others receive the signal. Everything else ends the run with its own traceback.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from rollmill.envs.info_metrics import EnvMetrics
from rollmill.learning.report import CheckpointWritten, LearnerFinished, LearnerNote, LearnerReport
from rollmill.regimes.callbacks import Callbacks
from rollmill.regimes.hanging import HangLimits
from rollmill.regimes.monitor import Monitor
from rollmill.regimes.policy_reports import PolicyReports
from rollmill.roles import EVALUATOR, LEARNER
from rollmill.runtime.arena import MemoryPart, describe_parts
from rollmill.runtime.events import Exited, Failed, Handle, Hung, Message, ProcessHung
from rollmill.runtime.signals import comes_here_too
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config

EndedBy = Literal["total_steps", "max_seconds", "target_return", "callback", "signal", "caller"]

_POLL_S = 0.25
_STOP_GRACE_S = 8.0
# After a failure all processes end within five seconds; SIGTERM and SIGKILL take one more.
_FAILURE_GRACE_S = 3.0
# After Ctrl-C all processes end within ten seconds, including stack dumps and kills.
_END_WITHIN_S = 6.5


def watch(
    supervisor: Supervisor,
    config: Config,
    monitor: Monitor,
    reports: PolicyReports,
    callbacks: Callbacks,
    wanted_end: Callable[[], EndedBy | None],
    *,
    is_alone: bool = True,
    memory: Sequence[MemoryPart] = (),
) -> tuple[LearnerFinished, EndedBy, float]:
    """Forward the processes' reports until the run is over; raises errors that end it.

    Args:
        supervisor: The supervisor of the started processes.
        config: The resolved configuration.
        monitor: Receives the run's reports.
        reports: Makes them of the policies' reports.
        callbacks: Notified of checkpoints.
        wanted_end: Called several times a second; returns the reason to end the run, or None.
        is_alone: Whether this is the only rank; with several, a learner also waits for the others.
        memory: Known memory use of the run, for errors when memory runs out.

    Returns:
        The learners' last message, which is not passed on to ``monitor`` yet, what ended the run, and how many seconds
        the other processes have to end.

    Raises:
        ProcessFailed: A process or a callback failed, or a process hung or did not end in time.
        KeyboardInterrupt: The run was interrupted before anything was learned.
    """
    limits = HangLimits(config, is_alone=is_alone)
    last_moment = math.inf
    has_begun = False
    ended_by: EndedBy | None = None

    def grace_s(longest: float = _FAILURE_GRACE_S) -> float:
        return max(0.0, min(longest, last_moment - time.monotonic()))

    def is_ending() -> bool:
        return supervisor.stop_flag.is_set() or wanted_end() == "signal"

    while True:
        end: tuple[LearnerFinished, EndedBy, float] | None = None
        for event in supervisor.poll(_POLL_S):
            if isinstance(event, Failed | Exited) and event.handle.name == EVALUATOR.name:
                # Training does not depend on the evaluator; its remaining networks are evaluated at the end.
                if isinstance(event, Failed) and not is_ending():
                    monitor.warn(f"evaluations stop, training continues: {event.error()}")
                continue
            # Behind the learners' last message, other processes may have left theirs, and may end.
            ended = event if end is None and isinstance(event, Failed | Exited) else None
            if ended is not None and (failure := _unexpected(ended, is_ending)) is not None:
                failure = _blaming_stopped(failure, supervisor.stopped())
                if failure.lacks_memory and memory:
                    known = f"{failure.description} Known of this run: {describe_parts(memory)}."
                    failure = failure._replace(description=known)
                supervisor.stop(grace_s=grace_s())
                raise failure.error()
            if isinstance(event, Message) and isinstance(event.content, LearnerReport):
                has_begun = True
                accounts = supervisor.snapshot()
                if (report := reports.take(event.content, accounts)) is not None:
                    monitor.report(report, accounts, reports.statuses)
            if isinstance(event, Message) and isinstance(event.content, CheckpointWritten):
                callbacks.checkpoint(Path(event.content.path))
            if isinstance(event, Message) and isinstance(event.content, EnvMetrics):
                monitor.take_env_metrics(event.content)
            if isinstance(event, Message) and isinstance(event.content, LearnerNote):
                monitor.note(event.content.text)
            if isinstance(event, Message) and isinstance(event.content, LearnerFinished):
                finished = reports.finish(event.content, supervisor.snapshot())
                if finished is None:
                    continue
                if finished.stopped_by_others:
                    ended_by = "caller"  # The learner's stop flag looks like a signal.
                if ended_by is None:
                    ended_by = "signal" if supervisor.stop_flag.is_set() else "total_steps"
                end = finished, ended_by, grace_s(_STOP_GRACE_S)
        if end is not None:
            return end
        wanted = wanted_end()
        if ended_by is None:
            if monitor.is_time_up:
                ended_by = "max_seconds"
            elif supervisor.stop_flag.is_set():
                ended_by = "signal"  # The learner received it and set the flag.
            else:
                ended_by = wanted
            if ended_by is not None:
                supervisor.stop_flag.set()
        if last_moment == math.inf and not {ended_by, wanted}.isdisjoint({"signal", "caller"}):
            last_moment = time.monotonic() + _END_WITHIN_S  # the caller waits
        if time.monotonic() > last_moment:
            raise _did_not_end(supervisor) if has_begun else KeyboardInterrupt
        for hung in limits.check(supervisor):
            error = hung_error(supervisor, hung, limits)
            if hung.handle.name == EVALUATOR.name:
                monitor.warn(f"evaluations stop, training continues: {error}")
                continue
            supervisor.stop(grace_s=grace_s())
            raise error


def hung_error(supervisor: Supervisor, hung: Hung, limits: HangLimits) -> ProcessHung:
    """Kill a hung process, so that the learner has time to save."""
    # A stopped process cannot respond.
    stacks = "" if hung.is_stopped else supervisor.stacks(hung.handle)
    supervisor.kill(hung.handle)
    return hung.error(stacks, limits.advice_for(hung))


def _blaming_stopped(failure: Failed, stopped: Sequence[Handle]) -> Failed:
    """Add to a failure the processes that a signal has stopped, which may be the cause."""
    others = ", ".join(str(handle) for handle in stopped if handle != failure.handle)
    if not others:
        return failure
    return failure._replace(
        description=f"{failure.description} Stopped by a signal such as SIGSTOP, and perhaps the cause: {others}."
    )


def _unexpected(event: Failed | Exited, is_ending: Callable[[], bool]) -> Failed | None:
    """Return the failure for a process's end; None if the end of the run caused it.

    Raises:
        KeyboardInterrupt: SIGTERM ended the learner before it handled the signal: nothing is learned yet.
    """
    is_learner = event.handle.name == LEARNER.name
    if isinstance(event, Failed):
        if not was_signalled_with_us(event, is_ending):
            return event
        if is_learner:
            raise KeyboardInterrupt
        return None
    if is_ending() and not is_learner:
        return None
    return exited_early(event)


def exited_early(event: Exited) -> Failed:
    """Return the failure for an early exit with code 0."""
    text = f"{event.handle} exited with code 0 before its work was done: something in it called exit."
    return Failed(event.handle, text, "")


def was_signalled_with_us(event: Failed, is_ending: Callable[[], bool]) -> bool:
    """Whether a process died of a SIGTERM to every process of the run, as sent by Slurm and systemd."""
    return event.killed_by == signal.SIGTERM and comes_here_too(is_ending)


def _did_not_end(supervisor: Supervisor) -> ProcessHung:
    """Kill all processes, and return an error with the learner's phase."""
    learner = next(handle for handle in supervisor.handles if handle.name == LEARNER.name)
    phase = supervisor.snapshot()[LEARNER.name].current_phase
    stacks = supervisor.stacks(learner)
    supervisor.stop(grace_s=0.0)
    return ProcessHung(
        f"{learner} did not end within {_END_WITHIN_S} s of the request: it is in phase {phase!r}. It was killed; "
        "progress since the newest checkpoint is lost.",
        stacks,
    )
