"""Mutations: how often, by how much, and within which bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.pbt.config import PbtConfig
from rollmill.pbt.mutation import mutated

VALUES = {"learning_rate": 1e-3, "entropy_coef": 0.01, "adam_beta1": 0.9}


def many(values: dict[str, float], rate: float | None = None, count: int = 4000, **settings: Any) -> dict[str, Any]:
    config, random = PbtConfig(mutate=tuple(values), **settings), np.random.default_rng(0)
    drawn = [mutated(values, config, random, rate=rate) for _ in range(count)]
    return {name: np.array([each[name] for each in drawn]) for name in values}


def test_a_number_is_mutated_with_its_probability_up_or_down_alike() -> None:
    drawn = many(VALUES)["learning_rate"]
    shares = {value: np.mean(np.isclose(drawn, value)) for value in (1e-3, 1.2e-3, 1e-3 / 1.2)}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[1e-3] == pytest.approx(0.85, abs=0.02)
    assert shares[1.2e-3] == pytest.approx(0.075, abs=0.015)


def test_factors_of_a_range() -> None:
    drawn = many(VALUES, rate=1.0, factor=(1.1, 1.5))["entropy_coef"] / 0.01
    up = drawn[drawn > 1]
    assert (up.min(), up.max()) == (pytest.approx(1.1, abs=0.01), pytest.approx(1.5, abs=0.01))
    assert ((1 / drawn[drawn < 1] >= 1.1 - 1e-9) & (1 / drawn[drawn < 1] <= 1.5 + 1e-9)).all()
    assert len(np.unique(drawn)) > 1000


def test_numbers_near_one_change_their_distance_from_it() -> None:
    drawn = many({"discount": 0.99, "gae_lambda": 1.0, "adam_beta2": 0.999}, rate=1.0)
    assert set(np.round(1 - drawn["discount"], 6)) == {0.012, round(0.01 / 1.2, 6)}
    assert (drawn["gae_lambda"] < 1).all()
    assert (drawn["adam_beta2"] < 1).all()


def test_limits_and_rules_bound_what_is_drawn() -> None:
    limits = {"learning_rate": "9e-4,1.1e-3", "entropy_coef": (0.01, 0.01)}
    drawn = many(VALUES, rate=1.0, limits=limits)
    assert set(drawn["learning_rate"]) == {9e-4, 1.1e-3}
    assert set(drawn["entropy_coef"]) == {0.01}
    assert set(many({"entropy_coef": 0.0}, rate=1.0)["entropy_coef"]) == {0.0}


def test_one_number_s_draws_do_not_depend_on_another_one_s_mutation() -> None:
    config = PbtConfig(mutate=("learning_rate", "entropy_coef"))
    never = PbtConfig(mutate=("learning_rate", "entropy_coef"), limits={"learning_rate": (1e-3, 1e-3)})
    one, other = (
        [mutated(VALUES, each, np.random.default_rng(seed), rate=0.5)["entropy_coef"] for seed in range(50)]
        for each in (config, never)
    )
    assert one == other
