"""Which worker serves which group, where that changes the speed alone and groups go their own way (async, replay)."""

from __future__ import annotations

from typing import NamedTuple

from rollmill.settings.config import Config


class SpreadGroups(NamedTuple):
    """Who serves whom.

    Attributes:
        worker_of_group: Rollout worker of each group.
        policy_worker_of_group: Policy worker of each group.
        groups_of_worker: How many groups each rollout worker hosts.
    """

    worker_of_group: tuple[int, ...]
    policy_worker_of_group: tuple[int, ...]
    groups_of_worker: tuple[int, ...]


def spread_groups(config: Config, world_size: int = 1) -> SpreadGroups:
    """Deals the groups of a resolved configuration out; of several ranks, this one's.

    Groups go round the policy workers *within* each rollout worker, so that a worker's groups wait for different ones;
    where it has fewer groups than there are policy workers, groups go round over all rollout workers.
    """
    num_workers, envs_per_group = config.rollout.num_workers, config.envs_per_group
    assert num_workers != "auto"
    assert envs_per_group != "auto"
    num_groups, num_policy_workers = config.num_envs // envs_per_group // world_size, config.inference.num_workers
    # The rollout worker with the fewest groups has num_groups // num_workers of them.
    round_of = num_workers if num_policy_workers <= num_groups // num_workers else 1
    return SpreadGroups(
        tuple(group % num_workers for group in range(num_groups)),
        tuple(group // round_of % num_policy_workers for group in range(num_groups)),
        tuple(len(range(worker, num_groups, num_workers)) for worker in range(num_workers)),
    )
