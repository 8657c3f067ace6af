"""The numbers that "auto" stands for."""

from __future__ import annotations

import pytest

import rollmill
from rollmill.settings.option_values import OptionError
from rollmill.settings.value_checks import ConfigError


@pytest.mark.parametrize("num_envs", range(1, 14))
def test_any_number_of_environments_is_divided_where_nothing_else_is_asked_for(num_envs: int) -> None:
    for algo in (None, "dqn"):
        config = rollmill.make_config("gym/CartPole-v1", {"num_envs": num_envs}, algo=algo).resolved()
        assert num_envs % config.envs_per_group == 0
        assert config.rollout.num_workers <= num_envs // config.envs_per_group


@pytest.mark.parametrize(
    ("algo", "settings", "message"),
    [
        ("dqn", {"num_envs": 2, "policies": "a,b", "policy.a.off_policy.algorithm": "ppo"}, "from a replay, as this"),
        (None, {"regime": "replay", "off_policy.algorithm": "ppo"}, "use --algo ppo"),
        (None, {"learner.algorithm": "dqn"}, "use --algo dqn"),
    ],
)
def test_an_algorithm_of_the_other_kind_is_refused(algo: str | None, settings: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        rollmill.make_config("gym/CartPole-v1", {"total_steps": 10_000, **settings}, algo=algo).resolved()


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_options_that_no_network_reads_are_refused(algo: str) -> None:
    options = {"model.options": {"width": 64}}
    with pytest.raises(
        OptionError, match=r"model\.options=\{'width': 64\}: only a model, an encoder or an algorithm that"
    ):
        rollmill.make_config("gym/CartPole-v1", options, algo=algo)
    config = rollmill.make_config("gym/CartPole-v1", {**options, "model.encoder": "mine"}, algo=algo)
    assert config.model.options == {"width": 64}


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_several_policies_are_refused_on_several_ranks(algo: str) -> None:
    regime = {} if algo == "dqn" else {"regime": "lockstep"}
    settings = {"total_steps": 10_000, "num_envs": 16, "policies": 2, **regime}
    config = rollmill.make_config("gym/CartPole-v1", settings, algo=algo)
    config.resolved()
    with pytest.raises(ConfigError, match="without torchrun"):
        config.resolved(2)
