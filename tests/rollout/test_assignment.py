"""Which policy plays which agent."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.rollout.assignment import Assignment

ENVS = np.arange(3000)
NONE = np.ones(3000, np.int64)


def test_draws_are_even_and_independent_of_each_other() -> None:
    assignment = Assignment([(0, 1, 2), (0, 1, 2)], is_random=True, num_envs=3000, seed=1)
    first = assignment.assign(ENVS, NONE, 7)
    pairs, counts = np.unique(first, axis=0, return_counts=True)
    assert len(pairs) == 9
    np.testing.assert_allclose(counts / len(ENVS), 1 / 9, atol=0.02)
    np.testing.assert_array_equal(first[5:9], assignment.assign(ENVS[5:9], NONE, 7))
    assert (first != assignment.assign(ENVS, NONE, 8)).mean() > 0.5


@pytest.mark.parametrize("is_random", [True, False])
def test_an_agent_is_played_by_its_policies_alone(is_random: bool) -> None:
    assignment = Assignment([(1,), (0, 2)], is_random=is_random, num_envs=3000, seed=1)
    drawn = assignment.assign(ENVS, NONE, 0)
    assert set(drawn[:, 0].tolist()) == {1}
    assert set(drawn[:, 1].tolist()) == {0, 2}


def test_without_draws_environments_and_seats_take_turns() -> None:
    assignment = Assignment([(0, 1, 2), (0, 1, 2)], is_random=False, num_envs=3000, seed=1)
    assert assignment.assign(np.arange(4), NONE, 5).tolist() == [[0, 1], [1, 2], [2, 0], [0, 1]]


@pytest.mark.parametrize(("num_envs", "expected"), [(6, [0, 0, 1, 1, 2, 2]), (4, [0, 0, 1, 2]), (3, [0, 1, 2])])
def test_without_draws_each_policy_has_environments_of_one_agent_that_follow_each_other(
    num_envs: int, expected: list[int]
) -> None:
    assignment = Assignment([(0, 1, 2)], is_random=False, num_envs=num_envs, seed=1)
    assert assignment.assign(np.arange(num_envs), NONE, 0).ravel().tolist() == expected


def test_a_rule_decides_with_agent_environment_and_episode() -> None:
    assignment = Assignment(
        [(0, 1), (0, 1)],
        is_random=True,
        num_envs=4,
        seed=1,
        rule=lambda agent, env, episode: 100 * env + 10 * episode + agent,
    )
    assert assignment.assign(np.array([2, 3]), np.array([1, 4]), 0).tolist() == [[210, 211], [340, 341]]
