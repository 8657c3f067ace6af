"""The loop of a campaign: start runs where there is room, follow them, and show how far they are."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from rollmill.campaigns.follow import RunLength
from rollmill.campaigns.jobs import ENDED, Campaign, CampaignFailedError, Job, Record
from rollmill.campaigns.progress import CampaignDisplay, Progress, RunProgress
from rollmill.campaigns.run_queue import RunningJob, RunQueue
from rollmill.runtime.signals import StopSignals

_POLL_S = 0.2
_FOLLOW_EVERY_S = 1.0
_SAME_FAILURES = 3
# Which process an error's first line names: it differs from run to run.
_PROCESS = re.compile(r"[- ]?\d* \(pid \d+\)")


class Source(Protocol):
    """Decides which runs there are."""

    @property
    def total(self) -> int:
        """The number of runs, ended ones included."""
        ...

    @property
    def names(self) -> Collection[str]:
        """The runs that have been planned so far; the folder may hold others."""
        ...

    def take(self) -> Job | None:
        """Return the next run to be started; None if none can be started now."""
        ...

    def length(self, job: Job) -> RunLength:
        """When a run ends."""
        ...

    def is_hopeless(self, running: RunningJob) -> bool:
        """Whether to end a run early; called when it has reported new metrics."""
        ...

    def ended(self, record: Record) -> None:
        """Take the result of a run: done, failed or pruned."""
        ...


def run_all(campaign: Campaign, source: Source, *, jobs: int, title: str, quiet: bool) -> bool:
    """Run until there is nothing left to run.

    Args:
        campaign: Keeps the state.
        source: Says what to run.
        jobs: Runs at the same time.
        title: What the display calls the campaign.
        quiet: Whether to show nothing.

    Returns:
        False if Ctrl-C or SIGTERM ended it before.

    Raises:
        CampaignError: The first runs have all failed in the same way.
        KeyboardInterrupt: A second Ctrl-C; the runs were killed.
    """
    followed_at = 0.0
    ends: list[Record] = []
    before = float(sum(record.status in ENDED for record in _records(campaign, source)))
    with (
        StopSignals() as signals,
        CampaignDisplay(title, quiet=quiet) as display,
        RunQueue(campaign, jobs, is_ending=lambda: signals.received is not None) as queue,
    ):
        began = time.monotonic()
        while signals.received is None:
            while queue.has_room and (job := source.take()) is not None:
                started = queue.start(job)
                started.follower.update()
                before += _share(started, source)
            if not queue.running:
                display.update(_progress(campaign, source, (), time.monotonic() - began, before))
                return True
            time.sleep(_POLL_S)
            for record in queue.poll():
                if record.status in ENDED:
                    source.ended(record)
                    display.ended(record)
                    ends.append(record)
            _refuse_the_same_failures(ends)
            if time.monotonic() - followed_at < _FOLLOW_EVERY_S:
                continue
            followed_at = time.monotonic()
            for running in queue.running:
                if running.follower.update() and source.is_hopeless(running):
                    queue.stop(running.job.name, "pruned")
            display.update(_progress(campaign, source, queue.running, time.monotonic() - began, before))
        if queue.running:
            display.note(f"ending {len(queue.running)} run(s), which save what they have learned (lockstep: partly)")
    return False


def _refuse_the_same_failures(ends: Sequence[Record]) -> None:
    """Raise where nothing but one failure has come of the first runs: the others would fail as well."""
    errors = {_PROCESS.sub("", record.error.partition("\n")[0]) for record in ends}
    if len(ends) >= _SAME_FAILURES and errors != {""} and len(errors) == 1:
        raise CampaignFailedError(
            f"the first {len(ends)} runs have failed in the same way: {ends[0].error}\nCorrect it, and repeat the "
            "command with --retry-failed (retry_failed=True)"
        )


def _progress(
    campaign: Campaign, source: Source, running: Sequence[RunningJob], elapsed_s: float, before: float
) -> Progress:
    statuses = [record.status for record in _records(campaign, source)]
    return Progress(
        total=source.total,
        done=statuses.count("done"),
        pruned=statuses.count("pruned"),
        failed=statuses.count("failed"),
        before=before,
        elapsed_s=elapsed_s,
        running=[_of_run(each, source) for each in running],
    )


def _records(campaign: Campaign, source: Source) -> list[Record]:
    return [campaign.records[name] for name in source.names if name in campaign.records]


def _share(running: RunningJob, source: Source) -> float:
    return running.follower.share(source.length(running.job))


def _of_run(running: RunningJob, source: Source) -> RunProgress:
    newest = running.follower.rows[-1] if running.follower.rows else {}
    return RunProgress(
        name=running.job.name,
        share=_share(running, source),
        seconds=time.monotonic() - running.started_at,
        episode_return=newest.get("episode_return"),
        steps_per_second=newest.get("steps_per_second"),
    )
