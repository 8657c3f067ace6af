"""Settings of population-based training that are refused."""

from __future__ import annotations

from typing import Any

import pytest

import rollmill
from rollmill.pbt.config import PbtConfig
from rollmill.settings.pbt_checks import mutated_numbers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.6}, r"pbt\.share=0\.6: give a finite number above 0 and at most 0\.5"),
        ({"factor": 0.8}, r"pbt\.factor=0\.8: give a number above 1, or a range"),
        ({"factor": (1.5, 1.2)}, r"pbt\.factor=\(1\.5, 1\.2\)"),
        ({"mutation_rate": 1.5}, r"pbt\.mutation_rate=1\.5: give a finite number in \[0, 1\]"),
        ({"mutate": ("learning_rate", "learning_rate")}, "name each number once"),
        ({"limits": {"discount": "0.9,0.99"}}, r"pbt\.limits\.discount: this run mutates learning_rate"),
        (
            {"limits": {"learning_rate": "1e-3"}},
            r"pbt\.limits\.learning_rate='1e-3': give the smallest and the",
        ),
        ({"limits": {"learning_rate": 3}}, r"pbt\.limits\.learning_rate=3"),
        ({"limits": {"learning_rate": "1e-2,1e-3"}}, "give the smallest and then the largest value, each a finite"),
        ({"limits": {"adam_beta1": "0.5,1"}}, r"in \[0, 1\)"),
        ({"window": 0}, r"pbt\.window=0: give an integer of at least 1"),
        ({"every": 0}, r"pbt\.every=0"),
        ({"rule": "best"}, r"pbt\.rule='best'"),
    ],
)
def test_values_that_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PbtConfig(**settings)


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
        ({"policies": 2, "pbt.mutate": "discont"}, "policy 0 has no discont"),
        (
            {"policies": 2, "learner.max_grad_norm": None, "pbt.mutate": "max_grad_norm"},
            r"learner\.max_grad_norm is None",
        ),
        ({"policies": 2, "learner.schedule": "linear"}, r"learner\.schedule='linear' changes it, too"),
        ({"policies": 2, "learner.schedule": "kl"}, r"learner\.schedule='kl' changes it, too"),
        ({"policies": 2, "learner.entropy_schedule": "linear"}, r"learner\.entropy_schedule changes it, too"),
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
        ("ppo", {}, ("learning_rate", "entropy_coef", "adam_beta1")),
        ("impala", {}, ("learning_rate", "entropy_coef")),
        ("dqn", {}, ("learning_rate", "adam_beta1")),
        ("ppo", {"pbt.mutate": "discount"}, ("discount",)),
    ],
)
def test_what_is_mutated(algo: str, settings: dict[str, Any], names: tuple[str, ...]) -> None:
    config = rollmill.make_config("gym/CartPole-v1", {"pbt": True, "policies": 2, **settings}, algo=algo)
    assert mutated_numbers(config) == names
