"""A group of environments with its own arrays, stepped by players. Evaluation uses it instead of slots."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.views import AgentRows, Array, Group, ObservationView, OutcomeView, own_views
from rollmill.evaluation.players import Player
from rollmill.specs import ActionSpec, EnvSpec


def play(players: Sequence[Player], who: NDArray[np.int64], group: Group, spec: EnvSpec) -> Iterator[OutcomeView]:
    """Reset a group, and return what steps it for as long as the caller iterates.

    That yields the results of each step, in arrays that the next one overwrites.

    Args:
        players: The players.
        who: int64 ``[rows]``, the index of each row's player.
        group: The environments; the caller closes them.
        spec: The environment's spec.
    """
    observation, outcome = own_views(spec, group.num_rows)
    for player in players:
        player.begin()
    group.reset(observation)
    return _steps(players, [who == index for index in range(len(players))], group, spec, observation, outcome)


def warn_of_failures(group: Group) -> None:
    """Warn of environments that raised and were rebuilt, if there are any."""
    if group.failures:
        warnings.warn(
            f"{len(group.failures)} failure(s) of environments: they were rebuilt, and their unfinished episodes do "
            f"not count. The first one: {group.failures[0]}",
            stacklevel=3,
        )


class Absences:
    """Finds agents that did not act in an episode of their environment, whose end there is nothing to wait for.

    Args:
        group: The environments, which have been reset and not stepped.
        agents: Agents of each.
    """

    def __init__(self, group: AgentRows, agents: int) -> None:
        self._group = group
        self._begun, self._rebuilt = group.episodes.copy(), group.rebuilds
        self._ended = np.zeros((len(self._begun), agents), bool)

    def rows(self, ended: NDArray[np.bool_]) -> list[int]:
        """Return the rows of agents that were absent from the episodes that are over with a step.

        Args:
            ended: bool ``[rows]``, agents whose episode ended in the step; called for every one.
        """
        rebuilds = self._group.rebuilds
        self._ended[rebuilds > self._rebuilt] = False  # Their episode is not over: it has failed.
        self._rebuilt = rebuilds
        self._ended |= ended.reshape(self._ended.shape)
        is_over = (self._group.episodes > self._begun) | self._group.resets_next
        # An episode that is reset in the next step is over twice, but its agents have ended once.
        is_over &= self._ended.any(axis=1)
        found: list[int] = np.flatnonzero(is_over[:, None] & ~self._ended).tolist()
        self._ended[is_over] = False
        self._begun = self._group.episodes.copy()
        return found


def _steps(
    players: Sequence[Player],
    mine: Sequence[NDArray[np.bool_]],
    group: Group,
    spec: EnvSpec,
    observation: ObservationView,
    outcome: OutcomeView,
) -> Iterator[OutcomeView]:
    while True:
        chosen: list[Array | None] = [None, None]
        for player, rows in zip(players, mine, strict=True):
            player.forget(observation.reset)
            acting = rows if observation.acts is None else rows & observation.acts
            if acting.any():
                found = player.choose(observation, acting)
                chosen = [_merged(before, new, acting) for before, new in zip(chosen, found, strict=True)]
        group.step(*_complete(chosen, spec.action, group.num_rows), observation, outcome)
        yield outcome


def _merged(before: Array | None, chosen: Array | None, rows: NDArray[np.bool_]) -> Array | None:
    if chosen is None or before is None:
        return before if chosen is None else chosen
    before[rows] = chosen[rows]
    return before


def _complete(actions: Sequence[Array | None], action: ActionSpec, rows: int) -> tuple[Any, Any]:
    """Fill in zeros, which are ignored, at a step at which no agent acts."""
    discrete, continuous = actions
    if discrete is None and action.num_discrete:
        discrete = np.zeros((rows, action.num_discrete), np.int32)
    if continuous is None and action.num_continuous:
        continuous = np.zeros((rows, action.num_continuous), np.float32)
    return discrete, continuous
