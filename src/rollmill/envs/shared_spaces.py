"""One observation and one action space for agents whose spaces differ, so that their rows have one shape.

Boxes of one dtype and number of axes are padded with zeros to the largest shape. Discrete actions get the largest
number of choices, and the mask forbids those that an agent does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.spaces import ACTION_MASK


class SharedSpaces:
    """The spaces that the rows of several agents share.

    Args:
        name: The environment's name, for messages.
        env: An environment with PettingZoo's interface.

    Attributes:
        observation: Observation space of a row.
        action: Action space of a row.
        masks: For each agent, bool ``[n]``, the choices that it has; None where all agents have the same.

    Raises:
        UnsupportedSpace: The spaces cannot be padded to a common one.
    """

    def __init__(self, name: str, env: Any) -> None:
        agents = env.possible_agents
        self._observations = [space_of(name, env, "observation_space", agent) for agent in agents]
        actions = [space_of(name, env, "action_space", agent) for agent in agents]
        self.observation = _padded(name, self._observations, "observation")
        self._is_padded = any(space != self.observation for space in self._observations)
        self.action, self.masks = _shared_actions(name, actions)
        self._choices = [int(mask.sum()) for mask in self.masks or ()]

    def pad(self, observation: Any, agent: int) -> Any:
        """Return an agent's observation as one of the shared space."""
        if not self._is_padded or self._observations[agent] == self.observation:
            return observation
        return _pad(self._observations[agent], self.observation, observation)

    def own_mask(self, mask: Any, agent: int) -> Any:
        """Return an agent's mask with the choices that it does not have forbidden; ``mask`` None allows all others."""
        if self.masks is None:
            return mask
        own = self.masks[agent]
        if mask is None:
            return own
        flat = np.ravel(mask).astype(bool)
        if len(flat) == len(own):
            return own & flat
        if len(flat) != self._choices[agent]:
            return flat  # the checks report it
        allowed = np.zeros(len(own), bool)
        allowed[: len(flat)] = flat
        return allowed


def space_of(name: str, env: Any, kind: str, agent: Any) -> spaces.Space[Any]:
    """Return an agent's space.

    Args:
        name: The environment's name, for messages.
        env: An environment with PettingZoo's interface.
        kind: ``"observation_space"`` or ``"action_space"``.
        agent: The agent, as the environment names it.

    Raises:
        UnsupportedSpace: There is none.
    """
    found = getattr(env, kind, None)
    if found is None:
        raise UnsupportedSpace(
            f"{name} has no {kind}, but possible_agents: an environment with several agents needs the interface of "
            "pettingzoo.ParallelEnv or pettingzoo.AECEnv"
        )
    space = found(agent) if callable(found) else found
    if not isinstance(space, spaces.Space):
        raise UnsupportedSpace(
            f"{name}: {kind}({agent!r}) is {type(space).__name__}; a gymnasium.spaces.Space is needed for each agent"
        )
    return space


def _padded(name: str, given: Sequence[spaces.Space[Any]], what: str) -> spaces.Space[Any]:
    first = given[0]
    if all(space == first for space in given):
        return first
    dicts = [space for space in given if isinstance(space, spaces.Dict)]
    if len(dicts) == len(given) and len({frozenset(space) for space in dicts}) == 1:
        return spaces.Dict(
            {key: _padded(name, [space[key] for space in dicts], f"{what}[{key!r}]") for key in dicts[0]}
        )
    shapes = [space.shape or () for space in given]
    same_kind = all(isinstance(space, (spaces.Box, spaces.MultiBinary)) for space in given)
    if not same_kind or len({(len(shape), space.dtype) for shape, space in zip(shapes, given, strict=True)}) > 1:
        raise UnsupportedSpace(
            f"{name}: the agents' {what} spaces differ ({', '.join(map(str, dict.fromkeys(map(str, given))))}); only "
            "Boxes of one dtype and number of axes can share a row: give the agents equal spaces, for example with "
            "supersuit.pad_observations_v0"
        )
    shape = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    # Numbers of the spaces' own kind: the largest int64 is no float.
    low = min(0, *(np.min(getattr(space, "low", 0)).item() for space in given))
    high = max(0, *(np.max(getattr(space, "high", 1)).item() for space in given))
    dtype = first.dtype
    assert dtype is not None
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype.type)


def _pad(own: spaces.Space[Any], shared: spaces.Space[Any], observation: Any) -> Any:
    if isinstance(shared, spaces.Dict):
        assert isinstance(own, spaces.Dict)
        if not all(key in observation for key in shared):
            return observation  # the codec reports it
        return {key: _pad(own[key], shared[key], observation[key]) for key in shared}
    array = np.asarray(observation)
    if array.shape != own.shape or array.shape == shared.shape:
        return observation  # the codec reports other shapes
    padded = np.zeros(shared.shape or (), array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded


def _shared_actions(
    name: str, given: Sequence[spaces.Space[Any]]
) -> tuple[spaces.Space[Any], list[np.ndarray[Any, np.dtype[np.bool_]]] | None]:
    first = given[0]
    if all(space == first for space in given):
        return first, None
    sizes = [int(space.n) if isinstance(space, spaces.Discrete) and space.start == 0 else 0 for space in given]
    if not all(sizes):
        raise UnsupportedSpace(
            f"{name}: the agents' action spaces differ ({', '.join(dict.fromkeys(map(str, given)))}); only Discrete "
            "spaces that start at 0 may have different sizes: give the agents equal action spaces"
        )
    most = max(sizes)
    return spaces.Discrete(most), [np.arange(most) < size for size in sizes]


def mask_in(observation: Any, info: Any) -> Any:
    """Return the mask of allowed actions that an observation or an info holds; None without one."""
    if isinstance(observation, Mapping) and ACTION_MASK in observation:
        return observation[ACTION_MASK]
    return info.get(ACTION_MASK) if isinstance(info, Mapping) else None
