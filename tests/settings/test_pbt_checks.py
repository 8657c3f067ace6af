"""Runs with population-based training that are refused, and what is mutated in others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import rollmill
from rollmill.settings.pbt_checks import mutated_numbers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"population\.pbt=True with one policy: give several, for example --policies 4"),
        ({"policies": 2, "policy.1.model.mlp_sizes": (8,)}, "policies 0 and 1 have other networks"),
        ({"policies": 2, "policy.1.learner.optimiser": "rmsprop"}, "policies 0 and 1 have other networks"),
        (
            {"policies": 2, "learner.optimiser": "rmsprop", "pbt.mutate": "adam_beta1"},
            "policy 0 has no adam_beta1 that may change",
        ),
        ({"policies": 2, "pbt.mutate": "discont"}, "pbt.mutate has 'discont': give names among learning_rate"),
        ({"policies": 2, "pbt.limits.nosuch": "0,1"}, "pbt.limits has 'nosuch': give names among"),
        (
            {"policies": 2, "pbt.limits.discount": "0.9,0.99"},
            r"pbt\.limits\.discount: this run .*add the number to",
        ),
        ({"policies": 2, "pbt.mutate": "entropy_coef"}, "begins with 0, which no factor changes"),
        (
            {"policies": 2, "pbt.mutate": "gae_lambda", "policy.1.learner.gae_lambda": 1.0},
            "policy 1 begins with 1, whose distance from 1 no factor changes",
        ),
        (
            {"policies": 2, "learner.entropy_coef": 0.0, "policy.1.learner.entropy_coef": 0.01},
            r"pbt\.mutate \(auto\) has entropy_coef, but policy 0 begins with 0, which no factor changes",
        ),
        (
            {"policies": 2, "learner.entropy_coef": 0.01, "policy.1.learner.entropy_coef": 0.0},
            r"pbt\.mutate \(auto\) has entropy_coef, but policy 1 begins with 0",
        ),
        (
            {
                "policies": 2,
                "pbt.explore": "pb2",
                "learner.reward_weights": {"energy": -2.0},
                "policy.1.learner.reward_weights.energy": 1.0,
            },
            r"reward_weight\.energy, but policies begin with values from -2 to 1: give .*energy=-2,1",
        ),
        (
            {"policies": 2, "pbt.mutate": "clip_range", "pbt.limits.clip_range": "0.1,2"},
            r"pbt\.limits\.clip_range='0.1,2': give at most 0\.99",
        ),
        (
            {"policies": 2, "pbt.limits.learning_rate": "1e-6,1e-5", "learner.learning_rate": 3e-4},
            r"limits\.learning_rate='1e-6,1e-5': policy 0 begins with 0\.0003, which is outside",
        ),
        (
            {
                "policies": 2,
                "pbt.limits.learning_rate": "1e-4,1e-3",
                "learner.learning_rate": 3e-4,
                "policy.1.learner.learning_rate": 1e-2,
            },
            r"limits\.learning_rate='1e-4,1e-3': policy 1 begins with 0\.01, which is outside",
        ),
        ({"policies": 2, "max_seconds": 60}, r"max_seconds=60 may end the run long before: give pbt\.every"),
        ({"policies": 2, "policy.1.learner.normalise_advantages": False}, "other networks, algorithms"),
        ({"policies": "a,b", "policy.a.agents": "one"}, "policies a and b play other agents"),
        (
            {"policies": 2, "learner.max_grad_norm": None, "pbt.mutate": "max_grad_norm"},
            r"learner\.max_grad_norm is None",
        ),
        ({"policies": 2, "learner.schedule": "linear"}, r"learner\.schedule='linear' changes it, too"),
        ({"policies": 2, "learner.schedule": "kl"}, r"learner\.schedule='kl' changes it, too"),
        (
            {"policies": 2, "learner.entropy_coef": 0.01, "learner.entropy_schedule": "linear"},
            r"learner\.entropy_schedule changes it, too",
        ),
    ],
)
def test_populations_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollmill.make_config("gym/CartPole-v1", {"pbt": True, **settings})


def test_a_population_has_no_schedules_unless_they_are_given() -> None:
    config = rollmill.make_config("gym/CartPole-v1", {"pbt": "true", "policies": 4})
    assert config.population.pbt
    assert config.optimiser.schedule.name == "constant"
    assert rollmill.make_config("gym/CartPole-v1", {}).optimiser.schedule.name == "linear"
    linear = {"learner.schedule": "linear", "pbt.mutate": "clip_range,discount"}
    given = rollmill.make_config("gym/CartPole-v1", {"pbt": True, "policies": 2, **linear})
    assert given.optimiser.schedule.name == "linear"
    replay = rollmill.make_config("gym/CartPole-v1", {"pbt": True, "policies": 2}, algo="dqn")
    assert replay.optimiser.schedule.name == "constant"


@pytest.mark.parametrize(
    ("algo", "settings", "names"),
    [
        ("ppo", {"learner.entropy_coef": 0.01}, ("learning_rate", "entropy_coef", "adam_beta1")),
        ("ppo", {"learner.entropy_coef": 0.0}, ("learning_rate", "adam_beta1")),
        ("ppo", {"learner.adam_betas": (0.0, 0.99)}, ("learning_rate", "adam_beta1")),
        ("ppo", {"learner.adam_betas": (0.0, 0.99), "pbt.mutate": "adam_beta1"}, ("adam_beta1",)),
        ("impala", {}, ("learning_rate", "entropy_coef")),
        ("dqn", {}, ("learning_rate", "adam_beta1")),
        ("ppo", {"pbt.mutate": "discount"}, ("discount",)),
    ],
)
def test_what_is_mutated(algo: str, settings: dict[str, Any], names: tuple[str, ...]) -> None:
    config = rollmill.make_config("gym/CartPole-v1", {"pbt": True, "policies": 2, **settings}, algo=algo)
    assert mutated_numbers(config) == names


def test_a_weight_that_is_a_switch_is_not_mutated() -> None:
    population = {"pbt": True, "policies": 2, "learner.reward_weights": {"clip": 1.0}}
    elsewhere = rollmill.make_config("gym/CartPole-v1", population)
    assert "reward_weight.clip" in mutated_numbers(elsewhere)
    level = replace(elsewhere.env, name="dmlab/rooms_watermaze")
    assert mutated_numbers(replace(elsewhere, env=level)) == ("learning_rate", "adam_beta1")
    named = rollmill.make_config("gym/CartPole-v1", {**population, "pbt.mutate": "reward_weight.clip"})
    with pytest.raises(ValueError, match=r"pbt\.mutate has reward_weight\.clip, which switches something on"):
        replace(named, env=level)


@pytest.mark.parametrize(
    "settings",
    [
        {"off_policy.dueling": True},
        {"off_policy.value_rescaling": True},
    ],
)
def test_replays_of_policies_with_other_networks_cannot_be_a_population(settings: dict[str, Any]) -> None:
    own = {f"policy.1.{key}": value for key, value in settings.items()}
    with pytest.raises(ValueError, match="policies 0 and 1 have other networks, algorithms"):
        rollmill.make_config("gym/CartPole-v1", {"pbt": True, "policies": 2, **own}, algo="dqn")


def test_policies_may_begin_with_other_numbers() -> None:
    own = {"policy.1.learner.learning_rate": 3e-4, "policy.1.learner.discount": 0.9, "policy.1.learner.clip_range": 0.1}
    assert rollmill.make_config("gym/CartPole-v1", {"pbt": True, "policies": 2, **own}).population.pbt
