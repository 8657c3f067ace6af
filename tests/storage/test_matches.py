"""Results of matches from slots."""

from __future__ import annotations

import numpy as np

from rollmill.storage.matches import Match, matches_of


def test_matches_between_the_policy_and_a_past_self_are_counted_when_both_end() -> None:
    nan = np.nan
    # Three games of two players; rows 0 and 1 are the first game.
    policies = np.array([[0, 2, 0, 0, 3, 0]] * 3 + [[0, 0, 0, 0, 3, 0]], np.int16)
    lengths = np.array([[0, 0, 4, 4, 0, 0], [3, 2, 0, 0, 0, 0], [0, 0, 0, 0, 5, 5], [6, 6, 0, 0, 0, 0]], np.int32)
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
    assert matches_of(policies, lengths, returns, 2) == (Match(2, 1.0), Match(3, 0.5))


def test_the_mean_of_the_policys_agents_counts() -> None:
    policies = np.array([[0, 1, 0]], np.int16)
    lengths = np.ones((1, 3), np.int32)
    assert matches_of(policies, lengths, np.array([[5, 2, -2]], np.float32), 3) == (Match(1, 0.0),)
    assert matches_of(policies, lengths, np.array([[5, 1, -2]], np.float32), 3) == (Match(1, 1.0),)


def test_an_agent_that_ends_alone_decides_nothing() -> None:
    policies = np.array([[0, 1]], np.int16)
    assert matches_of(policies, np.array([[3, 0]], np.int32), np.array([[1, np.nan]], np.float32), 2) == ()


def test_each_opponent_is_met_from_the_side_of_the_given_policy() -> None:
    policies = np.array([[0, 1, 2]], np.int16)
    lengths, returns = np.ones((1, 3), np.int32), np.array([[5, 2, -2]], np.float32)
    assert matches_of(policies, lengths, returns, 3, policy=1) == (Match(0, 0.0), Match(2, 1.0))
    assert matches_of(policies, lengths, returns, 3, policy=3) == ()
