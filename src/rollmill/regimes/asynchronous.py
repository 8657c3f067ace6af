"""The async regime (Sample Factory): simulation, inference and learning at their own pace, and the slowest never waits.

Admission is first in, first out (:mod:`rollmill.learning.batches`); samples older than ``max_policy_lag`` are left out
and counted. The functions that processes run import torch inside, because the main process, which imports this
module too, does without.
"""

from __future__ import annotations

from rollmill.regimes.setup import (
    Probed,
    RunSetup,
    allocate_slots,
    group_builder,
    run_learner,
    with_delays,
)
from rollmill.regimes.spreading import spread_groups
from rollmill.rollout.pace import UnlimitedPace
from rollmill.rollout.slot_policies import PooledSlots
from rollmill.rollout.worker import RolloutWorker
from rollmill.runtime.child import ChildContext
from rollmill.settings.config import Config, ConfigError
from rollmill.storage.slots import Topology, slots_needed


def plan_topology(config: Config, probed: Probed, world_size: int = 1) -> Topology:
    """Spreads groups over rollout workers and policy workers, and gives each rollout worker its slots (async).

    Args:
        config: Resolved.
        probed: What the environment and the network are.
        world_size: 1; ranks that learn together are for lockstep.

    Raises:
        ConfigError: Fewer slots were asked for than the run needs to go on.
    """
    assert world_size == 1
    assert config.envs_per_group != "auto"
    groups = spread_groups(config)
    num_groups = len(groups.worker_of_group)
    group_rows = config.envs_per_group * probed.spec.rows_per_env
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
    return Topology(
        rollout_length=config.rollout_length,
        group_rows=group_rows,
        worker_of_group=groups.worker_of_group,
        policy_worker_of_group=groups.policy_worker_of_group,
        slots_of_worker=tuple(-(-wanted * count // num_groups) for count in groups.groups_of_worker),
        num_policy_workers=config.inference.num_workers,
    )


allocate = allocate_slots


def rollout_worker(context: ChildContext, setup: RunSetup, worker: int) -> None:
    """Child: one rollout worker."""
    setup.user_code.install(networks=False)
    context, store = with_delays(context, setup.config), setup.store()
    RolloutWorker(
        context=context,
        store=store,
        worker=worker,
        builder=group_builder(context, setup),
        slots=PooledSlots(store, worker),
        pace=UnlimitedPace(),
    ).run()


def policy_worker(context: ChildContext, setup: RunSetup, index: int) -> None:
    """Child: one policy worker."""
    setup.user_code.install()
    from rollmill.inference.actor_critic import ActorCriticPolicyWorker
    from rollmill.models.device import take_threads
    from rollmill.models.registry import make_model
    from rollmill.runtime.seeds import int_seed
    from rollmill.storage.weights import WeightStore

    config, spec = setup.config, setup.probed.spec
    take_threads(config.inference.threads)
    ActorCriticPolicyWorker(
        with_delays(context, config),
        setup.store(),
        WeightStore(setup.memory.arena),
        index,
        make_model(spec.observation, spec.action, config.model),
        action=config.stored_action(spec.action),
        config=config.inference,
        seed=int_seed(setup.sampling_seed, "policy worker", index),
    ).run()


def learner(context: ChildContext, setup: RunSetup) -> None:
    """Child: the learner."""
    from rollmill.learning.learner import Learner

    run_learner(context, setup, Learner)
