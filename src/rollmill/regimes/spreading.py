"""Assignment of groups to workers for regimes with independent groups (async, replay); affects speed only."""

from __future__ import annotations

import math
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
    tasks = len(config.env.names) if config.task_share == "samples" else 1
    # The rollout worker with the fewest groups has num_groups // num_workers of them.
    round_of = num_workers if num_policy_workers <= num_groups // num_workers else 1
    return SpreadGroups(
        workers := workers_of_groups(num_groups, num_workers, tasks),
        tuple(group // round_of % num_policy_workers for group in range(num_groups)),
        tuple(workers.count(worker) for worker in range(num_workers)),
    )


def workers_of_groups(num_groups: int, num_workers: int, tasks: int = 1) -> tuple[int, ...]:
    """Return the rollout worker of each group, round-robin.

    Args:
        num_groups: Groups.
        num_workers: Rollout workers.
        tasks: Groups g and g + ``tasks`` have one task. Each round of all tasks and workers begins with the next
            worker, so that no worker has some of the tasks alone, whose environments may be slower. 1 for plain
            round-robin.
    """
    period = math.lcm(tasks, num_workers) if tasks > 1 else max(1, num_groups)
    return tuple((group + group // period) % num_workers for group in range(num_groups))
