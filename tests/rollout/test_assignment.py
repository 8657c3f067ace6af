"""Which policy plays which agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.rollout.assignment import EPISODES_OF_A_DRAW, SLOTS_OF_A_DRAW, Assignment

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


def shared_draws(assignment: Assignment, *, group: int, envs: Any, draws: int) -> list[Any]:
    """Let all environments of a group begin at once, EPISODES_OF_A_DRAW times for a draw; returns the first of each."""
    first = []
    for draw in range(draws):
        iteration = draw * SLOTS_OF_A_DRAW
        found = [
            assignment.assign(envs, NONE[: len(envs)], group=group, iteration=iteration + episode, step=0)
            for episode in range(EPISODES_OF_A_DRAW)
        ]
        for later in found[1:]:
            np.testing.assert_array_equal(later, found[0])
        first.append(found[0])
    return first


def test_matches_of_a_group_may_share_draws_that_are_as_even() -> None:
    assignment = Assignment([(0, 1, 2), (0, 1, 2)], is_random=True, num_envs=1800, seed=1, envs_per_group=6)
    pairs = []
    for group in range(300):
        for drawn in shared_draws(assignment, group=group, envs=np.arange(6), draws=12):
            assert len({tuple(sorted(match)) for match in drawn.tolist()}) == 1
            np.testing.assert_array_equal(drawn[0], drawn[1][::-1])
            pairs.append(drawn[0])
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    np.testing.assert_allclose(counts / len(pairs), np.full(9, 1 / 9), atol=0.02)
    roles = Assignment([(1,), (0, 2)], is_random=True, num_envs=3000, seed=1, envs_per_group=6)
    assert set(assign(roles, np.arange(6), NONE[:6])[:, 0].tolist()) == {1}


@pytest.mark.parametrize(("policies", "groups"), [(4, 4), (12, 4), (3, 2), (12, 1), (5, 32)])
def test_groups_that_share_draws_soon_have_had_all_policies_alike(policies: int, groups: int) -> None:
    alone = Assignment([range(policies)], is_random=True, num_envs=groups, seed=2, envs_per_group=1)
    count = 8 * policies
    by_group = [shared_draws(alone, group=group, envs=np.arange(1), draws=count) for group in range(groups)]
    drawn = np.array(by_group).reshape(groups, count)
    assert np.bincount(drawn.ravel(), minlength=policies).min() >= 7 * groups
    first = drawn[:, : -(-2 * policies // groups)]
    assert len(np.unique(first)) == policies, "all have played after two draws for each"


def test_a_shared_draw_lasts_for_slots_and_episodes() -> None:
    alone = Assignment([range(1000)], is_random=True, num_envs=8, seed=2, envs_per_group=4)

    def drawn(begun: int, iteration: int) -> int:
        return int(alone.assign(np.arange(begun), NONE[:begun], group=0, iteration=iteration, step=0)[0, 0])

    first = drawn(4, 10)
    assert drawn(4 * EPISODES_OF_A_DRAW, 10 + SLOTS_OF_A_DRAW - 1) == first, "too few slots"
    second = drawn(1, 10 + SLOTS_OF_A_DRAW)
    assert second != first
    assert drawn(4 * EPISODES_OF_A_DRAW - 2, 100) == second, "too few episodes"
    assert drawn(1, 100) == second, "this episode completes the draw"
    assert drawn(1, 100) != second


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
