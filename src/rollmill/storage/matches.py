"""Results of the matches that ended in a slot."""

from __future__ import annotations

from operator import itemgetter
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


def follow_matches(
    before: NDArray[np.float32], ended: NDArray[Any], is_over: NDArray[np.bool_], into: NDArray[np.float32]
) -> None:
    """Write the returns of agents whose episodes have ended in the present game of their environment.

    NaN stands for an agent whose episode goes on, or that has not acted yet. Once the game is over for all agents there
    is none left, until the next one begins: inf stands for an agent that never acted.

    Args:
        before: float32 ``[E, A]``, what was written one step ago, for each environment and agent.
        ended: Float ``[E, A]``, returns of the episodes that ended with the step, NaN elsewhere.
        is_over: bool ``[E]``, environments whose episode is over. It is no match if no agent's episode ended with the
            step: the environment failed, or is reset after its last step.
        into: float32 ``[E, A]``, where to write.
    """
    into[:] = before
    into[~np.isnan(before).any(axis=1)] = np.nan
    ends = ~np.isnan(ended)
    np.copyto(into, ended, where=ends)
    if is_over.any():
        into[is_over & ~ends.any(axis=1)] = np.nan
        of_over = into[is_over]
        into[is_over] = np.where(np.isnan(of_over) & ~np.isnan(of_over).all(axis=1, keepdims=True), np.inf, of_over)


def matches_of(policies: NDArray[Any], returns: NDArray[Any], agents: int, *, policy: int = 0) -> tuple[Match, ...]:
    """Results of the matches that ended in a slot, from the side of one policy.

    Args:
        policies: int16 ``[T, R]``, who played each row, of whole environments.
        returns: float32 ``[T, R]``: what :func:`follow_matches` wrote after each step.
        agents: Rows of an environment.
        policy: Whose matches.

    A game counts when it is over for all agents, whose episodes may have ended before: the mean return of those that
    the policy played is compared with that of each other player's. Agents that never acted are left out.
    """
    by_env = returns.reshape(-1, agents)
    games = np.flatnonzero(~np.isnan(by_env).any(axis=1))
    ids, scores = policies.reshape(-1, agents)[games], by_env[games].astype(np.float64)
    acted = np.isfinite(scores)
    own = acted & (ids == policy)
    others = acted & ~own & own.any(axis=1, keepdims=True)
    mine = _mean_of(scores, own)
    found: list[tuple[int, Match]] = []
    for opponent in np.unique(ids[others]).tolist():
        theirs = others & (ids == opponent)
        met = np.flatnonzero(theirs.any(axis=1))
        lead = mine[met] - _mean_of(scores[met], theirs[met])
        points = (0.5 + 0.5 * np.sign(lead)).tolist()
        found += [(game, Match(opponent, share)) for game, share in zip(met.tolist(), points, strict=True)]
    # In the order of their ends; the sort is stable, so that a game's opponents stay in the order of their ids.
    return tuple(match for _, match in sorted(found, key=itemgetter(0)))


def _mean_of(scores: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The mean of the chosen scores of each row ``[G, A]``; 0 where none is chosen."""
    means: NDArray[np.float64] = np.where(chosen, scores, 0.0).sum(axis=1) / np.maximum(chosen.sum(axis=1), 1)
    return means
