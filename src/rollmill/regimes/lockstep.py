"""The lockstep regime (Cleanba): iteration i is learned from what policy version max(0, i - lag) collected, exactly.

Each group has ``lag + 1`` slots of its own, and gets one back after the learner has published what it learned from it:
so a free slot says that the version to act by is there, and the number of slots is the lag. The functions that
processes run import torch inside, because the main process, which imports this module too, does without.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rollmill.regimes.setup import (
    Probed,
    RunSetup,
    allocate_slots,
    device_of_rank,
    group_builder,
    group_states,
    make_network,
    run_learner,
    with_delays,
)
from rollmill.rollout.group_checkpoints import GroupCheckpoints
from rollmill.rollout.pace import UnlimitedPace
from rollmill.rollout.slot_policies import GroupSlots
from rollmill.rollout.worker import RolloutWorker
from rollmill.runtime.child import ChildContext
from rollmill.runtime.seeds import int_seed
from rollmill.settings.config import Config
from rollmill.storage.slots import Topology


def plan_topology(config: Config, probed: Probed, world_size: int = 1) -> Topology:
    """Gives each of a rank's groups ``lag + 1`` slots, and spreads them over the rank's workers.

    Who steps or infers a group changes the speed alone. Policy workers get whole batches; rollout workers get groups of
    different ones, so that some are stepped while others are inferred.
    """
    num_workers, envs_per_group = config.rollout.num_workers, config.envs_per_group
    groups_per_batch = config.inference.groups_per_batch
    assert num_workers != "auto"
    assert envs_per_group != "auto"
    num_groups = config.num_envs // envs_per_group // world_size
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


allocate = allocate_slots


def _seed_from(config: Config, iteration: int) -> int:
    """What keys environments that are built for this iteration; those built for different ones share nothing."""
    return int_seed(config.seed, "built for iteration", iteration, bits=63) if iteration else config.seed


def rollout_worker(context: ChildContext, setup: RunSetup, worker: int) -> None:
    """Child: one rollout worker."""
    setup.user_code.install(networks=False)
    config, store = setup.config, setup.store()
    context = with_delays(context, config)
    builder = group_builder(context, setup, partial(_seed_from, config))
    checkpoints = GroupCheckpoints(
        store=store,
        builder=builder,
        states=group_states(setup.run_dir),
        save_every=config.iterations_per_checkpoint,
        saves_environments=config.checkpoint.save_environments,
        trust=setup.trust,
    )
    RolloutWorker(
        context=context,
        store=store,
        worker=worker,
        builder=builder,
        slots=GroupSlots(store, worker, checkpoints),
        pace=UnlimitedPace(),
        first_iteration=setup.probed.first_iteration,
    ).run()


def policy_worker(context: ChildContext, setup: RunSetup, index: int) -> None:
    """Child: one policy worker."""
    setup.user_code.install()
    from rollmill.inference.lockstep import LockstepPolicyWorker
    from rollmill.models.device import take_threads
    from rollmill.storage.weights import WeightStore

    config, spec = setup.config, setup.probed.spec
    take_threads(config.inference.threads)
    device = device_of_rank(config.inference.device, setup.ranks)
    LockstepPolicyWorker(
        with_delays(context, config),
        setup.store(),
        WeightStore(setup.memory.arena),
        index,
        make_network(config, spec),
        action=config.stored_action(spec.action),
        config=replace(config.inference, device=str(device)),
        seed=config.seed,
        first_row=setup.first_group * setup.topology.group_rows,
        first_iteration=setup.probed.first_iteration,
    ).run()


def learner(context: ChildContext, setup: RunSetup) -> None:
    """Child: the learner."""
    from rollmill.learning.lockstep import LockstepLearner

    run_learner(
        context,
        setup,
        partial(
            LockstepLearner,
            states=group_states(setup.run_dir),
            first_iteration=setup.probed.first_iteration,
            save_every=setup.config.iterations_per_checkpoint,
        ),
    )
