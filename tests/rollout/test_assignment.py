"""Which policy plays which agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.rollout.assignment import SLOTS_OF_A_DRAW, Assignment

ENVS = np.arange(3000)


def assign(assignment: Assignment, envs: Any, episodes: Any, step: int = 0, group: int = 0) -> Any:
    return assignment.assign(envs, episodes, group=group, iteration=step // 8, step=step)


NONE = np.ones(3000, np.int64)


def test_draws_are_even_and_independent_of_each_other() -> None:
    assignment = Assignment([(0, 1, 2), (0, 1, 2)], is_random=True, num_envs=3000, seed=1)
    first = assign(assignment, ENVS, NONE, 7)
    pairs, counts = np.unique(first, axis=0, return_counts=True)
    assert len(pairs) == 9
    np.testing.assert_allclose(counts / len(ENVS), 1 / 9, atol=0.02)
    np.testing.assert_array_equal(first[5:9], assign(assignment, ENVS[5:9], NONE, 7))
    assert (first != assign(assignment, ENVS, NONE, 8)).mean() > 0.5


def test_matches_of_a_group_may_share_draws_that_are_as_even() -> None:
    assignment = Assignment([(0, 1, 2), (0, 1, 2)], is_random=True, num_envs=3000, seed=1, by_group=True)
    envs, pairs = np.arange(6), []
    for group in range(300):
        for iteration in range(0, 12 * SLOTS_OF_A_DRAW, SLOTS_OF_A_DRAW):
            drawn = [
                assignment.assign(envs, NONE[:6], group=group, iteration=at, step=8 * at)
                for at in (iteration, iteration + SLOTS_OF_A_DRAW - 1)
            ]
            np.testing.assert_array_equal(drawn[0], drawn[1])
            assert len({tuple(sorted(match)) for match in drawn[0].tolist()}) == 1
            np.testing.assert_array_equal(drawn[0][0], drawn[0][1][::-1])
            pairs.append(drawn[0][0])
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    np.testing.assert_allclose(counts / len(pairs), np.full(9, 1 / 9), atol=0.02)
    # Four groups of single agents have had all of four policies alike after few draws.
    alone = Assignment([(0, 1, 2, 3)], is_random=True, num_envs=8, seed=2, by_group=True)
    draws = [
        alone.assign(envs[:1], NONE[:1], group=group, iteration=period * SLOTS_OF_A_DRAW, step=0)[0, 0]
        for group in range(4)
        for period in range(8)
    ]
    assert np.bincount(draws, minlength=4).min() >= 6
    roles = Assignment([(1,), (0, 2)], is_random=True, num_envs=3000, seed=1, by_group=True)
    assert set(assign(roles, envs, NONE[:6])[:, 0].tolist()) == {1}


@pytest.mark.parametrize("is_random", [True, False])
def test_an_agent_is_played_by_its_policies_alone(is_random: bool) -> None:
    assignment = Assignment([(1,), (0, 2)], is_random=is_random, num_envs=3000, seed=1)
    drawn = assign(assignment, ENVS, NONE, 0)
    assert set(drawn[:, 0].tolist()) == {1}
    assert set(drawn[:, 1].tolist()) == {0, 2}


def test_without_draws_environments_and_seats_take_turns() -> None:
    assignment = Assignment([(0, 1, 2), (0, 1, 2)], is_random=False, num_envs=3000, seed=1)
    assert assign(assignment, np.arange(4), NONE, 5).tolist() == [[0, 1], [1, 2], [2, 0], [0, 1]]


@pytest.mark.parametrize(("num_envs", "expected"), [(6, [0, 0, 1, 1, 2, 2]), (4, [0, 0, 1, 2]), (3, [0, 1, 2])])
def test_without_draws_each_policy_has_environments_of_one_agent_that_follow_each_other(
    num_envs: int, expected: list[int]
) -> None:
    assignment = Assignment([(0, 1, 2)], is_random=False, num_envs=num_envs, seed=1)
    assert assign(assignment, np.arange(num_envs), NONE, 0).ravel().tolist() == expected


def test_a_rule_decides_with_agent_environment_and_episode() -> None:
    assignment = Assignment(
        [(0, 1), (0, 1)],
        is_random=True,
        num_envs=4,
        seed=1,
        rule=lambda agent, env, episode: 100 * env + 10 * episode + agent,
    )
    assert assign(assignment, np.array([2, 3]), np.array([1, 4]), 0).tolist() == [[210, 211], [340, 341]]
