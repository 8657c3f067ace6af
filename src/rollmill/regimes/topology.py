"""From a configuration and what the probe found to the layout of shared memory."""

from __future__ import annotations

from rollmill.config import Config, ConfigError
from rollmill.regimes.setup import Probed
from rollmill.storage.slots import Topology, slots_needed


def plan_lockstep_topology(config: Config, probed: Probed) -> Topology:
    """Gives each group ``lag + 1`` slots, and spreads groups over the workers.

    Who steps or infers a group changes the speed alone. Policy workers get whole batches; rollout workers get groups of
    different ones, so that some are stepped while others are inferred.
    """
    num_workers, envs_per_group = config.rollout.num_workers, config.envs_per_group
    groups_per_batch = config.inference.groups_per_batch
    assert num_workers != "auto"
    assert envs_per_group != "auto"
    assert groups_per_batch != "auto"
    num_groups = config.num_envs // envs_per_group
    slots_per_group = config.lag + 1
    return Topology(
        rollout_length=config.rollout_length,
        group_rows=envs_per_group * probed.spec.rows_per_env,
        worker_of_group=tuple(group % num_workers for group in range(num_groups)),
        policy_worker_of_group=tuple(
            group // groups_per_batch % config.inference.num_workers for group in range(num_groups)
        ),
        slots_of_worker=tuple(
            slots_per_group * len(range(worker, num_groups, num_workers)) for worker in range(num_workers)
        ),
        slots_per_group=slots_per_group,
        groups_per_batch=groups_per_batch,
        num_policy_workers=config.inference.num_workers,
    )


def plan_topology(config: Config, probed: Probed) -> Topology:
    """Spreads groups over rollout workers and policy workers, and gives each rollout worker its slots (async).

    Groups go round the policy workers *within* each rollout worker, so that a worker's groups wait for different ones;
    where it has fewer groups than there are policy workers, groups go round over all rollout workers.

    Raises:
        ConfigError: Fewer slots were asked for than the run needs to go on.
    """
    num_workers, envs_per_group = config.rollout.num_workers, config.envs_per_group
    assert num_workers != "auto"
    assert envs_per_group != "auto"
    num_groups = config.num_envs // envs_per_group
    num_policy_workers = config.inference.num_workers
    group_rows = envs_per_group * probed.spec.rows_per_env
    least = num_groups + -(-config.learner.batch_size // (config.rollout_length * group_rows)) + 1
    wanted = config.num_slots
    if wanted == "auto":
        wanted = slots_needed(
            num_groups=num_groups,
            group_rows=group_rows,
            rollout_length=config.rollout_length,
            batch_size=config.learner.batch_size,
        )
    elif wanted < least:
        raise ConfigError(
            f"num_slots={wanted}: at least {least} are needed, one for each of the {num_groups} groups and one "
            "batch's; fewer would stop the run for good. Use 'auto'."
        )
    # The rollout worker with the fewest groups has num_groups // num_workers of them.
    round_of = num_workers if num_policy_workers <= num_groups // num_workers else 1
    groups_of_worker = [len(range(worker, num_groups, num_workers)) for worker in range(num_workers)]
    return Topology(
        rollout_length=config.rollout_length,
        group_rows=group_rows,
        worker_of_group=tuple(group % num_workers for group in range(num_groups)),
        policy_worker_of_group=tuple(group // round_of % num_policy_workers for group in range(num_groups)),
        slots_of_worker=tuple(-(-wanted * groups // num_groups) for groups in groups_of_worker),
        num_policy_workers=num_policy_workers,
    )
