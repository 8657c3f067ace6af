"""Which policies and guests may play which agents of an environment, as the settings ``policy.NAME.agents`` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from rollmill.settings.value_checks import ConfigError
from rollmill.storage.population_config import PopulationConfig

AGENTS = "agents"


def own_values(policy: Mapping[str, object], name: str) -> dict[str, object]:
    """Return one policy's settings by key, of the settings ``NAME.KEY`` of all policies."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in policy.items() if key.startswith(prefix)}


def _fits(agent: str, pattern: str) -> bool:
    """Whether a pattern is of an agent, whose name may have brackets itself ("robot[0]")."""
    return agent == pattern or fnmatchcase(agent, pattern)


def patterns_of(policy: Mapping[str, object], name: str) -> tuple[str, ...] | None:
    """Return the agents that a policy plays, as names or patterns; None for all.

    Raises:
        ConfigError: They are no names.
    """
    given = own_values(policy, name).get(AGENTS)
    if given is None:
        return None
    words = given.split(",") if isinstance(given, str) else given
    if isinstance(words, int):
        words = [words]
    if isinstance(words, (list, tuple)):  # An agent may be called "0".
        words = [str(word) if isinstance(word, int) and not isinstance(word, bool) else word for word in words]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise ConfigError(f"policy.{name}.agents={given!r}: give names of agents or patterns: agent_0,adversary_*.")
    return tuple(word.strip() for word in words)


def players_of_agents(
    population: PopulationConfig, policy: Mapping[str, object], agents: Sequence[str]
) -> list[tuple[int, ...]]:
    """Return who may play each agent: policies, and after them guests, by index.

    An agent that some of them name is played by these alone; the others are played by policies that name no agents.

    Args:
        population: The run's policies and guests.
        policy: The settings ``NAME.KEY`` of all of them.
        agents: The environment's agents; empty where there is one without a name.

    Raises:
        ConfigError: An agent without a policy, a pattern that fits no agent, or a policy that plays no agent.
    """
    names = [*population.names, *(name for name, _ in population.named_guests)]
    plays = {name: patterns_of(policy, name) for name in names}
    for name, patterns in plays.items():
        for pattern in patterns or ():
            if not any(_fits(agent, pattern) for agent in agents):
                raise ConfigError(
                    f"policy.{name}.agents: {pattern!r} fits none of the agents "
                    f"{', '.join(agents) if agents else '(the environment has one, without a name)'}."
                )
    open_to_all = tuple(index for index, name in enumerate(population.names) if plays[name] is None)
    found = []
    for agent in agents or ("",):
        named = tuple(
            index
            for index, patterns in enumerate(plays.values())
            if any(_fits(agent, pattern) for pattern in patterns or ())
        )
        if not named and not open_to_all:
            raise ConfigError(f"no policy plays the agent {agent!r}: name it in one of policy.NAME.agents.")
        found.append(named or open_to_all)
    for index, name in enumerate(population.names):
        if not any(index in allowed for allowed in found):
            raise ConfigError(f"policy {name} plays no agent: others name all of them (policy.NAME.agents).")
    return found
