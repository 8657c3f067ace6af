"""Which agents of an environment a policy of a run plays, where it does not play all of them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import probe
from rollmill.evaluation.snapshot import newest_checkpoint, read_population
from rollmill.storage.agent_roles import patterns_of, players_of_agents
from rollmill.storage.population_config import POLICIES_FOLDER


class Role(NamedTuple):
    """The role of a policy.

    Attributes:
        run_dir: Directory of the run.
        policy: The policy's name.
        seats: The agents that it may play, by index.
        others: Directories of the run's policies.
    """

    run_dir: Path
    policy: str
    seats: tuple[int, ...]
    others: tuple[Path, ...]

    @property
    def is_ready(self) -> bool:
        """Whether all policies of the run have a checkpoint, so that they can play."""
        return all(newest_checkpoint(folder) is not None for folder in self.others)


def role_of(folder: Path, env: EnvConfig) -> Role | None:
    """Return the role of a policy; None if it may play all agents.

    Args:
        folder: Directory of the policy, or of a run with one policy.
        env: The environment.
    """
    run_dir = run_of(folder)
    population, settings = read_population(run_dir)
    named = (*population.names, *(name for name, _ in population.named_guests))
    if all(patterns_of(settings, name) is None for name in named):
        return None
    policy = population.names[0] if run_dir == folder else folder.name
    index = population.names.index(policy)
    players = players_of_agents(population, settings, probe(env).agents)
    seats = tuple(seat for seat, may in enumerate(players) if index in may)
    if len(seats) == len(players):
        return None
    return Role(run_dir, policy, seats, tuple(population.folders(run_dir)))


def run_of(folder: Path) -> Path:
    """The run of a policy's directory; a run of its own may lie in a folder with the same name."""
    above = folder.parent.parent
    is_policy = folder.parent.name == POLICIES_FOLDER and (above / "config.json").is_file()
    return above if is_policy else folder
