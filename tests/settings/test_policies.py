"""Settings of single policies."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.api import make_config
from rollmill.settings.config import Config
from rollmill.settings.options import from_json, to_json
from rollmill.settings.policies import config_of_policy


def config_with(**settings: Any) -> Config:
    return make_config("gym/CartPole-v1", {"population.policies": "a,b", **settings})


def test_a_policy_has_the_runs_settings_but_for_its_own() -> None:
    own = {"policy.b.learner.learning_rate": "1e-5", "policy.b.core": "gru", "policy.b.discount": 0.5}
    config = config_with(**own, **{"learner.epochs": 3})
    a, b = config.policies
    assert a.optimiser.learning_rate == config.optimiser.learning_rate
    assert (a.model, a.on_policy) == (config.model, config.on_policy)
    assert (b.optimiser.learning_rate, b.model.core, b.on_policy.discount) == (1e-5, "gru", 0.5)
    assert (a.on_policy.epochs, b.on_policy.epochs) == (3, 3)
    assert config_of_policy(config, "b").population.names == ("0",)
    assert from_json(Config, to_json(config)) == config


def test_off_policy_policies_see_the_task_or_none_does() -> None:
    tasks = "gym/CartPole-v1,gym/Acrobot-v1"
    given = {"population.policies": "a,b", "policy.b.model.observe_task": False}
    with pytest.raises(ValueError, match=r"policy\.b\.model\.observe_task=False, and True for the run"):
        make_config(tasks, given, algo="dqn")
    assert make_config(tasks, {**given, "policy.b.model.observe_task": True}, algo="dqn").has_task_entry


def test_a_run_with_one_policy_is_its_own() -> None:
    config = make_config("gym/CartPole-v1")
    assert config.population.names == ("0",)
    assert config.policies == (config,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy.c.learner.epochs": 2}, r"policy\.c\.learner\.epochs: this run has the policies a, b"),
        ({"policy.a.num_envs": 8}, r"policy\.a: num_envs: a policy has its own network"),
        ({"policy.a.learner.device": "cuda"}, r"policy\.a: learner\.device: a policy has its own network"),
        ({"policy.a.learner.epochs": 0}, r"policy\.a: learner\.epochs=0"),
        ({"policy.a.no_such": 1}, r"policy\.a: unknown setting 'no_such'"),
        ({"policy.a.agents": ""}, r"policy\.a\.agents=''"),
        ({"population.policies": "a,a"}, r"population\.policies=\('a', 'a'\)"),
        ({"population.policies": 0}, r"population\.policies=0"),
        ({"population.policies": "../a,b"}, r"'\.\./a' is not a name"),
    ],
)
def test_what_no_policy_could_have_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_with(**settings)
