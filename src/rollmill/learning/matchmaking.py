"""Matchmaking: which past selves a policy meets.

A custom rule is a function of the past selves that may be met::

    def weakest(past, policy):
        return [1.0 if member.win_rate == max(each.win_rate for each in past) else 0.0 for member in past]

    rollmill.register_matchmaking("weakest", weakest)

and then ``--import weakest.py --population.matchmaking weakest``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.runtime.definitions import Registry
from rollmill.settings.value_checks import ConfigError

# Deviation of the chance to win from 1/2, for opponents "near" a rating (Jaderberg et al. 2019, supplement).
_NEAR = 1.0 / 6.0
_LEAST = 1e-3


class PastSelf(NamedTuple):
    """A past self, as a matchmaking rule sees it.

    Attributes:
        generation: Its number, from 1; a newer one has a higher number.
        agent_steps: Agent steps of training before it was taken.
        rating: That of the policy when it was taken.
        matches: Matches of all policies against it, older ones counting less.
        win_rate: Their share of the points in them, with four drawn matches before the first.
        expected: Points that the policy is expected to get in a match with it, by their ratings.
    """

    generation: int
    agent_steps: int
    rating: float
    matches: float
    win_rate: float
    expected: float


class Learning(NamedTuple):
    """The policy that learns, as a matchmaking rule sees it.

    Attributes:
        name: Its name.
        agent_steps: Agent steps that it has learned from.
        rating: Its rating.
    """

    name: str
    agent_steps: int
    rating: float


MatchmakingRule = Callable[[Sequence[PastSelf], Learning], Sequence[float]]
"""``rule(past, policy)`` returns a weight for each past self, in proportion to which it is met."""


def _uniform(past: Sequence[PastSelf], policy: Learning) -> Sequence[float]:
    return [1.0] * len(past)


def _latest(past: Sequence[PastSelf], policy: Learning) -> Sequence[float]:
    newest = max(member.generation for member in past)
    return [float(member.generation == newest) for member in past]


def _pfsp(past: Sequence[PastSelf], policy: Learning) -> Sequence[float]:
    return [max(_LEAST, (1.0 - member.win_rate) ** 2) for member in past]


def _elo(past: Sequence[PastSelf], policy: Learning) -> Sequence[float]:
    # Where all are far away, the nearest one still has weight 1.
    distances = [((member.expected - 0.5) / _NEAR) ** 2 / 2 for member in past]
    return [math.exp(min(distances) - distance) for distance in distances]


MATCHMAKING: Registry[MatchmakingRule] = Registry(
    "matchmaking",
    {"uniform": _uniform, "latest": _latest, "pfsp": _pfsp, "elo": _elo},
    register="register_matchmaking",
    error=ConfigError,
)


def register_matchmaking(name: str, rule: MatchmakingRule) -> None:
    """Make ``population.matchmaking=name`` let a function decide which past selves are met.

    The learner calls it whenever it publishes weights, so register it in a module that is imported everywhere
    (``--import``).

    Args:
        name: A new name.
        rule: ``rule(past, policy)``, given the past selves that may be met (at least one, each a :class:`PastSelf`) and
            the policy that learns (:class:`Learning`), returns a finite weight of at least 0 for each past self; it is
            met in proportion to it. All 0 means none. In lockstep it must depend on nothing else.

    Raises:
        ValueError: The name is taken by another function.
    """
    MATCHMAKING.register(name, rule)


def probabilities(name: str, rule: MatchmakingRule, past: Sequence[PastSelf], policy: Learning) -> NDArray[np.float64]:
    """Return the probability with which each past self is met, float64 ``[n]``; they sum to 1, or to 0.

    Raises:
        ConfigError: The rule's weights are not as :func:`register_matchmaking` asks.
    """
    given = rule(past, policy)
    weights = np.asarray(given, np.float64)
    if weights.shape != (len(past),) or not np.isfinite(weights).all() or (weights < 0).any():
        raise ConfigError(
            f"population.matchmaking={name!r} gave {given!r} for {len(past)} past selves: give a finite weight of at "
            "least 0 for each."
        )
    total = weights.sum()
    return weights / total if total else weights
