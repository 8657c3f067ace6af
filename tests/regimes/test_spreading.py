"""How groups are spread over rollout workers and policy workers where they are independent."""

from __future__ import annotations

import pytest

import rollmill
from rollmill.regimes.spreading import SpreadGroups, spread_groups


def spread(workers: int, num_groups: int, policy_workers: int, world_size: int = 1) -> SpreadGroups:
    settings = {
        "num_envs": num_groups * world_size * 2,
        "envs_per_group": 2,
        "rollout.num_workers": workers,
        "inference.num_workers": policy_workers,
    }
    config = rollmill.make_config("gym/CartPole-v1", {"regime": "replay", **settings}, algo="dqn")
    return spread_groups(config.resolved(world_size), world_size)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("groups_per_worker", [1, 2, 3])
def test_no_policy_worker_is_without_groups(workers: int, groups_per_worker: int) -> None:
    num_groups = workers * groups_per_worker
    for policy_workers in range(1, num_groups + 1):
        groups = spread(workers, num_groups, policy_workers)
        served = [groups.policy_worker_of_group.count(index) for index in range(policy_workers)]
        assert min(served) >= 1
        assert max(served) - min(served) <= max(1, workers)
        assert sum(served) == num_groups


@pytest.mark.parametrize(("workers", "num_groups"), [(1, 1), (2, 5), (3, 7), (4, 4), (5, 13)])
def test_rollout_workers_have_equally_many_groups_but_for_one(workers: int, num_groups: int) -> None:
    groups = spread(workers, num_groups, 1)
    assert groups.groups_of_worker == tuple(groups.worker_of_group.count(worker) for worker in range(workers))
    assert sum(groups.groups_of_worker) == num_groups
    assert max(groups.groups_of_worker) - min(groups.groups_of_worker) <= 1


@pytest.mark.parametrize(
    ("workers", "groups_per_worker", "policy_workers"), [(4, 2, 2), (3, 3, 2), (2, 4, 4), (5, 3, 3)]
)
def test_the_groups_of_a_rollout_worker_wait_for_different_policy_workers(
    workers: int, groups_per_worker: int, policy_workers: int
) -> None:
    groups = spread(workers, workers * groups_per_worker, policy_workers)
    for worker in range(workers):
        mine = [p for w, p in zip(groups.worker_of_group, groups.policy_worker_of_group, strict=True) if w == worker]
        assert mine == [place % policy_workers for place in range(groups_per_worker)]


def test_a_rollout_worker_with_too_few_groups_shares_the_policy_workers_with_others() -> None:
    groups = spread(workers=4, num_groups=4, policy_workers=2)
    assert groups == SpreadGroups((0, 1, 2, 3), (0, 1, 0, 1), (1, 1, 1, 1))
    # One rollout worker has a single group, so that two policy workers are not served by each.
    assert spread(workers=2, num_groups=3, policy_workers=2).policy_worker_of_group == (0, 1, 0)


def test_each_rank_spreads_its_own_groups() -> None:
    assert spread(workers=2, num_groups=4, policy_workers=2, world_size=2) == spread(2, 4, 2)
