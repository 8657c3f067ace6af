"""The async regime (Sample Factory): simulation, inference and learning run at their own pace.

========= ==========================================================================================================
admission ``admission``, by default first in, first out, of several tasks as much of each; samples older than
          ``max_policy_lag`` are excluded and counted
weights   the newest
slots     any free slot of the group's rollout worker, of several tasks one of its task's; learners of several policies
          hold slots in reserve (:mod:`rollmill.storage.slot_reserve`)
pace      a group continues when a slot is free
========= ==========================================================================================================

The process functions import torch inside, because the main process, which imports this module, too, must not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollmill.learning.admission import ADMISSIONS, FIFO, EqualShares
from rollmill.regimes.player_setup import is_drawn, matchmaker, players_of
from rollmill.regimes.setup import (
    Probed,
    RunSetup,
    allocate_slots,
    group_builder,
    with_delays,
)
from rollmill.regimes.spreading import spread_groups
from rollmill.rollout.slot_policies import PooledSlots
from rollmill.rollout.worker import RolloutWorker
from rollmill.runtime.child import ChildContext
from rollmill.runtime.seeds import int_seed
from rollmill.settings.config import Config
from rollmill.settings.regime_config import AsyncConfig
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.slots import Topology, slots_needed

if TYPE_CHECKING:
    from rollmill.learning.learner import Learner


# With equal compute, slots allow a task this many times the samples that it would have with equal samples.
_LARGEST_SHARE = 4


def plan_topology(config: Config, probed: Probed, world_size: int = 1) -> Topology:
    """Assign groups to rollout workers and policy workers, and slots to rollout workers (async).

    Args:
        config: The resolved configuration.
        probed: Sizes of the environment and the network.
        world_size: Always 1 in this regime.

    Raises:
        ConfigError: ``num_slots`` is too small for the run to make progress.
    """
    assert world_size == 1
    regime = config.regime_as(AsyncConfig)
    ADMISSIONS.find(regime.admission, "admission")  # raises for unknown names before processes start
    assert config.envs_per_group != "auto"
    groups = spread_groups(config)
    num_groups = len(groups.worker_of_group)
    agents = probed.spec.rows_per_env
    group_rows = config.envs_per_group * agents
    # Where all agents but one wait at each step, a batch takes as many slots as there are agents, and where policies
    # take turns, as many as there are policies.
    players = players_of(config)
    batch_size = max(policy.on_policy.batch_size for policy in config.policies) * agents
    least = num_groups + -(-batch_size // (config.rollout_length * group_rows)) * players.policies + 1
    wanted, at_first = regime.num_slots, None
    slots_per_task_group = 0
    if tasks := len(config.env.tasks):
        wanted = num_groups * (slots_per_task_group := _slots_per_task_group(config, probed, num_groups))
    elif wanted == "auto":
        wanted, at_first = slots_needed(
            num_groups=num_groups,
            group_rows=group_rows,
            rollout_length=config.rollout_length,
            batch_size=batch_size,
            num_policies=players.policies,
            draws_policies=is_drawn(config, probed.spec.agents),
        )
    elif wanted < least:
        raise ConfigError(
            f"num_slots={wanted}: use at least {least}, one for each of the {num_groups} groups and one "
            "batch's for each policy (fewer would deadlock the run), or 'auto'."
        )

    def of_workers(slots: int) -> tuple[int, ...]:
        return tuple(-(-slots * count // num_groups) for count in groups.groups_of_worker)

    slots_of_worker = of_workers(wanted)
    begin_with = slots_of_worker if at_first is None else of_workers(at_first)
    return Topology(
        rollout_length=config.rollout_length,
        group_rows=group_rows,
        worker_of_group=groups.worker_of_group,
        policy_worker_of_group=groups.policy_worker_of_group,
        slots_of_worker=slots_of_worker,
        reserved_of_worker=tuple(all_ - first for all_, first in zip(slots_of_worker, begin_with, strict=True)),
        num_policy_workers=config.inference.num_workers,
        agents_per_env=agents,
        players=players,
        tasks=tasks,
        slots_per_task_group=slots_per_task_group,
    )


def _slots_per_task_group(config: Config, probed: Probed, num_groups: int) -> int:
    """Return how many slots there are for each group of a task.

    As in :func:`rollmill.storage.slots.slots_needed`: one that it fills, and with the other groups of its task those of
    one batch that is learned from and one that is collected.

    Raises:
        ConfigError: ``num_slots`` is given.
    """
    regime = config.regime_as(AsyncConfig)
    if regime.num_slots != "auto":
        raise ConfigError(
            f"num_slots={regime.num_slots} with several tasks: each task has slots of its own; use num_slots='auto'."
        )
    assert config.envs_per_group != "auto"
    policies, tasks = len(config.population.names), len(config.env.tasks)
    trajectories = max(policy.on_policy.batch_size for policy in config.policies) // config.rollout_length
    rows, group_rows = -(-trajectories // tasks), config.envs_per_group * probed.spec.rows_per_env
    shares = 2 if config.task_share == "samples" else max(2, min(tasks, _LARGEST_SHARE))
    # One more, because batches may end in the middle of a slot: the shares of tasks change from batch to batch.
    slots = -(-shares * rows // group_rows) + 1
    return 1 + -(-slots * policies // (num_groups // tasks))


allocate = allocate_slots


def rollout_worker(context: ChildContext, setup: RunSetup, worker: int) -> None:
    """Run one rollout worker (child process)."""
    setup.user_code.install(networks=False)
    context, store = with_delays(context, setup.config), setup.store()
    RolloutWorker(
        context=context,
        store=store,
        worker=worker,
        builder=group_builder(context, setup, store.task_seconds, store.group_is_parked, worker),
        slots=PooledSlots(store, worker),
        matchmaker=matchmaker(setup, store),
        agents=setup.probed.spec.agents,
    ).run()


def policy_worker(context: ChildContext, setup: RunSetup, index: int) -> None:
    """Run one policy worker (child process)."""
    setup.user_code.install()
    from rollmill.inference.acting_weights import NewestWeights
    from rollmill.inference.batching import ReadyGroups
    from rollmill.inference.explorers import Explorer, GeneratorExplorer, RandomExplorer
    from rollmill.inference.observation_readers import SlotReader
    from rollmill.regimes.torch_side import PolicySide, make_on_policy

    side = PolicySide.of(context, setup, index, setup.store(), make_on_policy)
    config, device = setup.config.inference, side.device
    seed = int_seed(setup.sampling_seed, "policy worker", index)
    on_cpu = device.type == "cpu"
    batching = ReadyGroups(side.store, index, config, side.context.stop, on_cpu=on_cpu)
    past_selves = side.past_selves()
    explorer: Explorer = GeneratorExplorer(side.store.topology, device=device, seed=seed)
    if config.random_actions:
        action = setup.config.stored_action(setup.probed.spec.action)
        random = np.random.default_rng(seed)
        explorer = RandomExplorer(explorer=explorer, action=action, device=device, random=random)
    side.run(
        batching=batching,
        weights=[NewestWeights(*network, is_lowered=side.is_lowered) for network in side.networks],
        reader=SlotReader(side.store, max_groups=batching.max_groups, device=device, may_view=True),
        explorer=explorer,
        states=side.states(),
        seed=seed,
        past_selves=past_selves,
        guests=side.guests(),
    )


def learner(context: ChildContext, setup: RunSetup) -> None:
    """Run the learner (child process)."""
    setup.user_code.install()
    from rollmill.learning.league import Standings
    from rollmill.learning.measure import MeasuredPaths
    from rollmill.learning.ratings import rating_system
    from rollmill.learning.snapshot_keeper import CountedPlaces
    from rollmill.learning.timetable import ByTime
    from rollmill.learning.versions import NewestVersions
    from rollmill.regimes.torch_side import LearnerSide, run_learners
    from rollmill.storage.background_writes import BackgroundWrites
    from rollmill.storage.slot_reserve import SlotReserve

    sides, regime = LearnerSide.of(context, setup), setup.config.regime_as(AsyncConfig)
    make_admission = ADMISSIONS.find(regime.admission, "admission")
    if setup.topology.tasks and setup.config.task_share == "samples" and regime.admission == FIFO:
        make_admission = EqualShares
    paths = MeasuredPaths(is_stop_wanted=context.stop.is_set)
    standings = Standings(len(sides), rating_system(setup.config.population.rating))
    reserve, writes = SlotReserve(setup.store()), BackgroundWrites()

    def learner_of(side: LearnerSide) -> Learner:
        trajectories = side.config.on_policy.batch_size // side.config.rollout_length
        return side.on_policy_learner(
            admission=lambda store: make_admission(store, trajectories),
            reserve=reserve,
            max_policy_lag=regime.max_policy_lag,
            versions=NewestVersions(regime.publish_every),
            timetable=ByTime(side.setup.plan.checkpoints, saves=True),
            choose_path=paths.choose,
            standings=standings,
            places=CountedPlaces,
            writes=writes,
        )

    run_learners(sides, [learner_of(side) for side in sides])
