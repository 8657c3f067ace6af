"""``rollmill bench population``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.benchmarking import population
from rollmill.benchmarking.footprint import Footprint
from rollmill.benchmarking.stepping import TooShortError
from rollmill.benchmarking.subject import Subject
from rollmill.benchmarking.summary import summary
from rollmill.learning.report import LearnerReport
from rollmill.settings.config import Config
from rollmill.settings.value_checks import ConfigError

SMALL: dict[str, Any] = {"num_envs": 12, "learner.batch_size": 192, "learner.micro_batch": 48, "learner.minibatches": 4}


@pytest.mark.slow
def test_every_number_of_policies_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(population, "_ROUNDS", 1)
    monkeypatch.setattr(population, "COUNTS", (1, 12))
    result: Any = population.run(Subject("gym/CartPole-v1", SMALL), seconds=2.0)
    assert set(result["policies"]) == {"1", "12"}
    assert min(result["policies"].values()) > 0
    assert result["loss_12"] == pytest.approx(1 - result["policies"]["12"] / result["policies"]["1"])
    assert result["processes"]["1"] == result["processes"]["12"] > 3
    assert "2 of 2: 12 policies, " in capsys.readouterr().err
    assert "Twelve policies cost" in summary("population", result)


def test_a_number_of_policies_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"population\.policies: `bench population` measures 1, 4, 8, 12"):
        population.run(Subject("gym/CartPole-v1", {"policies": 3}), seconds=1.0)


@pytest.mark.parametrize("how", [{"algo": "dqn"}, {"overrides": {"regime": "replay", "off_policy.algorithm": "dqn"}}])
def test_a_replay_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="regime='replay': `bench population` counts"):
        population.run(Subject("gym/CartPole-v1", **how), seconds=1.0)


@pytest.mark.parametrize(
    ("given", "rate"), [({}, 1e-9), ({"learner.learning_rate": 0.5}, 0.5), ({"learner.schedule": "linear"}, 1e-3)]
)
def test_policies_hardly_learn_unless_they_are_told_to(
    given: dict[str, Any], rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []

    def measure(config: Config, seconds: float) -> tuple[float, Footprint]:
        rates.append(config.optimiser.learning_rate)
        return 1.0, Footprint(1, 1)

    monkeypatch.setattr(population, "_measure", measure)
    population.run(Subject("gym/CartPole-v1", given), seconds=1.0)
    assert rates == [rate] * 8


def reports(arrivals: population.Arrivals, *rows: tuple[float, int, int]) -> None:
    for time_s, a, b in rows:
        figures = {"policy/a/agent_steps": float(a), "policy/b/agent_steps": float(b), "policy/a/rating": 1.0}
        arrivals.take(LearnerReport(agent_steps=a + b, figures=figures), float(time_s))


def test_the_steps_of_a_batch_are_spread_over_the_seconds_before_it() -> None:
    arrivals = population.Arrivals(2.0)
    reports(arrivals, (1, 0, 0), (2, 20, 0), (4, 20, 10))  # begins a second later
    reports(arrivals, (6, 40, 10), (7, 40, 10))
    assert not arrivals.is_complete, "the batches that are under way at the end tell how much of them is learned"
    reports(arrivals, (8, 40, 50), (10, 90, 50))
    assert arrivals.is_complete
    # From 5 to 7 s: half of a's 20 steps that were learned at 6 s, and half of b's 40 that were learned at 8 s.
    assert arrivals.steps_per_second == pytest.approx((10 + 20) / 2)


def test_speed_does_not_depend_on_when_the_measurement_begins() -> None:
    random, speeds = np.random.default_rng(0), []
    for _ in range(200):
        arrivals = population.Arrivals(2.0)
        ends = np.cumsum(random.exponential(1.0, (2, 40)), axis=1)  # a batch of ten steps each second on average
        for time_s in np.sort(ends.ravel()):
            reports(arrivals, (time_s, *(10 * (ends <= time_s).sum(axis=1)).tolist()))
            if arrivals.is_complete:
                break
        speeds.append(arrivals.steps_per_second)
    assert np.mean(speeds) == pytest.approx(20.0, abs=3 * np.std(speeds) / np.sqrt(len(speeds)))


def test_policies_that_pause_count_as_much_as_they_learn() -> None:
    random, speeds = np.random.default_rng(0), []
    for _ in range(400):
        arrivals = population.Arrivals(2.0)
        # They take turns of six seconds, in which they learn from two batches a second.
        ends = np.cumsum(random.exponential(0.5, (2, 100)), axis=1)
        ends += 6.0 * (ends // 6.0 + [[0.0], [1.0]]) - random.uniform(0.0, 12.0)
        for time_s in np.sort(ends[ends > 0].ravel()):
            reports(arrivals, (time_s, *(10 * (ends <= time_s).sum(axis=1)).tolist()))
            if arrivals.is_complete:
                break
        speeds.append(arrivals.steps_per_second)
    assert np.mean(speeds) == pytest.approx(20.0, abs=3 * np.std(speeds) / np.sqrt(len(speeds)))


def test_a_policy_that_draws_few_environments_is_not_waited_for() -> None:
    arrivals = population.Arrivals(1.0)
    reports(arrivals, (1, 0, 0), (2, 10, 10), (3, 20, 10), (4, 30, 10))  # begins at 2.5 s
    assert not arrivals.is_complete
    reports(arrivals, (5, 40, 10))
    assert arrivals.is_complete
    assert arrivals.steps_per_second == pytest.approx(10.0)


def test_no_batch_at_all_is_no_measurement() -> None:
    arrivals = population.Arrivals(1.0)
    reports(arrivals, (1, 10, 10), (2, 20, 20), (3, 20, 20), (4, 20, 20))
    assert not arrivals.is_complete
    reports(arrivals, (5, 20, 20))
    assert arrivals.is_complete
    with pytest.raises(TooShortError):
        _ = arrivals.steps_per_second


def test_a_policy_that_never_learns_does_not_keep_the_measurement_from_beginning() -> None:
    arrivals = population.Arrivals(1.0)
    reports(arrivals, *((second, 10 * (second - 1), 0) for second in range(1, 15)))
    assert arrivals.is_complete
    assert arrivals.steps_per_second == pytest.approx(10.0)
