"""Assignment of groups to workers for regimes with independent groups (async, replay); affects speed only."""

from __future__ import annotations

from typing import NamedTuple

from rollmill.settings.config import Config


class SpreadGroups(NamedTuple):
    """Assignment of groups to workers.

    Attributes:
        worker_of_group: Rollout worker of each group.
        policy_worker_of_group: Policy worker of each group.
        groups_of_worker: Number of groups of each rollout worker.
    """

    worker_of_group: tuple[int, ...]
    policy_worker_of_group: tuple[int, ...]
    groups_of_worker: tuple[int, ...]


def spread_groups(config: Config, world_size: int = 1) -> SpreadGroups:
    """Assign this rank's groups to workers.

    Assign groups round-robin to policy workers *within* each rollout worker, so that its groups wait for different
    ones; if it has fewer groups than there are policy workers, round-robin over all rollout workers.
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
