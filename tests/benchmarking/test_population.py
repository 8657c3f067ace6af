"""``rollmill bench population``."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.benchmarking import population
from rollmill.benchmarking.stepping import TooShortError
from rollmill.benchmarking.summary import summary
from rollmill.learning.report import LearnerReport
from rollmill.settings.value_checks import ConfigError

SMALL: dict[str, Any] = {"num_envs": 12, "learner.batch_size": 192, "learner.micro_batch": 48, "learner.minibatches": 4}


def test_every_number_of_policies_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(population, "_ROUNDS", 1)
    monkeypatch.setattr(population, "COUNTS", (1, 12))
    result: Any = population.run("gym/CartPole-v1", seconds=0.5, overrides=SMALL)
    assert set(result["policies"]) == {"1", "12"}
    assert min(result["policies"].values()) > 0
    assert result["loss_12"] == pytest.approx(1 - result["policies"]["12"] / result["policies"]["1"])
    assert result["processes"]["1"] == result["processes"]["12"] > 3
    assert "Twelve policies cost" in summary("population", result)


def test_a_number_of_policies_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"population\.policies: `bench population` measures 1, 4, 8, 12"):
        population.run("gym/CartPole-v1", seconds=1.0, overrides={"policies": 3})


def reports(arrivals: population.Arrivals, *rows: tuple[int, int, int]) -> None:
    for time_s, a, b in rows:
        figures = {"policy/a/agent_steps": float(a), "policy/b/agent_steps": float(b), "policy/a/rating": 1.0}
        arrivals.take(LearnerReport(agent_steps=a + b, figures=figures), float(time_s))


def test_a_policys_speed_is_that_between_its_batches() -> None:
    arrivals = population.Arrivals(3.0)
    reports(arrivals, (1, 10, 0), (2, 20, 0), (3, 20, 10))
    assert not arrivals.is_complete
    reports(arrivals, (4, 40, 10), (5, 40, 20), (6, 60, 20))
    # From its last batch before the third second: a learned 40 from the 2nd to the 6th, b 10 from the 3rd to the 5th.
    assert arrivals.steps_per_second == pytest.approx(40 / 4 + 10 / 2)
    assert arrivals.is_complete


def test_a_policy_that_draws_few_environments_is_not_waited_for() -> None:
    arrivals = population.Arrivals(1.0)
    reports(arrivals, (1, 10, 10), (2, 20, 10), (3, 30, 10))
    assert arrivals.is_complete
    assert arrivals.steps_per_second == pytest.approx(10.0)


def test_no_batch_at_all_is_no_measurement() -> None:
    arrivals = population.Arrivals(1.0)
    reports(arrivals, (1, 10, 10), (2, 10, 10), (3, 10, 10))
    assert not arrivals.is_complete
    reports(arrivals, (4, 10, 10))
    assert arrivals.is_complete
    with pytest.raises(TooShortError):
        _ = arrivals.steps_per_second


def test_a_policy_that_never_learns_does_not_keep_the_measurement_from_beginning() -> None:
    arrivals = population.Arrivals(1.0)
    reports(arrivals, (1, 10, 0), (2, 20, 0), (3, 30, 0), (4, 40, 0))
    assert arrivals.is_complete
    assert arrivals.steps_per_second == pytest.approx(10.0)
