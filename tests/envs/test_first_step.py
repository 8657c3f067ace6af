from __future__ import annotations

import pytest
from tests.envs.agent_games import Crowd

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import InvalidActionMask, InvalidReward, UnsupportedSpace
from rollmill.envs.factory import probe
from rollmill.envs.registry import register_env


def test_info_that_is_not_a_dict_raises(harness):
    class NoInfo(harness.CountingEnv):
        def step(self, action):
            return (*super().step(action)[:4], None)

    register_env("no-info", NoInfo)
    with pytest.raises(UnsupportedSpace, match="no-info: step returned None as info: a dict is needed"):
        probe(EnvConfig(name="no-info"))


def test_masks_that_agents_get_only_with_a_step_are_refused():
    class Later(Crowd):
        def step(self, actions):
            *others, infos = super().step(actions)
            return *others, {name: {"action_mask": [1, 0, 1, 0]} for name in infos}

    register_env("later", Later)
    with pytest.raises(InvalidActionMask, match=r"later gives info.*with a step but not with reset"):
        probe(EnvConfig(name="later"))


def test_a_reward_of_an_agent_that_is_no_number_is_found_before_training():
    class Odd(Crowd):
        def step(self, actions):
            observations, rewards, *others = super().step(actions)
            return observations, {**rewards, "bob": "much"}, *others

    register_env("odd", Odd)
    with pytest.raises(InvalidReward, match="odd, agent 'bob'"):
        probe(EnvConfig(name="odd"))
