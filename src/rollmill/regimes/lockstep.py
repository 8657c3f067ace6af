"""The lockstep regime (Cleanba): iteration i learns from the data of exactly policy version max(0, i - lag).

========= ==========================================================================================================
admission the i-th slot of every group, in the order of the groups
weights   exactly version max(0, i - lag)
slots     one of the group's own ``lag + 1`` slots
pace      a group continues when its next slot is free
========= ==========================================================================================================

The learner releases a group's slot after publishing the version learned from it. A free slot therefore means that the
version to act with is published, and the number of slots bounds the lag. The process functions import torch inside,
because the main process, which imports this module, too, must not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rollmill.regimes.player_setup import matchmaker, players_of
from rollmill.regimes.setup import (
    Probed,
    RunSetup,
    allocate_slots,
    group_builder,
    group_states,
    with_delays,
)
from rollmill.regimes.spreading import workers_of_groups
from rollmill.rollout.group_checkpoints import GroupCheckpoints
from rollmill.rollout.slot_policies import GroupSlots
from rollmill.rollout.worker import RolloutWorker
from rollmill.runtime.child import ChildContext
from rollmill.runtime.seeds import int_seed
from rollmill.settings.config import Config
from rollmill.settings.regime_config import LockstepConfig
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.slots import Topology

if TYPE_CHECKING:
    from rollmill.learning.learner import Learner


def plan_topology(config: Config, probed: Probed, world_size: int = 1) -> Topology:
    """Assign ``lag + 1`` slots to each of a rank's groups, and the groups to the rank's workers.

    The assignment affects speed only. Policy workers get whole batches; rollout workers get groups of different
    batches, so that some are stepped while others are inferred.

    Raises:
        ConfigError: Several ranks for several agents.
    """
    num_workers, envs_per_group = config.rollout.num_workers, config.envs_per_group
    groups_per_batch = config.inference.groups_per_batch
    assert num_workers != "auto"
    assert envs_per_group != "auto"
    if probed.spec.agents and world_size > 1:
        raise ConfigError(
            f"{probed.spec.name} has {probed.spec.rows_per_env} agents, but {world_size} ranks train together: several "
            "agents are trained by one rank only; start one."
        )
    num_groups = config.num_envs // envs_per_group // world_size
    slots_per_group = config.regime_as(LockstepConfig).lag + 1
    return Topology(
        rollout_length=config.rollout_length,
        group_rows=envs_per_group * probed.spec.rows_per_env,
        worker_of_group=(workers := workers_of_groups(num_groups, num_workers, len(config.env.names))),
        policy_worker_of_group=tuple(
            group // groups_per_batch % config.inference.num_workers for group in range(num_groups)
        ),
        slots_of_worker=tuple(slots_per_group * workers.count(worker) for worker in range(num_workers)),
        slots_per_group=slots_per_group,
        groups_per_batch=groups_per_batch,
        num_policy_workers=config.inference.num_workers,
        agents_per_env=probed.spec.rows_per_env,
        players=players_of(config),
        tasks=len(config.env.tasks),
    )


allocate = allocate_slots


def _seed_from(config: Config, iteration: int) -> int:
    """Return the seed of environments built for this iteration; different iterations have different seeds."""
    return int_seed(config.seed, "built for iteration", iteration, bits=63) if iteration else config.seed


def rollout_worker(context: ChildContext, setup: RunSetup, worker: int) -> None:
    """Run one rollout worker (child process)."""
    setup.user_code.install(networks=False)
    config, store = setup.config, setup.store()
    context = with_delays(context, config)
    builder = group_builder(
        context, setup, store.task_seconds, store.group_is_parked, worker, partial(_seed_from, config)
    )
    checkpoints = GroupCheckpoints(
        store=store,
        builder=builder,
        states=group_states(setup.run_dir),
        save_every=config.iterations_per_checkpoint,
        saves_environments=config.checkpoint.save_environments,
        trust=setup.trust,
        matchmaker=(matching := matchmaker(setup, store)),
    )
    RolloutWorker(
        context=context,
        store=store,
        worker=worker,
        builder=builder,
        slots=GroupSlots(store, worker, checkpoints),
        matchmaker=matching,
        first_iteration=setup.probed.first_iteration,
        agents=setup.probed.spec.agents,
    ).run()


def policy_worker(context: ChildContext, setup: RunSetup, index: int) -> None:
    """Run one policy worker (child process)."""
    setup.user_code.install()
    from rollmill.inference.acting_weights import ExactWeights
    from rollmill.inference.batching import FixedGroups
    from rollmill.inference.explorers import KeyedExplorer
    from rollmill.inference.observation_readers import SlotReader
    from rollmill.regimes.torch_side import PolicySide, make_on_policy

    side = PolicySide.of(context, setup, index, setup.store(), make_on_policy)
    batching = FixedGroups(side.store, index)
    past_selves = side.past_selves()
    side.run(
        batching=batching,
        weights=[
            ExactWeights(side.store, *network, is_lowered=side.is_lowered, first_iteration=setup.probed.first_iteration)
            for network in side.networks
        ],
        reader=SlotReader(side.store, max_groups=batching.max_groups, device=side.device, may_view=False),
        explorer=KeyedExplorer(
            side.store,
            width=max(network.algorithm.acting.distribution.noise_size for network in side.networks),
            device=side.device,
            seed=setup.config.seed,
            first_row=setup.first_group * setup.topology.group_rows,
        ),
        states=side.states(is_shared=True),
        seed=setup.config.seed,
        past_selves=past_selves,
        guests=side.guests(),
    )


def learner(context: ChildContext, setup: RunSetup) -> None:
    """Run the learner (child process)."""
    setup.user_code.install()
    from rollmill.learning.admission import Iterations
    from rollmill.learning.league import Standings
    from rollmill.learning.ratings import rating_system
    from rollmill.learning.settled import settled_fast_path
    from rollmill.learning.snapshot_keeper import ObservedPlaces
    from rollmill.learning.timetable import ByIteration
    from rollmill.learning.versions import ExactVersions
    from rollmill.regimes.torch_side import LearnerSide, run_learners
    from rollmill.storage.slot_reserve import SlotReserve

    sides, config, topology = LearnerSide.of(context, setup), setup.config, setup.topology
    first_iteration = setup.probed.first_iteration
    standings = Standings(len(sides), rating_system(config.population.rating))
    reserve = SlotReserve(setup.store())  # empty

    def learner_of(side: LearnerSide) -> Learner:
        return side.on_policy_learner(
            admission=Iterations,
            reserve=reserve,
            max_policy_lag=config.regime_as(LockstepConfig).max_policy_lag,
            versions=ExactVersions(
                num_versions=topology.slots_per_group,
                num_groups=topology.num_groups,
                states=group_states(setup.run_dir),
                first_iteration=first_iteration,
                collective=side.setup.collective,
                # The last one saves last.
                keeps_groups=side is sides[-1],
            ),
            timetable=ByIteration(
                save_every=config.iterations_per_checkpoint,
                total_steps=config.total_steps,
                batch_size=config.on_policy.batch_size,
                first_iteration=first_iteration,
            ),
            choose_path=settled_fast_path,
            standings=standings,
            places=lambda bank: ObservedPlaces(topology.players, side.policy, topology.slots_per_group - 1),
        )

    run_learners(sides, [learner_of(side) for side in sides])
