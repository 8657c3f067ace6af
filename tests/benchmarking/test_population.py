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


def test_a_policys_speed_is_that_between_its_batches() -> None:
    arrivals = population.Arrivals()
    for time_s, a, b in [(1, 0, 10), (2, 20, 10), (3, 20, 20), (4, 40, 30), (6, 60, 30), (7, 60, 40), (9, 80, 40)]:
        figures = {"policy/a/agent_steps": float(a), "policy/b/agent_steps": float(b), "policy/a/rating": 1.0}
        arrivals.take(LearnerReport(agent_steps=a + b, figures=figures), float(time_s))
    # After two batches of each: a learned 20 from the 6th to the 9th second, b 10 from the 4th to the 7th.
    assert arrivals.steps_per_second == pytest.approx(20 / 3 + 10 / 3)
    assert arrivals.have_lasted(1.0)
    assert not arrivals.have_lasted(1.5)


def test_too_few_batches_are_no_measurement() -> None:
    arrivals = population.Arrivals()
    arrivals.take(LearnerReport(agent_steps=5), 1.0)
    with pytest.raises(TooShortError):
        _ = arrivals.steps_per_second
