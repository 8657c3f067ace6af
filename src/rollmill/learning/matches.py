"""Results of the matches that ended in a slot."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.storage.bank import LIVE


class Match(NamedTuple):
    """A match between the policy that learns and a past self.

    Attributes:
        policy: Id of the past self, 1 + place.
        points: Of the policy that learns: 1 for a win, 1/2 for a draw, 0 for a loss.
    """

    policy: int
    points: float


def matches_of(policies: NDArray[Any], lengths: NDArray[Any], returns: NDArray[Any], agents: int) -> tuple[Match, ...]:
    """Results of the matches that ended in a slot, from the side of the policy that learns.

    Args:
        policies: int16 ``[T, R]``, who played each row, of whole environments.
        lengths: int32 ``[T, R]``: length of the episode that ended, 0 elsewhere.
        returns: float32 ``[T, R]``: its return.
        agents: Rows of an environment.

    Agents whose episodes end at the same step are compared. The mean return of those that the policy played counts.
    """
    found = []
    steps, envs = np.nonzero((lengths > 0).reshape(len(lengths), -1, agents).any(axis=2))
    for step, env in zip(steps.tolist(), envs.tolist(), strict=True):
        rows = slice(env * agents, (env + 1) * agents)
        ended = lengths[step, rows] > 0
        ids = policies[step, rows][ended]
        live = ids == LIVE
        if live.all() or not live.any():
            continue
        scores = returns[step, rows][ended]
        mine, theirs = float(scores[live].mean()), float(scores[~live].mean())
        points = 1.0 if mine > theirs else 0.5 if mine == theirs else 0.0
        found.append(Match(int(ids[~live][0]), points))
    return tuple(found)
