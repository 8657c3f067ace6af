"""The reports of several policies as one report of the run, and the metrics of each policy."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rollmill.learning.report import (
    RECENT_EPISODES,
    LearnerFinished,
    LearnerReport,
    PolicyLag,
)
from rollmill.regimes.monitor import Monitor
from rollmill.regimes.setup import RunSetup
from rollmill.regimes.steps_done import saved_steps
from rollmill.reporting.metrics import MetricsWriter, read_metrics
from rollmill.reporting.status import PolicyStatus
from rollmill.runtime.ledger import ProcessAccount
from rollmill.storage.episodes import newest_episodes
from rollmill.tracking.trackers import Trackers

_SIZE, _SAMPLES_PER_INSERT = "replay/size", "replay/samples_per_insert"
_SUMS_OF_REPLAY = (_SIZE, "replay/total_priority", "replay/batches_skipped", "replay/late_priorities")


class PolicyReports:
    """Combines the newest reports of all policies; the reports of a single policy stay as they are.

    Args:
        names: The policies' names.
        monitors: Of each policy, which write its metrics; empty for a single one.
        num_tasks: Number of tasks; 0 without several.

    Attributes:
        statuses: Name -> each policy, where there are several.
    """

    def __init__(self, names: Sequence[str], monitors: Sequence[Monitor] = (), *, num_tasks: int = 0) -> None:
        self._names = names
        self._monitors = monitors
        self._num_tasks = num_tasks
        self._newest: dict[int, LearnerReport] = {}
        # The rows of each policy since the last row of the run.
        self._rows: dict[int, list[LearnerReport]] = {}
        self._finished: dict[int, LearnerFinished] = {}
        self.statuses: dict[str, PolicyStatus] = {}

    def take(self, report: LearnerReport, accounts: Mapping[str, ProcessAccount]) -> LearnerReport | None:
        """Return the run's report after a policy's; None until each policy has reported.

        It is a row when every policy has sent one, or one of them a second one.
        """
        if len(self._names) == 1:
            return report
        self._take(report, accounts)
        have_all_reported = len(self._newest) == len(self._names)
        rows: list[LearnerReport] = []
        if report.is_row:
            if have_all_reported and report.policy in self._rows:
                rows = self._take_rows()
            self._rows.setdefault(report.policy, []).append(report)
            if have_all_reported and len(self._rows) == len(self._names):
                rows += self._take_rows()
        return self._combined(rows) if have_all_reported else None

    def finish(self, finished: LearnerFinished, accounts: Mapping[str, ProcessAccount]) -> LearnerFinished | None:
        """Return the run's last message after a policy's; None until each policy has finished."""
        if len(self._names) == 1:
            return finished
        policy = finished.report.policy
        self._take(finished.report, accounts)
        self._finished[policy] = finished
        if finished.report.is_row:
            self._rows.setdefault(policy, []).append(finished.report)
        if len(self._finished) < len(self._names):
            return None
        stopped = any(each.stopped_by_others for each in self._finished.values())
        return replace(finished, report=self._combined(self._take_rows()), stopped_by_others=stopped)

    def _take_rows(self) -> list[LearnerReport]:
        rows, self._rows = [row for of_policy in self._rows.values() for row in of_policy], {}
        return rows

    def _take(self, report: LearnerReport, accounts: Mapping[str, ProcessAccount]) -> None:
        self._newest[report.policy] = report
        status = self._monitors[report.policy].report(report, accounts)
        self.statuses[self._names[report.policy]] = PolicyStatus(
            agent_steps=report.agent_steps,
            steps_per_second=status.steps_per_second,
            episode_return=status.episode_return,
            rating=report.figures.get("rating"),
            lag=status.policy_lag_mean,
        )

    def _combined(self, rows: Iterable[LearnerReport]) -> LearnerReport:
        """Return the sums and means of the newest reports, with the losses and lags of these rows."""
        reports, rows = [self._newest[policy] for policy in range(len(self._names))], list(rows)
        first, share = reports[0], -(-RECENT_EPISODES // len(reports))
        return LearnerReport(
            agent_steps=sum(report.agent_steps for report in reports),
            batches=sum(report.batches for report in reports),
            sgd_steps=sum(report.sgd_steps for report in reports),
            policy_version=max(report.policy_version for report in reports),
            episodes=sum(report.episodes for report in reports),
            recent_episodes=tuple(
                episode
                for report in reports
                for episode in newest_episodes(report.recent_episodes, share, self._num_tasks)
            ),
            learning_rate=first.learning_rate,
            fast_path=first.fast_path,
            losses=_means([row.losses for row in rows]),
            lag=None if first.lag is None else _lag([row.lag for row in rows if row.lag], reports),
            training_s=max(report.training_s for report in reports),
            precision=first.precision,
            figures=self._figures() | _of_tasks(reports) | _of_replay(reports, rows),
            is_row=bool(rows),
            at=max(report.at for report in reports),
        )

    def _figures(self) -> dict[str, float | None]:
        """Return the columns of all policies in the run's metrics."""
        found: dict[str, float | None] = {}
        for name in self._names:
            status = self.statuses[name]
            found[f"policy/{name}/agent_steps"] = status.agent_steps
            found[f"policy/{name}/episode_return"] = status.episode_return
            if status.rating is not None:
                found[f"policy/{name}/rating"] = status.rating
        return found


def resumes_at(run_setup: RunSetup, policy: int) -> int | None:
    """Return the agent steps of a policy after which a resumed run repeats its metrics; None for a new run."""
    if not run_setup.resume:
        return None
    inserted = run_setup.memory.inserted
    return inserted[policy] if inserted else saved_steps([run_setup.folder_of(policy)])


def policy_monitors(run_setup: RunSetup, trackers: Trackers | None) -> list[Monitor]:
    """Build what writes the metrics of each policy into its folder, and passes them to the trackers."""
    monitors = []
    for policy, config in enumerate(run_setup.config.policies):
        folder, name = run_setup.folder_of(policy), run_setup.config.population.names[policy]
        folder.mkdir(parents=True, exist_ok=True)
        kept = resumes_at(run_setup, policy)
        writer = MetricsWriter(folder, resume_at_steps=kept, trackers=trackers, policy=name)
        earlier = read_metrics(folder) if run_setup.resume else []  # without the rows that the writer has removed
        monitors.append(
            Monitor(
                replace(config, max_seconds=None, target_return=None),
                run_setup.probed,
                writer=writer,
                display=None,
                time_before_s=float(earlier[-1].get("time_s", 0.0)) if earlier else 0.0,
                earlier=earlier,
                num_policies=len(run_setup.config.population.names),
                prefix=f"policy {name}: ",
            )
        )
    return monitors


def _means(losses: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each loss over the policies that have it."""
    names = dict.fromkeys(name for of_policy in losses for name in of_policy)
    return {name: statistics.fmean(each[name] for each in losses if name in each) for name in names}


def _of_tasks(reports: Sequence[LearnerReport]) -> dict[str, float | None]:
    """Return the columns of tasks and scores, as means over the policies that have them."""
    names = dict.fromkeys(name for report in reports for name in report.figures if name.startswith(("task/", "score/")))
    found: dict[str, float | None] = {}
    for name in names:
        values = [value for report in reports if (value := report.figures.get(name)) is not None]
        found[name] = statistics.fmean(values) if values else None
    return found


def _of_replay(reports: Sequence[LearnerReport], rows: Sequence[LearnerReport]) -> dict[str, float | None]:
    """Return the columns of the replay that the policies share; empty in other regimes."""
    newest = [report.figures for report in reports]
    if not all(_SIZE in figures for figures in newest):
        return {}

    def values(column: str, given: Sequence[Mapping[str, float | None]] = newest) -> list[float]:
        return [value for figures in given if (value := figures.get(column)) is not None]

    found: dict[str, float | None] = {column: sum(values(column)) for column in _SUMS_OF_REPLAY}
    found["replay/max_priority"] = max(values("replay/max_priority"))
    steps = max(1, sum(report.agent_steps for report in reports))
    inserts = zip(values(_SAMPLES_PER_INSERT), (report.agent_steps for report in reports), strict=True)
    found[_SAMPLES_PER_INSERT] = sum(samples * of_policy for samples, of_policy in inserts) / steps
    ages = values("replay/age", [row.figures for row in rows])
    found["replay/age"] = statistics.fmean(ages) if ages else None
    return found


def _lag(rows: Sequence[PolicyLag], reports: Sequence[LearnerReport]) -> PolicyLag:
    """Return the lag of all policies' samples since the run's last row."""
    known = [lag for lag in rows if lag.mean is not None and lag.maximum is not None]
    longest = max((len(lag.histogram) for lag in known), default=0)
    histogram = np.zeros(longest, np.int64)
    for lag in known:
        histogram[: len(lag.histogram)] += lag.histogram
    versions = [lag.versions_per_trajectory for lag in known if lag.versions_per_trajectory is not None]
    newest = [report.lag for report in reports if report.lag is not None]
    # The histogram counts the samples.
    samples = [sum(lag.histogram) for lag in known]
    mean = None
    if known:
        mean = statistics.fmean([lag.mean or 0.0 for lag in known], samples if sum(samples) else None)
    return PolicyLag(
        mean=mean,
        maximum=max((lag.maximum for lag in known if lag.maximum is not None), default=None),
        histogram=tuple(histogram.tolist()),
        versions_per_trajectory=statistics.fmean(versions) if versions else None,
        stale_samples=sum(lag.stale_samples for lag in newest),
        invalid_samples=sum(lag.invalid_samples for lag in newest),
    )
