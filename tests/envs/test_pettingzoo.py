"""PettingZoo's and mpe2's environments by name."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import make_group, probe
from rollmill.envs.pettingzoo import check_id, ids, mpe_ids
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import own_views

# Names, agents, and whether there is a mask: turns, simultaneous actions, agents that die, and different spaces.
ENVIRONMENTS = {
    "pettingzoo/classic/connect_four_v3": (2, True),
    "pettingzoo/classic/tictactoe_v3": (2, True),
    "pettingzoo/classic/rps_v2": (2, False),
    "pettingzoo/butterfly/knights_archers_zombies_v11": (4, False),
    "pettingzoo/sisl/pursuit_v5": (8, False),
    "mpe/simple_spread_v3": (3, False),
    "mpe/simple_tag_v3": (4, False),
    "mpe/simple_speaker_listener_v4": (2, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_random_play_ends_episodes_of_every_agent(name: str) -> None:
    agents, has_mask = ENVIRONMENTS[name]
    config = EnvConfig(name=name, max_episode_steps=60)
    try:
        spec = probe(config)
    except MissingExtra as error:
        pytest.skip(str(error))
    assert len(spec.agents) == agents
    assert spec.has_action_mask == has_mask
    into, outcome = own_views(spec, 2 * agents)
    group = make_group(config, 2, [1, 2], agents=spec.agents)
    group.reset(into)
    random = np.random.default_rng(0)
    ended = np.zeros(2 * agents, int)
    for _ in range(200):
        group.step(*random_actions(spec.action, into.action_mask, 2 * agents, random), into, outcome)
        ended += outcome.episode_length > 0
    group.close()
    assert ended.all()


def test_names_are_listed_without_importing_the_environments() -> None:
    assert "classic/connect_four_v3" in ids()
    assert "atari/pong_v3" in ids()
    assert "simple_spread_v3" in mpe_ids()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("pettingzoo/classic/connect_four_v2", "classic/connect_four_v3"),
        ("pettingzoo/connect_four_v3", "classic/connect_four_v3"),
        ("mpe/simple_spread", "simple_spread_v3"),
        ("pettingzoo/mpe/simple_spread_v3", "use 'mpe/simple_spread_v3'"),
        ("pettingzoo/sisl/waterworld_v4", "there are sisl/multiwalker_v9 and sisl/pursuit_v5"),
        ("pettingzoo/nothing", "there are atari/..., butterfly/..., classic/... and sisl/..."),
        ("mpe/nothing", "simple_crypto_v3, .* and simple_world_comm_v3"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(UnknownEnvironment, match=near):
        check_id(name)


def test_an_environment_whose_package_is_missing_says_how_to_install_it() -> None:
    pytest.importorskip("pettingzoo")
    if importlib.util.find_spec("multi_agent_ale_py") is not None:
        pytest.skip("it is installed")
    with pytest.raises(MissingExtra, match=r'pip install "pettingzoo\[atari\]"'):
        probe(EnvConfig(name="pettingzoo/atari/pong_v3"))
