"""Rows of metrics from the learner's reports."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest

from rollmill.envs.info_metrics import EnvMetrics
from rollmill.learning.report import LearnerReport, PolicyLag
from rollmill.regimes.metric_rows import row_of, sums_of
from rollmill.reporting.ledger_report import Stage
from rollmill.reporting.metric_table import METRICS
from rollmill.reporting.status import Status
from rollmill.storage.episodes import EpisodeEnd

STATUS = Status(
    name="a run",
    agent_steps=120,
    total_steps=1000,
    frames=480,
    time_s=3.5,
    steps_per_second=40.0,
    frames_per_second=160.0,
    episode_return=2.0,
    episode_length=6.0,
    policy_lag_expected=1.5,
)
REPORT = LearnerReport(
    agent_steps=120,
    batches=3,
    sgd_steps=12,
    policy_version=9,
    episodes=70,
    recent_episodes=(EpisodeEnd(1.0, 5), EpisodeEnd(3.0, 7)),
    learning_rate=1e-3,
)


def test_a_row_has_the_counters_of_the_report_and_the_speeds_of_the_status() -> None:
    assert row_of(REPORT, STATUS, {}, env={}, time_before_s=100.0) == {
        "time_s": 103.5,
        "agent_steps": 120,
        "frames": 480,
        "batches": 3,
        "sgd_steps": 12,
        "policy_version": 9,
        "steps_per_second": 40.0,
        "frames_per_second": 160.0,
        "episodes": 70,
        "episode_return": 2.0,
        "episode_return_std": statistics.pstdev([1.0, 3.0]),
        "episode_length": 6.0,
        "learning_rate": 1e-3,
    }


def test_what_was_not_measured_is_null() -> None:
    status = Status(
        name="a run", agent_steps=0, total_steps=1, frames=0, time_s=0.0, steps_per_second=None, frames_per_second=None
    )
    row = row_of(LearnerReport(agent_steps=0), status, {}, env={"env/score": None}, time_before_s=0.0)
    empty = {"steps_per_second", "frames_per_second", "episode_return", "episode_return_std", "episode_length"}
    assert {key for key, value in row.items() if value is None} == empty | {"env/score"}


def test_an_infinite_return_has_no_spread() -> None:
    report = replace(REPORT, recent_episodes=(EpisodeEnd(1.0, 5), EpisodeEnd(float("-inf"), 7)))
    assert row_of(report, STATUS, {}, env={}, time_before_s=0.0)["episode_return_std"] is None


def test_losses_environments_figures_and_shares_have_their_groups() -> None:
    report = replace(REPORT, losses={"policy": 0.5}, figures={"replay/age": None, "replay/size": 7.0})
    shares = {"learner": Stage({"learning": 0.75, "waiting for batches": 0.25})}
    row = row_of(report, STATUS, shares, env={"env/coins": 3.0}, time_before_s=0.0)
    assert {key: value for key, value in row.items() if "/" in key} == {
        "loss/policy": 0.5,
        "replay/age": None,
        "replay/size": 7.0,
        "env/coins": 3.0,
        "share/learner/learning": 0.75,
        "share/learner/waiting for batches": 0.25,
    }


@pytest.mark.parametrize(
    ("histogram", "shown"),
    [((), []), ((0, 0, 0), []), ((4, 0, 2, 0, 0), [4, 0, 2]), ((0, 0, 1), [0, 0, 1])],
)
def test_a_row_of_an_on_policy_run_has_its_lag_up_to_the_last_that_occurred(
    histogram: tuple[int, ...], shown: list[int]
) -> None:
    lag = PolicyLag(
        mean=0.5, maximum=2, histogram=histogram, versions_per_trajectory=1.25, stale_samples=8, invalid_samples=9
    )
    row = row_of(replace(REPORT, lag=lag), STATUS, {}, env={}, time_before_s=0.0)
    found = {key: value for key, value in row.items() if "lag" in key or "samples" in key or "versions" in key}
    assert found == {
        "policy_lag_mean": 0.5,
        "policy_lag_max": 2,
        "policy_lag_expected": 1.5,
        "policy_lag_histogram": shown,
        "versions_per_trajectory": 1.25,
        "stale_samples": 8,
        "invalid_samples": 9,
    }
    assert found.keys() == {metric.name for metric in METRICS["Policy lag"]}
    assert json.loads(json.dumps(row)) == row


def test_returns_of_agents_and_numbers_of_environments_have_keys_of_their_own() -> None:
    told = EnvMetrics({"left": (3.0, 2)}, {}, {"left": (1.0, 4)})
    assert sums_of(told) == {"env/left": (3.0, 2), "agent/left/episode_return": (1.0, 4)}
