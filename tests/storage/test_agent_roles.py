"""Who may play which agents."""

from __future__ import annotations

import pytest

from rollmill.storage.agent_roles import players_of_agents
from rollmill.storage.population_config import PopulationConfig

AGENTS = ("adversary_0", "adversary_1", "agent_0")


def players(agents: tuple[str, ...] = AGENTS, guests: tuple[str, ...] = (), **named: object) -> list[tuple[int, ...]]:
    population = PopulationConfig(policies=("a", "b"), guests=guests)
    return players_of_agents(population, {f"{name}.agents": given for name, given in named.items()}, agents)


def test_agents_are_played_by_the_policies_that_name_them() -> None:
    assert players() == [(0, 1)] * 3
    assert players(a="adversary_*", b=["agent_0", "adversary_1"]) == [(0,), (0, 1), (1,)]
    assert players(()) == [(0, 1)]
    assert players(("0", "1", "2"), a=[0, 2], b=1) == [(0,), (1,), (0,)], "names of digits, as JSON has them"
    assert players(a="adversary_*") == [(0,), (0,), (1,)], "b plays all other agents"
    assert players(guests=("random",), random="agent_*") == [(0, 1), (0, 1), (2,)]


def test_a_name_with_brackets_is_a_name() -> None:
    assert players(("robot[0]", "robot[1]"), a="robot[0]", b="robot[1]") == [(0,), (1,)]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"a": "adversary"}, r"policy\.a\.agents: 'adversary' fits none of the agents"),
        ({"a": "agent_0", "b": "agent_0"}, "no policy plays the agent 'adversary_0'"),
        ({"a": 3.5}, r"policy\.a\.agents=3\.5: give names of agents or patterns"),
    ],
)
def test_agents_that_nobody_plays_and_names_of_no_agent_are_refused(named: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        players(("adversary_0", "agent_0"), **named)
