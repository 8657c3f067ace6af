"""PettingZoo's interfaces as turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.envs.agent_games import AGENTS, Crowd, Rounds

from rollmill.envs.agent_apis import ParallelAgents, TurnTakers, is_multi_agent, takes_turns, with_numbers
from rollmill.envs.errors import UnsupportedSpace


def test_the_interface_decides_how_an_environment_is_stepped() -> None:
    assert is_multi_agent(Crowd())
    assert not takes_turns(Crowd())
    assert isinstance(with_numbers(Crowd(), AGENTS), ParallelAgents)
    assert is_multi_agent(Rounds())
    assert takes_turns(Rounds())
    assert isinstance(with_numbers(Rounds(), AGENTS), TurnTakers)


def test_connect_four_pays_both_players_when_it_ends() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    env = pettingzoo.make("aec", "classic/connect_four-v3")
    agents = with_numbers(env, env.possible_agents)
    turn = agents.reset(1)
    assert turn.acting == [0]
    for move in range(7):
        assert not turn.is_over
        assert not turn.ended
        acting = turn.acting[0]
        assert acting == move % 2
        turn = agents.step([acting, acting])  # each fills a column of its own
    assert turn.is_over
    assert turn.ended == {0: (True, False), 1: (True, False)}
    assert turn.rewards == {0: 1, 1: -1}
    assert not turn.shown


class Leaving(Crowd):
    """Bob leaves at the first step without being reported as ended."""

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        self.agents = [agent for agent in self.agents if agent != "bob"]
        del terminated["bob"], truncated["bob"]
        return observations, rewards, terminated, truncated, infos


def test_an_agent_that_leaves_without_a_word_has_ended() -> None:
    agents = with_numbers(Leaving(), AGENTS)
    agents.reset(3)
    turn = agents.step([0, 0, 0])
    assert turn.ended == {1: (True, False)}
    assert 1 not in turn.acting


class Staying(Crowd):
    """Keeps ended agents in env.agents, as some wrappers do."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed, options)
        self.all = list(self.agents)
        return result

    def step(self, actions: Any) -> Any:
        self.agents = [agent for agent in self.agents if self.time < self.leaves[agent]]
        result = super().step({agent: actions[agent] for agent in self.agents})
        self.all += [agent for agent in self.agents if agent not in self.all]
        self.agents = list(self.all)
        return result


def test_an_agent_that_stays_after_its_end_does_not_act_again() -> None:
    agents = with_numbers(Staying(), AGENTS)
    turn = agents.reset(3)
    ended: set[int] = set()
    while not turn.is_over:
        assert not ended.intersection(turn.acting)
        turn = agents.step([0, 0, 0])
        assert not ended.intersection(turn.ended)
        ended |= set(turn.ended)
    assert ended == {0, 1, 2}


class Stranger(Crowd):
    """Lets an agent act that it never announced."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed, options)
        self.agents = ["eve"]
        return {"eve": np.zeros(3, np.float32)}, {"eve": {}}


def test_an_unknown_agent_is_named() -> None:
    with pytest.raises(UnsupportedSpace, match="has the agent 'eve', which is not among its possible_agents"):
        with_numbers(Stranger(), AGENTS).reset(0)


class Old(Crowd):
    """Returns observations alone, as PettingZoo before 1.23."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed, options)[0]


def test_a_reset_without_infos_is_explained() -> None:
    with pytest.raises(UnsupportedSpace, match=r"\(observations, infos\) are needed"):
        with_numbers(Old(), AGENTS).reset(0)
