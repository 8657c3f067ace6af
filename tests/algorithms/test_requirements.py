"""Which action spaces an algorithm takes, and what the message says of one that it does not take."""

from __future__ import annotations

import math

import pytest

from rollmill.algorithms.requirements import (
    UnfitActionsError,
    require_bounded_box,
    require_bounds,
    require_categorical,
)
from rollmill.specs import ActionSpec, BoxHead, CategoricalHead

BOX = BoxHead(low=(-1.0,) * 2, high=(1.0,) * 2, shape=(2,))
CHOICES = CategoricalHead(n=3)
NUMBERS_SPEC = ActionSpec(heads=(BOX,), structure="box")
CHOICES_SPEC = ActionSpec(heads=(CHOICES, CHOICES), structure="multidiscrete")
BOTH_SPEC = ActionSpec(heads=(CHOICES, BOX), structure="tuple", components=(("discrete", 1), ("box", 1)))
NOTHING_SPEC = ActionSpec(heads=(), structure="tuple")


def box(low: float, high: float) -> ActionSpec:
    return ActionSpec(heads=(BOX, BoxHead(low=(-1.0, low), high=(1.0, high), shape=(2,))), structure="tuple")


def test_actions_that_fit_are_taken() -> None:
    require_categorical("DQN", CHOICES_SPEC)
    require_bounded_box("TD3", NUMBERS_SPEC)
    for action in (CHOICES_SPEC, NUMBERS_SPEC, BOTH_SPEC, NOTHING_SPEC):
        require_bounds("SAC", action)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            NUMBERS_SPEC,
            r"DQN rates every choice, but the action space is box of Box\(2,\); allowed: Discrete, MultiDiscrete, "
            r"MultiBinary\. Use sac, td3 or ddpg for a Box \(--algo NAME, algo='NAME'\), or an on-policy algorithm$",
        ),
        (BOTH_SPEC, r"tuple of 3 choices, Box\(2,\); .* Use an on-policy algorithm for choices and numbers together$"),
        (NOTHING_SPEC, "the action space is tuple of nothing; allowed: Discrete"),
    ],
)
def test_choices_are_required(action: ActionSpec, message: str) -> None:
    with pytest.raises(UnfitActionsError, match=message):
        require_categorical("DQN", action)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            CHOICES_SPEC,
            r"TD3 acts in real numbers, but the action space is multidiscrete of 3 choices, 3 choices; allowed: a "
            r"bounded Box\. Use dqn or sac for choices \(--algo NAME, algo='NAME'\), or an on-policy algorithm$",
        ),
        (BOTH_SPEC, "Use an on-policy algorithm for choices and numbers together$"),
        (NOTHING_SPEC, "the action space is tuple of nothing; allowed: a bounded Box"),
        (box(-math.inf, 1.0), "TD3 needs finite bounds"),
    ],
)
def test_a_bounded_box_is_required(action: ActionSpec, message: str) -> None:
    with pytest.raises(UnfitActionsError, match=message):
        require_bounded_box("TD3", action)


@pytest.mark.parametrize(("low", "high"), [(-math.inf, 1.0), (0.0, math.inf), (-3.4e38, 3.4e38), (math.nan, 1.0)])
def test_bounds_whose_distance_float32_cannot_hold_are_refused(low: float, high: float) -> None:
    expected = rf"SAC needs finite bounds.* a Box with low=\(-1.0, {low}\), high=\(1.0, {high}\); wrap the environment"
    with pytest.raises(UnfitActionsError, match=expected.replace("e+", r"e\+")):
        require_bounds("SAC", box(low, high))


def test_large_finite_bounds_are_taken() -> None:
    require_bounds("SAC", box(-1e38, 1e38))
