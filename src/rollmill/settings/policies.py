"""The settings of one policy of several: those of the run, with the policy's own values in their place."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from rollmill.settings.options import apply
from rollmill.settings.value_checks import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollmill.settings.config import Config

AGENTS = "agents"
LOAD = "load"

# Only `apply` needs to know the class.
C = TypeVar("C", bound="Config")


def own_values(config: Config, name: str) -> dict[str, object]:
    """Return the settings ``policy.NAME.*`` by key, without that prefix."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in config.policy.items() if key.startswith(prefix)}


def config_of_policy(config: C, name: str) -> C:
    """Return a policy's settings, as if it were the only one of its run.

    Raises:
        ConfigError: An unknown setting, a value that is not allowed, or a setting that all policies share.
    """
    own = {key: value for key, value in own_values(config, name).items() if key not in (AGENTS, LOAD)}
    alone = replace(config, policy={}, population=replace(config.population, policies=1, guests=()))
    try:
        changed = apply(alone, own)
    except ValueError as error:
        raise ConfigError(f"policy.{name}: {error}") from error
    # Both have the same regime, and so algorithms of the same kind, which the type checker cannot know.
    regime = replace(changed.regime, algorithm=alone.regime.algorithm)  # type: ignore[arg-type]
    if replace(changed, model=alone.model, optimiser=alone.optimiser, regime=regime) != alone:
        raise ConfigError(
            f"policy.{name}: {', '.join(own)}: a policy has its own network, algorithm and optimiser (model.*, "
            "learner.*); everything else, the compute settings included, is that of the run: set it without "
            f"'policy.{name}'."
        )
    return changed


def check_policies(config: Config) -> None:
    """Refuse settings of unknown policies, and those that one policy cannot have alone.

    Raises:
        ConfigError: Which setting, and what to do.
    """
    names = config.population.names
    guests = [name for name, _ in config.population.named_guests]
    for key in config.policy:
        name, _, rest = key.partition(".")
        if name in guests and rest != AGENTS:
            raise ConfigError(
                f"policy.{key}: {name} is a guest, which does not learn: it takes policy.{name}.agents only."
            )
        if name not in (*names, *guests):
            known = ", ".join((*names, *guests))
            raise ConfigError(f"policy.{key}: this run has the policies {known} (population.policies).")
    for name in (*names, *guests) if config.policy else ():
        _patterns(config, name)
    for name in names if config.policy else ():
        source_of(config, name)
        config_of_policy(config, name)


def source_of(config: Config, name: str) -> str | None:
    """Return the run directory or checkpoint file whose weights a policy starts with; None for new ones."""
    given = own_values(config, name).get(LOAD)
    if given is not None and (not isinstance(given, str) or not given):
        raise ConfigError(f"policy.{name}.load={given!r}: give a run directory or a checkpoint file.")
    return given


def _patterns(config: Config, name: str) -> tuple[str, ...] | None:
    """The agents that a policy plays, as names or patterns; None for all."""
    given = own_values(config, name).get(AGENTS)
    if given is None:
        return None
    words = given.split(",") if isinstance(given, str) else given
    if not isinstance(words, (list, tuple)) or not words or not all(isinstance(word, str) and word for word in words):
        raise ConfigError(f"policy.{name}.agents={given!r}: give names of agents or patterns: agent_0,adversary_*.")
    return tuple(word.strip() for word in words)


def players_of_agents(config: Config, agents: Sequence[str]) -> list[tuple[int, ...]]:
    """Return who may play each agent: policies, and after them guests, by index.

    An agent that some of them name is played by these alone; the others are played by policies that name no agents.

    Args:
        config: The run's settings.
        agents: The environment's agents; empty where there is one without a name.

    Raises:
        ConfigError: An agent without a policy, a pattern that fits no agent, or a policy that plays no agent.
    """
    population = config.population
    names = [*population.names, *(name for name, _ in population.named_guests)]
    plays = {name: _patterns(config, name) for name in names}
    for name, patterns in plays.items():
        for pattern in patterns or ():
            if not any(fnmatchcase(agent, pattern) for agent in agents):
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
            if any(fnmatchcase(agent, pattern) for pattern in patterns or ())
        )
        if not named and not open_to_all:
            raise ConfigError(f"no policy plays the agent {agent!r}: name it in one of policy.NAME.agents.")
        found.append(named or open_to_all)
    for index, name in enumerate(population.names):
        if not any(index in allowed for allowed in found):
            raise ConfigError(f"policy {name} plays no agent: others name all of them (policy.NAME.agents).")
    return found
