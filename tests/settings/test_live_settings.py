"""Which numbers may change during a run, and where they begin."""

from __future__ import annotations

from typing import Any

import pytest

import rollmill
from rollmill.learning.live_numbers import NUMBERS
from rollmill.settings.live_settings import live_numbers, settings_of_numbers


def numbers(**settings: Any) -> dict[str, float | None]:
    return live_numbers(rollmill.make_config("gym/CartPole-v1", settings))


def test_every_number_that_can_be_set_has_its_setting() -> None:
    found = numbers(**{"learner.max_grad_norm": 0.7, "learner.adam_betas": (0.8, 0.99)})
    assert set(found) == set(NUMBERS)
    assert (found["max_grad_norm"], found["adam_beta1"], found["adam_beta2"]) == (0.7, 0.8, 0.99)
    assert (found["discount"], found["gae_lambda"], found["learning_rate"]) == (0.98, 0.8, 1e-3)


def test_what_is_not_used_is_left_out() -> None:
    plain = numbers(**{"learner.clip_kind": "none", "learner.advantage": "vtrace", "learner.optimiser": "rmsprop"})
    assert set(NUMBERS) - set(plain) == {"clip_range", "gae_lambda", "adam_beta1", "adam_beta2"}
    replay = numbers(**{"regime": "replay", "off_policy.algorithm": "dqn"})
    assert set(replay) == {"learning_rate", "reward_scale", "max_grad_norm", "adam_beta1", "adam_beta2"}
    assert numbers(**{"learner.max_grad_norm": None})["max_grad_norm"] is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"learner.learning_rate": 1e-5}, "learning_rate"),
        ({"learner.schedule": "kl"}, "learning_rate"),
        ({"learner.clip_schedule": "linear"}, "clip_range"),
        ({"learner.reward_weights": {"energy": 0.5}}, "reward_weight.energy"),
        ({"learner.batch_size": 512}, None),
    ],
)
def test_what_the_settings_say_about_a_number(settings: dict[str, Any], name: str | None) -> None:
    common: dict[str, Any] = {"learner.reward_weights": {"energy": 1.0}}
    before, after = (
        settings_of_numbers(rollmill.make_config("gym/CartPole-v1", {**common, **given})) for given in ({}, settings)
    )
    assert {each for each in before if before[each] != after[each]} == ({name} if name else set())


def test_population_based_training_is_part_of_it() -> None:
    config = rollmill.make_config("gym/CartPole-v1", {})
    plain, mutated = settings_of_numbers(config), settings_of_numbers(config, ("discount",))
    assert [name for name in plain if plain[name] != mutated[name]] == ["discount"]
