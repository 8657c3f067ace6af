"""The share of actions at a bound."""

import math

import numpy as np
import pytest

from rollmill.learning.action_bounds import ActionBounds
from rollmill.specs import ActionSpec, BoxHead

BOX = ActionSpec(heads=(BoxHead(shape=(2,), low=(-1.0, -math.inf), high=(1.0, 5.0)),), structure="box")
KEEP = np.array([[True, True], [True, False]])


def test_actions_at_or_beyond_a_bound_are_counted_for_valid_samples() -> None:
    actions = np.array([[[0.0, 7.0], [-1.0, 0.0]], [[1.5, -1e9], [9.0, 9.0]]], np.float32)
    bounds = ActionBounds(BOX, squash=False)
    assert bounds.share_at(actions, KEEP) == pytest.approx(3 / 6)
    assert bounds.share_at(actions, np.zeros_like(KEEP)) is None


def test_squashed_actions_count_near_a_bound() -> None:
    bounded = ActionSpec(heads=(BoxHead(shape=(1,), low=(-2.0,), high=(2.0,)),), structure="box")
    actions = np.array([[[math.atanh(0.995)], [2.0]], [[-9.0], [0.0]]], np.float32)
    assert ActionBounds(bounded, squash=True).share_at(actions, KEEP) == pytest.approx(2 / 3)
