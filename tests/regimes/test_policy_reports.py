"""One report of a run from those of its policies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollmill.api import make_config
from rollmill.learning.report import LearnerFinished, LearnerReport, PolicyLag
from rollmill.regimes.monitor import Monitor
from rollmill.regimes.policy_reports import PolicyReports
from rollmill.regimes.setup import NetworkSizes, Probed
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead, EnvSpec
from rollmill.storage.episodes import EpisodeEnd

PROBED = Probed(
    EnvSpec(
        name="any",
        observation={"obs": ArraySpec(shape=(3,), dtype="float32")},
        action=ActionSpec(heads=(CategoricalHead(n=2),), structure="discrete"),
    ),
    (NetworkSizes(0, 0, 0),) * 2,
)


@pytest.fixture
def reports() -> PolicyReports:
    config = make_config("gym/CartPole-v1")
    return PolicyReports(["a", "b"], [Monitor(config, PROBED, writer=None, display=None) for _ in range(2)])


def report_of(policy: int, *, steps: int = 100, is_row: bool = True) -> LearnerReport:
    return LearnerReport(
        agent_steps=steps,
        batches=2,
        sgd_steps=4,
        policy_version=4 + policy,
        episodes=10,
        recent_episodes=(EpisodeEnd(float(policy), 5),) * 100,
        losses={"value": 1.0 + policy} if is_row else {},
        lag=PolicyLag(mean=1.0 + 2 * policy, maximum=3 + policy, histogram=(policy, 1), stale_samples=7),
        figures={"rating": 10.0 * policy},
        policy=policy,
        is_row=is_row,
    )


def test_a_single_policys_report_is_the_runs() -> None:
    report = report_of(0)
    single = PolicyReports(["0"])
    assert single.take(report, {}) is report
    finished = LearnerFinished(report, "file")
    assert single.finish(finished, {}) is finished
    assert single.statuses == {}


def test_the_run_has_a_row_when_each_policy_has_sent_one(reports: PolicyReports) -> None:
    assert reports.take(report_of(0), {}) is None
    row = reports.take(report_of(1, steps=50), {})
    assert row is not None
    assert row.is_row
    assert (row.agent_steps, row.batches, row.sgd_steps, row.episodes, row.policy_version) == (150, 4, 8, 20, 5)
    assert sorted(end.episode_return for end in row.recent_episodes) == [0.0] * 50 + [1.0] * 50
    assert row.losses == {"value": 1.5}
    assert row.lag == PolicyLag(mean=7 / 3, maximum=4, histogram=(1, 2), stale_samples=14)
    assert row.figures["policy/b/rating"] == 10.0
    assert (row.figures["policy/a/agent_steps"], row.figures["policy/a/episode_return"]) == (100, 0.0)
    assert list(reports.statuses) == ["a", "b"]
    between = reports.take(report_of(0, steps=120), {})
    assert between is not None
    assert not between.is_row
    assert between.agent_steps == 170


def test_the_episodes_of_all_policies_are_as_many_of_each_task() -> None:
    config, spec = make_config("gym/CartPole-v1"), replace(PROBED.spec, tasks=(PROBED.spec, PROBED.spec))
    probed = replace(PROBED, spec=spec)
    monitors = [Monitor(config, probed, writer=None, display=None) for _ in range(2)]
    reports = PolicyReports(["a", "b"], monitors, num_tasks=2)
    # The slow task has ended its episodes before those of the quick one.
    ended = (EpisodeEnd(-200.0, 200, task=1),) * 50 + (EpisodeEnd(10.0, 10, task=0),) * 50
    reports.take(replace(report_of(0), recent_episodes=ended), {})
    combined = reports.take(replace(report_of(1), recent_episodes=ended), {})
    assert combined is not None
    assert [episode.task for episode in combined.recent_episodes] == ([1] * 25 + [0] * 25) * 2
    assert combined.figures["policy/a/episode_return"] == -95.0


def test_a_policy_that_learns_nothing_does_not_hold_up_the_rows(reports: PolicyReports) -> None:
    reports.take(report_of(0), {})
    reports.take(report_of(1, is_row=False), {})
    row = reports.take(report_of(0, steps=200), {})
    assert row is not None
    assert row.is_row


def test_no_row_of_a_policy_is_lost(reports: PolicyReports) -> None:
    def row_of(policy: int, value: float, *, samples: int = 1) -> LearnerReport:
        lag = PolicyLag(mean=value, maximum=9, histogram=(0, samples))
        return replace(report_of(policy), losses={"value": value}, lag=lag)

    reports.take(row_of(0, 1.0), {})
    reports.take(row_of(0, 2.0), {})  # The other one has not reported yet.
    first = reports.take(row_of(1, 6.0), {})
    assert first is not None
    assert first.losses == {"value": 3.0}
    seen = [reports.take(row_of(0, value), {}) for value in (1.0, 3.0, 5.0)]
    assert [report is not None and report.is_row for report in seen] == [False, True, True]
    assert [report.losses for report in seen if report is not None] == [{}, {"value": 1.0}, {"value": 3.0}]
    assert reports.finish(LearnerFinished(row_of(0, 7.0, samples=2), "a.pt"), {}) is None
    last = reports.finish(LearnerFinished(row_of(1, 9.0), "b.pt"), {})
    assert last is not None
    assert last.report.losses == {"value": 7.0}
    assert last.report.lag is not None
    assert last.report.lag.mean == (5.0 + 2 * 7.0 + 9.0) / 4, "of the samples"


def test_the_run_has_finished_when_each_policy_has(reports: PolicyReports) -> None:
    for policy in (0, 1):
        reports.take(report_of(policy), {})
    first = LearnerFinished(report_of(0, steps=300), "a.pt", stopped_by_others=True)
    assert reports.finish(first, {}) is None
    last = reports.finish(LearnerFinished(replace(report_of(1), agent_steps=400), "b.pt"), {})
    assert last is not None
    assert last.report.agent_steps == 700
    assert last.stopped_by_others


def test_the_columns_of_a_replay_are_those_of_all_policies(reports: PolicyReports) -> None:
    def of_replay(policy: int, steps: int, age: float | None) -> LearnerReport:
        figures: dict[str, float | None] = {
            "replay/size": 10.0 * steps,
            "replay/total_priority": 3.0,
            "replay/max_priority": 1.0 + policy,
            "replay/batches_skipped": 1.0,
            "replay/late_priorities": 2.0,
            "replay/samples_per_insert": 4.0 * policy,
            "replay/age": age,
        }
        return replace(report_of(policy, steps=steps), lag=None, figures=figures)

    reports.take(of_replay(0, 100, None), {})
    row = reports.take(of_replay(1, 300, 7.0), {})
    assert row is not None
    found = {name: value for name, value in row.figures.items() if name.startswith("replay/")}
    assert found == {
        "replay/size": 4000.0,
        "replay/total_priority": 6.0,
        "replay/max_priority": 2.0,
        "replay/batches_skipped": 2.0,
        "replay/late_priorities": 4.0,
        "replay/samples_per_insert": 3.0,
        "replay/age": 7.0,
    }
