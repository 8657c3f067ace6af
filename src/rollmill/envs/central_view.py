"""What all agents of an environment observe, as one more entry of each agent's observation, for critics alone.

A central value function (MAPPO: Yu et al. 2022, https://arxiv.org/abs/2103.01955) judges an agent's situation by what
all agents see, while its actor sees what the agent sees. The entry is written by the group, so that it lies in the
slots like any other, and every stage after that treats it as an observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.views import AgentRows, Array, ObservationView, OutcomeView
from rollmill.specs import CENTRAL_VIEW, ArraySpec, EnvSpec

Entry = TypeVar("Entry")


def with_central_view(spec: EnvSpec) -> EnvSpec:
    """Return the spec with the entry of all agents' observations.

    Raises:
        UnsupportedSpace: The environment has one agent, or observes images or sounds.
    """
    if len(spec.agents) < 2:
        raise UnsupportedSpace(
            f"model.central_value=True, but {spec.name} has one agent: a central value is for several; use false"
        )
    for name, item in spec.observation.items():
        if item.is_picture or item.is_sound:
            raise UnsupportedSpace(
                f"model.central_value=True, but the observation {name!r} of {spec.name} is "
                f"{'a sound' if item.is_sound else 'an image'} of shape "
                f"{item.shape}: only vectors are joined for a central value; use false"
            )
    agents = len(spec.agents)
    size = agents * sum(int(np.prod(item.shape)) for item in spec.observation.values()) + agents
    return replace(spec, observation={**spec.observation, CENTRAL_VIEW: ArraySpec(shape=(size,), dtype="float32")})


class CentralView:
    """A group that also writes what all agents of an environment observe.

    For a row: the observations of its own agent, of the next one, and so on around, and which agent it is (one-hot).
    Agents that do not act are zeros.

    Args:
        group: The group; its rows are agents.
        agents: Number of agents of an environment.

    Attributes:
        num_rows: See ``Group``.
        failures: See ``Group``.
        metrics: See ``SavableGroup``.
        observation_space: That of an agent, without the entry.
        action_space: See ``SavableGroup``.
    """

    def __init__(self, group: AgentRows, agents: int) -> None:
        self._group = group
        self._agents = agents
        self.num_rows = group.num_rows
        self.failures = group.failures
        self.metrics = group.metrics
        self.observation_space = group.observation_space
        self.action_space = group.action_space
        # Agent -> the agents in its order, itself first.
        self._order = (np.arange(agents)[:, None] + np.arange(agents)) % agents
        self._own = np.eye(agents, dtype=np.float32)

    @property
    def episodes(self) -> Array:
        """See ``AgentRows``."""
        return self._group.episodes

    @property
    def resets_next(self) -> Array:
        """See ``AgentRows``."""
        return self._group.resets_next

    @property
    def rebuilds(self) -> Array:
        """See ``AgentRows``."""
        return self._group.rebuilds

    def reset(self, into: ObservationView) -> None:
        """See ``Group.reset``."""
        self._group.reset(_without(into))
        self._write(into)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """See ``Group.step``."""
        self._group.step(discrete, continuous, _without(into), outcome)
        self._write(into)

    def snapshot(self) -> bytes | None:
        """See ``SavableGroup.snapshot``."""
        return self._group.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """See ``SavableGroup.restore``."""
        self._group.restore(snapshot)

    def close(self) -> None:
        """See ``Group.close``."""
        self._group.close()

    def _write(self, into: ObservationView) -> None:
        assert into.acts is not None, "the spec of a multi-agent environment names its agents"
        envs, agents = self.num_rows // self._agents, self._agents
        own = own_entries(into.observation)
        parts = [array.reshape(self.num_rows, -1) for array in own.values()]
        # Rows that do not act may hold anything.
        joined = np.where(into.acts[:, None], np.concatenate(parts, axis=1, dtype=np.float32), np.float32(0.0))
        seen = joined.reshape(envs, agents, -1)[:, self._order]
        central = into.observation[CENTRAL_VIEW].reshape(envs, agents, -1)
        central[:, :, :-agents] = seen.reshape(envs, agents, -1)
        central[:, :, -agents:] = self._own


def own_entries(observation: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries, or their specs, that the agents themselves observe."""
    return {name: array for name, array in observation.items() if name != CENTRAL_VIEW}


def _without(view: ObservationView) -> ObservationView:
    return view._replace(observation=own_entries(view.observation))
