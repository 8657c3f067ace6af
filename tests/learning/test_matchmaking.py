"""Which past selves are met."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rollmill.learning.matchmaking import (
    MATCHMAKING,
    Learning,
    PastSelf,
    probabilities,
    register_matchmaking,
)
from rollmill.settings.value_checks import ConfigError

POLICY = Learning("0", 300, 100.0)
PAST = [
    PastSelf(generation=3, agent_steps=300, rating=90.0, matches=20.0, win_rate=0.5, expected=0.5),
    PastSelf(generation=1, agent_steps=100, rating=0.0, matches=20.0, win_rate=0.9, expected=0.75),
    PastSelf(generation=2, agent_steps=200, rating=-300.0, matches=20.0, win_rate=1.0, expected=0.95),
]


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("uniform", [1, 1, 1]),
        ("latest", [1, 0, 0]),
        ("pfsp", [0.25, 0.01, 0.001]),
        # exp(-(p - 1/2)^2 / (2 sigma^2)), sigma = 1/6
        ("elo", [1, math.exp(-(0.25**2) * 18), math.exp(-(0.45**2) * 18)]),
    ],
)
def test_built_in_rules(name: str, weights: list[float]) -> None:
    found = probabilities(name, MATCHMAKING.find(name), PAST, POLICY)
    np.testing.assert_allclose(found, np.array(weights) / sum(weights))


def test_the_nearest_rating_is_met_where_all_are_far_away() -> None:
    far = [member._replace(expected=1.0 - 1e-9) for member in PAST]
    np.testing.assert_allclose(probabilities("elo", MATCHMAKING.find("elo"), far, POLICY), [1 / 3] * 3)


def test_a_rule_may_want_nobody() -> None:
    assert not probabilities("mine", lambda past, policy: [0.0] * 3, PAST, POLICY).any()


@pytest.mark.parametrize("given", [[1.0, 1.0], [1.0, -1.0, 1.0], [math.nan] * 3, 1.0, [math.inf, 0.0, 0.0]])
def test_weights_that_cannot_be_meant_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"population\.matchmaking='mine' gave .* for 3 past selves"):
        probabilities("mine", lambda past, policy: given, PAST, POLICY)


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="matchmaking 'pfsp' exists already"):
        register_matchmaking("pfsp", lambda past, policy: [1.0] * len(past))
