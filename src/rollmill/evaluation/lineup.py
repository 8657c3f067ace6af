"""Who plays the agents of an environment: one network, or all policies of a run in their roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.factory import probe
from rollmill.envs.user_code import import_user_code
from rollmill.evaluation.agent import Agent, load
from rollmill.evaluation.players import (
    PLAYERS,
    AgentPlayer,
    Player,
    RandomPlayer,
    ScriptedPlayer,
    player_factory,
)
from rollmill.evaluation.snapshot import (
    NoRunError,
    Snapshot,
    folder_of_player,
    folder_of_policy,
    read_population,
    require_trusted,
)
from rollmill.runtime.seeds import int_seed
from rollmill.specs import ActionSpec, BoxActions
from rollmill.storage.agent_roles import patterns_of, players_of_agents
from rollmill.storage.population_config import RANDOM_PLAYER


class Lineup(NamedTuple):
    """Who plays.

    Attributes:
        players: The players.
        agents: Trained ones among them, whose newer checkpoints may be watched; at least one in a lineup of a run.
        box: Conversion of continuous actions.
        group_size: See :func:`rollmill.envs.factory.rows_of_group`.
        seats: For each agent of the environment, the indices of the players that may play it; empty if the first player
            plays everything.
    """

    players: Sequence[Player]
    agents: Sequence[Agent]
    box: BoxActions
    group_size: int | None
    seats: Sequence[Sequence[int]] = ()

    @property
    def snapshot(self) -> Snapshot:
        """The first trained player's network and environment."""
        return self.agents[0].snapshot

    @property
    def snapshots(self) -> list[Snapshot]:
        """All trained players' networks and environments."""
        return [agent.snapshot for agent in self.agents]

    def who(self, rows: int) -> NDArray[np.int64]:
        """Return who plays each row of a group, int64 ``[rows]``: those that may play an agent take turns."""
        if not self.seats:
            return np.zeros(rows, np.int64)
        agents = len(self.seats)
        places = [(self.seats[row % agents], row // agents + row % agents) for row in range(rows)]
        return np.array([may[turn % len(may)] for may, turn in places], np.int64)


def has_roles(run_dir: Path | str) -> bool:
    """Whether a run's agents are played by several policies, or some of them by a guest.

    Raises:
        NoRunError: Its configuration cannot be read.
    """
    if not (Path(run_dir) / "config.json").is_file():
        return False
    population, own = read_population(run_dir)
    guests = (name for name, _ in population.named_guests)
    return len(population.names) > 1 or any(patterns_of(own, name) for name in guests)


def lineup_of_agent(agent: Agent, *, deterministic: bool | None = None) -> Lineup:
    """Let an agent play everything.

    Args:
        agent: The agent.
        deterministic: As in ``Agent.act``.
    """
    snapshot = agent.snapshot
    player = AgentPlayer("the policy", agent, deterministic=deterministic)
    return Lineup([player], [agent], snapshot.box_actions, snapshot.group_size)


def lineup_of_run(
    run_dir: Path | str,
    *,
    policy: str | None = None,
    checkpoint: str | Path = "latest",
    device: str = "cpu",
    seed: int = 0,
    deterministic: bool | None = None,
    trust: bool = False,
    own: Mapping[str, str | Path] | None = None,
) -> Lineup:
    """Let the policies of a run play the agents that they play in training.

    Guests with agents of their own play them; other guests and past selves do not take part.

    Args:
        run_dir: Directory of a run, finished or not.
        policy: The policy that plays all agents instead; None is all policies of the run.
        checkpoint: As in :func:`rollmill.evaluation.agent.load`; a file only of a run or a policy that plays alone.
        device: Device of the networks.
        seed: Keys the sampling of actions.
        deterministic: As in ``Agent.act``.
        trust: Whether to execute code that the directory names even if this user's runs did not write it.
        own: Policy -> a checkpoint of its own, instead of ``checkpoint``.

    Raises:
        NoRunError: There is no such run, policy or checkpoint, or a checkpoint file for several policies.
        UntrustedError: The directory names such code, without ``trust``.
    """
    if policy is not None or not has_roles(run_dir):
        folder = folder_of_policy(run_dir, policy)
        agent = _load(folder, checkpoint, device, seed, trust=trust)
        return lineup_of_agent(agent, deterministic=deterministic)
    population, settings = read_population(run_dir)
    folders = population.folders(Path(run_dir))
    own = own or {}
    if len(folders) > 1 and checkpoint not in ("latest", "best"):
        raise NoRunError(
            f"checkpoint {checkpoint} is that of one policy, but {run_dir} has several: name it (--policy)"
        )
    agents = [
        _load(folder, own.get(name, checkpoint), device, int_seed(seed, "policy", index), trust=trust)
        for index, (name, folder) in enumerate(zip(population.names, folders, strict=True))
    ]
    snapshot = agents[0].snapshot
    for module in snapshot.env.imports:  # They may register guests.
        import_user_code(module)
    spec = probe(snapshot.env, group_size=snapshot.group_size)
    seats = players_of_agents(population, settings, spec.agents)
    players: list[Player] = [
        AgentPlayer(name, agent, deterministic=deterministic)
        for name, agent in zip(population.names, agents, strict=True)
    ]
    for index, (name, player) in enumerate(population.named_guests):
        if not any(len(players) in may for may in seats):
            players.append(players[0])  # It has no seat, but the guests after it keep their numbers.
            continue
        key = int_seed(seed, "guest", index)
        if player == RANDOM_PLAYER or player in PLAYERS:
            scripted = scripted_player(player, spec.action, snapshot.box_actions, key)
            scripted.name = name
            players.append(scripted)
            continue
        guest = _load(*folder_of_player(player), device, key, trust=trust)
        players.append(AgentPlayer(name, guest, deterministic=deterministic))
    return Lineup(players, agents, snapshot.box_actions, snapshot.group_size, seats)


def scripted_player(name: str, action: ActionSpec, box: BoxActions, seed: int) -> Player:
    """Build "random", or a registered player.

    Args:
        name: Its name.
        action: The environment's action.
        box: Conversion of continuous actions.
        seed: Keys the choices of "random".

    Raises:
        PlayerError: There is no such player.
    """
    if name == RANDOM_PLAYER:
        return RandomPlayer(action, box, seed)
    return ScriptedPlayer(name, player_factory(name)(), action, box)


def _load(folder: Path, checkpoint: str | Path, device: str, seed: int, *, trust: bool) -> Agent:
    """Load an agent whose environment may be executed."""
    agent = load(folder, checkpoint, device, seed=seed, trust=trust)
    require_trusted(folder, agent.snapshot, trust=trust)
    return agent
