"""The numbers that "auto" stands for."""

from __future__ import annotations

import pytest

import rollmill


@pytest.mark.parametrize("num_envs", range(1, 14))
def test_any_number_of_environments_is_divided_where_nothing_else_is_asked_for(num_envs: int) -> None:
    for algo in (None, "dqn"):
        config = rollmill.make_config("gym/CartPole-v1", {"num_envs": num_envs}, algo=algo).resolved()
        assert num_envs % config.envs_per_group == 0
        assert config.rollout.num_workers <= num_envs // config.envs_per_group
