"""Who plays in a run: checks of the settings, and what gives each agent a player.

The main process imports this module, which must not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.matchmaking import MATCHMAKING
from rollmill.rollout.assignment import ASSIGNMENTS, AUTO, FIXED, RANDOM, Assignment
from rollmill.rollout.matchmaker import Guests, Matchmaker, PastOpponents
from rollmill.settings.config import Config
from rollmill.settings.regime_config import LockstepConfig
from rollmill.settings.value_checks import ConfigError
from rollmill.specs import EnvSpec
from rollmill.storage.agent_roles import players_of_agents
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.slots import SlotStore

if TYPE_CHECKING:
    from rollmill.regimes.setup import RunSetup


def players_of(config: Config) -> PlayerIds:
    """Return who may play a row."""
    population = config.population
    return PlayerIds(len(population.names), population.snapshots, len(population.guests))


def check_players(config: Config, spec: EnvSpec) -> None:
    """Refuse players that do not fit each other or the environment, before processes start.

    Raises:
        ConfigError: Which, and what to do.
    """
    population = config.population
    if population.snapshots and len(spec.agents) < 2:
        raise ConfigError(
            f"population.snapshots={population.snapshots}, but {spec.name} has one agent: past selves play "
            "against the policy in environments with several agents; use 0."
        )
    players = players_of(config)
    allowed = players_of_agents(config.population, config.policy, spec.agents)
    # These raise for unknown names before processes start.
    assignment_rule(config, spec.agents)
    MATCHMAKING.find(config.population.matchmaking, "population.matchmaking")
    if population.guests and len(spec.agents) < 2:
        raise ConfigError(
            f"population.guests={','.join(population.guests)}, but {spec.name} has one agent: guests play "
            "against policies in environments with several agents; omit them."
        )
    if players.policies > config.num_envs * spec.rows_per_env:
        raise ConfigError(
            f"{players.policies} policies (population.policies), but {config.num_envs} environments (num_envs) with "
            f"{spec.rows_per_env} agent(s) each: every policy needs an agent to play; use more environments."
        )
    _check_all_play(config, spec, allowed)
    _check_actions(config, spec)


def _check_all_play(config: Config, spec: EnvSpec, allowed: Sequence[Sequence[int]]) -> None:
    """Refuse a fixed assignment that gives a policy no agent."""
    population, of_rows = config.population, _fixed_players(config, spec, allowed)
    if of_rows is None:
        return
    playing = set(of_rows.tolist())
    if idle := [name for index, name in enumerate(population.names) if index not in playing]:
        raise ConfigError(
            f"population.assignment={population.assignment!r} gives policy {idle[0]!r} no agent in {config.num_envs} "
            "environments (num_envs): use more environments, or population.assignment='random'."
        )


def _fixed_players(config: Config, spec: EnvSpec, allowed: Sequence[Sequence[int]]) -> NDArray[np.int16] | None:
    """Return who plays each row for the whole run; None if the assignment is not fixed."""
    if is_drawn(config, spec.agents) or config.population.assignment not in (AUTO, FIXED):
        return None
    divided = Assignment(allowed, is_random=False, num_envs=config.num_envs, seed=0)
    envs = np.arange(config.num_envs)
    return divided.assign(envs, envs, group=0, iteration=0, step=0).ravel()


def ladder_rungs(config: Config, spec: EnvSpec) -> NDArray[np.float32] | None:
    """Return each row's place on a ladder of epsilons, float32 ``[rows]`` from 0 to ``rows - 1``.

    Each policy has the whole ladder: its rows are spread evenly over it, from the first one at 0 to the last one at the
    end.

    Returns:
        None if the places are the rows' indices: with one policy, or where policies change from episode to episode.
    """
    if len(config.population.names) == 1:
        return None
    allowed = players_of_agents(config.population, config.policy, spec.agents)
    of_rows = _fixed_players(config, spec, allowed)
    if of_rows is None:
        return None
    rungs = np.empty(len(of_rows), np.float32)
    for player in np.unique(of_rows):
        own = np.flatnonzero(of_rows == player)
        # A single row is at 0, the most random one.
        rungs[own] = np.linspace(0, len(of_rows) - 1, len(own))
    return rungs


def _check_actions(config: Config, spec: EnvSpec) -> None:
    """Refuse policies whose actions slots would hold in different forms."""
    action, box = config.stored_action(spec.action), config.box_actions
    for name, policy in zip(config.population.names, config.policies, strict=True):
        if (policy.stored_action(spec.action), policy.box_actions) != (action, box):
            raise ConfigError(
                f"policy.{name}: model.squash_actions and model.scale_actions must be the same for all policies, whose "
                "actions the environments take in one form; set them without a policy's name."
            )


def assignment_rule(config: Config, agents: Sequence[str]) -> Callable[[int, int, int], int] | None:
    """Return the user's rule in numbers: agent, environment and episode -> player; None without one.

    Raises:
        ConfigError: The name is not known; when called, the rule names no policy and no guest.
    """
    name = config.population.assignment
    if name in (AUTO, RANDOM, FIXED):
        return None
    choose = ASSIGNMENTS.find(name, "population.assignment")
    players, population = players_of(config), config.population
    numbers = {policy: number for number, policy in enumerate(population.names)}
    numbers |= {guest: players.guest(index) for index, (guest, _) in enumerate(population.named_guests)}

    def rule(agent: int, env: int, episode: int) -> int:
        who = agents[agent] if agents else ""
        chosen = choose(who, env, episode)
        if not isinstance(chosen, str) or chosen not in numbers:
            known = ", ".join(map(repr, numbers))
            raise ConfigError(f"the assignment {name!r} gave {chosen!r} for agent {who!r}: give one of {known}.")
        return numbers[chosen]

    return rule


def is_drawn(config: Config, agents: Sequence[str]) -> bool:
    """Whether the policy of an agent is drawn for every episode."""
    given = config.population.assignment
    return len(agents) > 1 if given == AUTO else given == RANDOM


def matchmaker(setup: RunSetup, store: SlotStore) -> Matchmaker | None:
    """Return what says who plays the rows of a rollout worker's groups; None with one player."""
    config, population, agents = setup.config, setup.config.population, setup.probed.spec.agents
    if setup.topology.players == PlayerIds():
        return None
    assert config.envs_per_group != "auto"
    lag = config.regime.lag if isinstance(config.regime, LockstepConfig) else None
    seed = setup.sampling_seed if lag is None else config.seed
    first_env = setup.first_group * config.envs_per_group
    is_random = is_drawn(config, agents)
    past_selves = None
    if banks := setup.banks():
        past_selves = PastOpponents(
            banks,
            setup.topology.players,
            table_of=lambda bank, i: bank.newest_table() if lag is None else bank.table(max(0, i - lag)),
            first_version=-1 if lag is None else max(0, setup.probed.first_iteration - lag),
            share=population.past,
            seed=seed,
            counts_users=lag is None,
        )
    players = setup.topology.players
    allowed = [
        [index if index < players.policies else players.guest(index - players.policies) for index in of_agent]
        for of_agent in players_of_agents(config.population, config.policy, agents)
    ]
    anywhere = [
        players.guest(index)
        for index in range(players.guests)
        if not any(players.guest(index) in of_agent for of_agent in allowed)
    ]
    return Matchmaker(
        store,
        assignment=Assignment(
            allowed,
            is_random=is_random,
            num_envs=config.num_envs,
            seed=seed,
            envs_per_group=config.envs_per_group if lag is None else None,
            rule=assignment_rule(config, agents),
        ),
        past_selves=past_selves,
        guests=Guests(anywhere, players, share=population.guest_share, seed=seed) if anywhere else None,
        first_env=first_env,
    )
