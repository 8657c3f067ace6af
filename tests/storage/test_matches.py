"""Results of matches from slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.storage.matches import Match, follow_matches, matches_of

nan, inf = np.nan, np.inf


def test_matches_between_the_policy_and_a_past_self_are_counted_when_they_end() -> None:
    # Three games of two players; rows 0 and 1 are the first game.
    policies = np.array([[0, 2, 0, 0, 3, 0]] * 3 + [[0, 0, 0, 0, 3, 0]], np.int16)
    returns = np.array(
        [
            [nan, nan, 1, -1, nan, nan],
            [1, -1, nan, nan, nan, nan],
            [nan, nan, nan, nan, 0, 0],
            [1, -1, nan, nan, nan, nan],
        ],
        np.float32,
    )
    # The second game, and the last one of the first, were played by the policy alone.
    assert matches_of(policies, returns, 2) == (Match(2, 1.0), Match(3, 0.5))


def test_the_mean_of_the_policys_agents_counts() -> None:
    policies = np.array([[0, 1, 0]], np.int16)
    assert matches_of(policies, np.array([[5, 2, -2]], np.float32), 3) == (Match(1, 0.0),)
    assert matches_of(policies, np.array([[5, 1, -2]], np.float32), 3) == (Match(1, 1.0),)


def test_an_agent_that_never_acted_decides_nothing() -> None:
    policies = np.array([[0, 1, 2]], np.int16)
    assert matches_of(policies, np.array([[1, inf, 0]], np.float32), 3) == (Match(2, 1.0),)
    assert matches_of(policies, np.array([[1, nan, 0]], np.float32), 3) == ()


def test_each_opponent_is_met_from_the_side_of_the_given_policy() -> None:
    policies, returns = np.array([[0, 1, 2]], np.int16), np.array([[5, 2, -2]], np.float32)
    assert matches_of(policies, returns, 3, policy=1) == (Match(0, 0.0), Match(2, 1.0))
    assert matches_of(policies, returns, 3, policy=3) == ()


def test_many_matches_are_those_of_a_literal_count() -> None:
    random = np.random.default_rng(0)
    for agents in (2, 3, 4):
        policies = random.integers(0, 4, (40, 5 * agents)).astype(np.int16)
        returns = random.integers(-2, 3, policies.shape).astype(np.float32)
        returns[random.random(returns.shape) < 0.1] = nan
        returns[random.random(returns.shape) < 0.2] = inf
        for policy in range(4):
            counted = literal_matches(policies, returns, agents, policy)
            assert len(counted) > 20
            assert list(matches_of(policies, returns, agents, policy=policy)) == counted


def literal_matches(policies: NDArray[Any], returns: NDArray[Any], agents: int, policy: int) -> list[Match]:
    found = []
    for step in range(len(returns)):
        for first in range(0, returns.shape[1], agents):
            of_game = range(first, first + agents)
            if any(np.isnan(returns[step, row]) for row in of_game):
                continue
            scores: dict[int, list[float]] = {}
            for row in of_game:
                if np.isfinite(returns[step, row]):
                    scores.setdefault(int(policies[step, row]), []).append(float(returns[step, row]))
            mine = scores.pop(policy, [])
            for opponent in sorted(scores) if mine else ():
                lead = np.mean(mine) - np.mean(scores[opponent])
                found.append(Match(opponent, 1.0 if lead > 0 else 0.5 if lead == 0 else 0.0))
    return found


def followed(*steps: tuple[list[list[float]], list[bool]]) -> list[list[list[float]]]:
    """What is written after each step, given the returns of the episodes that ended and the games that are over."""
    now = np.full(np.shape(steps[0][0]), nan, np.float32)
    written = []
    for ended, is_over in steps:
        before, now = now, np.zeros_like(now)
        follow_matches(before, np.array(ended, np.float32), np.array(is_over), now)
        written.append(now.tolist())
    return written


def test_returns_are_kept_until_the_game_is_over() -> None:
    written = followed(
        ([[nan, -1, nan], [nan, nan, nan]], [False, False]),
        ([[nan, nan, nan], [2, 2, 3]], [False, True]),
        # The second game is reset in the step after its last one.
        ([[1, nan, nan], [nan, nan, nan]], [True, True]),
        ([[nan, nan, nan], [nan, 7, nan]], [False, False]),
    )
    expected = [
        [[nan, -1, nan], [nan, nan, nan]],
        [[nan, -1, nan], [2, 2, 3]],
        [[1, -1, inf], [nan, nan, nan]],
        [[nan, nan, nan], [nan, 7, nan]],
    ]
    np.testing.assert_array_equal(written, expected)


def test_a_game_whose_environment_failed_is_no_match() -> None:
    written = followed(([[nan, -1]], [False]), ([[nan, nan]], [True]), ([[3, nan]], [False]))
    np.testing.assert_array_equal(written, [[[nan, -1]], [[nan, nan]], [[3, nan]]])
