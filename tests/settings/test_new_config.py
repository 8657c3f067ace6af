"""The configuration of a new run."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.settings.new_config import new_config
from rollmill.settings.option_values import OptionError
from rollmill.settings.options import to_json
from rollmill.settings.value_checks import ConfigError


def test_what_the_user_gives_replaces_the_algorithm_s_and_the_preset_s_settings() -> None:
    preset = new_config("atari/pong")
    algorithm = new_config("atari/pong", algo="impala")
    given = new_config("atari/pong", {"learner.discount": 0.9}, algo="impala")
    assert preset.algorithm.clip_kind != algorithm.algorithm.clip_kind == "none"
    assert given.algorithm.discount == 0.9
    assert given.algorithm.clip_kind == "none"
    assert given.preset == "atari/pong"


def test_an_off_policy_algorithm_brings_its_settings_in_two_ways() -> None:
    by_argument = new_config("gym/CartPole-v1", algo="dqn")
    by_settings = new_config("gym/CartPole-v1", {"regime": "replay", "off_policy.algorithm": "dqn"})
    assert by_argument == by_settings
    assert by_argument.in_replay


@pytest.mark.parametrize(
    ("algo", "given", "message"),
    [
        (None, {"regime": "replay"}, r"regime='replay' without an algorithm: give off_policy.algorithm"),
        ("dqn", {"off_policy.algorithm": "sac"}, r"off_policy.algorithm='sac' with algo='dqn'"),
        ("sac", {"regime": "async"}, r"regime='async' with algo='sac'"),
        (
            None,
            {"learner.learning_rate": 1e-3, "learner.schedule": "0:1e-4,1e5:0"},
            r"learner.learning_rate=0.001 .* whose points are learning rates",
        ),
        (
            None,
            {
                "population.policies": "a,b",
                "learner.schedule": "0:1e-4,1e5:0",
                "policy.a.learner.learning_rate": 1e-3,
            },
            r"policy.a.learner.learning_rate=0.001 .* whose points are learning rates",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    algo: str | None, given: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        new_config("gym/Pendulum-v1", given, algo=algo)


@pytest.mark.parametrize("key", ["learner.learning_rate", "policy.a.learning_rate"])
def test_a_learning_rate_needs_one_policy_that_it_has_an_effect_on(key: str) -> None:
    policies = {"population.policies": "a,b", "policy.b.learner.schedule": "0:1e-4,1e5:0"}
    config = new_config("gym/Pendulum-v1", {**policies, key: 1e-3})
    assert config.policies[0].optimiser.learning_rate == 1e-3
    with pytest.raises(ConfigError, match=r"policy.b.learning_rate=0.001 with learner.schedule='0:1e-4,1e5:0'"):
        new_config("gym/Pendulum-v1", {**policies, "policy.b.learning_rate": 1e-3})


def test_lockstep_takes_a_batch_of_all_environments_unless_the_user_gives_one() -> None:
    config = new_config("gym/CartPole-v1", {"regime": "lockstep", "num_envs": "16", "rollout_length": "32"})
    assert config.algorithm.batch_size == 16 * 32
    with pytest.raises(OptionError, match=r"learner.batch_size=96: in lockstep a batch is one rollout of every"):
        new_config("gym/CartPole-v1", {"regime": "lockstep", "num_envs": 16, "batch_size": 96})


def test_tasks_in_a_replay_have_the_rewards_of_the_first() -> None:
    config = new_config("atari/pong,atari/breakout", algo="dqn")
    assert config.algorithm.reward_clip == new_config("atari/pong", algo="dqn").algorithm.reward_clip == 1.0
    assert new_config("atari/pong,atari/breakout").algorithm.reward_clip is None


@pytest.mark.parametrize(
    ("whole", "single"),
    [
        (
            {"population": {"policies": ("a", "b"), "pbt": True}},
            {"population.policies": ("a", "b"), "population.pbt": True},
        ),
        (
            {"regime": "replay", "off_policy": {"algorithm": "sac"}},
            {"regime": "replay", "off_policy.algorithm": "sac"},
        ),
    ],
)
def test_a_section_has_the_consequences_of_its_settings(whole: dict[str, Any], single: dict[str, Any]) -> None:
    assert new_config("gym/Pendulum-v1", whole) == new_config("gym/Pendulum-v1", single)


def test_a_section_of_a_saved_configuration_is_no_choice_of_each_of_its_settings() -> None:
    saved = to_json(new_config("gym/CartPole-v1"))
    found = new_config("gym/CartPole-v1", {"pbt": saved["pbt"], "tracking": saved["tracking"]})
    assert found == new_config("gym/CartPole-v1")
    saved["pbt"]["every"] = 7
    with pytest.raises(ConfigError, match=r"pbt\.every: without effect"):
        new_config("gym/CartPole-v1", {"pbt": saved["pbt"]})
