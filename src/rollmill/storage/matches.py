"""Results of the matches that ended in a slot."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Match(NamedTuple):
    """A match of a policy.

    Attributes:
        opponent: Id of the other player.
        points: Of the policy: 1 for a win, 1/2 for a draw, 0 for a loss.
    """

    opponent: int
    points: float


def matches_of(
    policies: NDArray[Any], lengths: NDArray[Any], returns: NDArray[Any], agents: int, *, policy: int = 0
) -> tuple[Match, ...]:
    """Results of the matches that ended in a slot, from the side of one policy.

    Args:
        policies: int16 ``[T, R]``, who played each row, of whole environments.
        lengths: int32 ``[T, R]``: length of the episode that ended, 0 elsewhere.
        returns: float32 ``[T, R]``: its return.
        agents: Rows of an environment.
        policy: Whose matches.

    Agents whose episodes end at the same step are compared: the mean return of those that the policy played, with that
    of each other player's.
    """
    found = []
    steps, envs = np.nonzero((lengths > 0).reshape(len(lengths), -1, agents).any(axis=2))
    for step, env in zip(steps.tolist(), envs.tolist(), strict=True):
        rows = slice(env * agents, (env + 1) * agents)
        ended = lengths[step, rows] > 0
        ids = policies[step, rows][ended]
        own = ids == policy
        if own.all() or not own.any():
            continue
        scores = returns[step, rows][ended]
        mine = float(scores[own].mean())
        for opponent in np.unique(ids[~own]).tolist():
            theirs = float(scores[ids == opponent].mean())
            found.append(Match(opponent, 1.0 if mine > theirs else 0.5 if mine == theirs else 0.0))
    return tuple(found)
