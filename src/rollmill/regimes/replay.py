"""The replay regime (PAL): off-policy algorithms learn from a replay of slots, at a fixed ratio of SGD to agent steps.

========= ==========================================================================================================
admission batches drawn by priority from live slots
weights   the newest
slots     a free slot, or a completed one that leaves the replay first
pace      a group continues when the rate limiter allows
========= ==========================================================================================================

The process functions import torch inside, because the main process, which imports this module, too, must not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rollmill.learning.live_numbers import control_block
from rollmill.regimes.player_setup import ladder_rungs, matchmaker, players_of
from rollmill.regimes.replay_memory import allocate_replay
from rollmill.regimes.setup import Probed, RunSetup, group_builder, with_delays
from rollmill.regimes.spreading import spread_groups
from rollmill.rollout.assignment import AUTO, FIXED
from rollmill.rollout.slot_policies import EvictingSlots
from rollmill.rollout.worker import RolloutWorker
from rollmill.runtime.child import ChildContext
from rollmill.runtime.seeds import int_seed
from rollmill.settings.config import Config
from rollmill.settings.regime_config import ReplayRegimeConfig
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.removers import make_remover
from rollmill.storage.replay import ReplayStore
from rollmill.storage.slots import Topology

if TYPE_CHECKING:
    from rollmill.learning.league import Standings
    from rollmill.learning.learner import Learner
    from rollmill.regimes.torch_side import LearnerSide

# Limit of a sum tree.
_MOST_LEAVES = 1 << 40


def plan_topology(config: Config, probed: Probed, world_size: int = 1) -> Topology:
    """Assign groups to workers as in async, and the replay's slots to rollout workers.

    Args:
        config: The resolved configuration.
        probed: Sizes of the environment and the network.
        world_size: Number of ranks, each with its own replay and an equal share of the capacity.

    Raises:
        ConfigError: The replay cannot work with these settings.
    """
    assert config.envs_per_group != "auto"
    if probed.spec.agents and config.replay.has_sequences:
        raise ConfigError(
            f"replay.sequence_length={config.replay.sequence_length}, but {probed.spec.name} has "
            f"{probed.spec.rows_per_env} agent(s), which do not act at every step: sequences need environments of one "
            "agent; use algorithms without a recurrent core (model.core=none, replay.sequence_length=0), or an "
            "on-policy one (--algo ppo --model.core gru)."
        )
    stays = config.population.assignment in (AUTO, FIXED)  # With one agent, "auto" is "fixed".
    if len(config.population.names) > 1 and config.replay.has_sequences and not stays:
        raise ConfigError(
            f"population.assignment={config.population.assignment!r} with replay.sequence_length="
            f"{config.replay.sequence_length}: a sequence reaches across episodes, which must be of one policy; use "
            "population.assignment=fixed, or single transitions (model.core=none, replay.sequence_length=0)."
        )
    if probed.guest_state_size:
        raise ConfigError(
            f"population.guests={','.join(config.population.guests)}: one has a recurrent core, whose state a replay "
            "does not keep; use guests without one (model.core=none), or regime='async' or 'lockstep'."
        )
    has_state = max(network.state_size for network in probed.networks) > 0
    if has_state != config.replay.has_sequences:
        raise ConfigError(
            f"replay.sequence_length={config.replay.sequence_length}, but algorithm {config.algorithm_name!r} "
            "has "
            + (
                "a recurrent state and learns from sequences: give their length."
                if has_state
                else "no recurrent state and learns from single transitions: use 0."
            )
        )
    # Raise for unknown names before processes start.
    make_remover(config.replay.remover, np.random.default_rng(0), lambda slot: 0.0)
    groups = spread_groups(config, world_size)
    rows = config.envs_per_group * probed.spec.rows_per_env
    num_groups = len(groups.worker_of_group)
    all_rows = num_groups * rows * world_size
    least = config.replay.least_min_size(all_rows)
    if config.replay.min_size < least:
        raise ConfigError(
            f"replay.min_size={config.replay.min_size}: with so few agent steps no "
            f"{'sequence' if config.replay.has_sequences else 'transition'} may be complete; with {all_rows} rows and "
            f"{least // all_rows} steps each, use {least} or more."
        )
    # In addition to drawable slots, each group writes one slot and still needs its previous one.
    wanted = -(-config.replay.most_steps // (config.rollout_length * rows * world_size)) + 2 * num_groups
    if wanted * config.rollout_length * rows > _MOST_LEAVES:
        raise ConfigError(
            f"replay.capacity={config.replay.most_steps}: use at most {_MOST_LEAVES:,} agent steps on each rank."
        )
    return Topology(
        rollout_length=config.rollout_length,
        group_rows=rows,
        worker_of_group=groups.worker_of_group,
        policy_worker_of_group=groups.policy_worker_of_group,
        slots_of_worker=tuple(-(-wanted * count // num_groups) for count in groups.groups_of_worker),
        num_policy_workers=config.inference.num_workers,
        # Each learner is woken by its own ring; with several, the first ring is the parameter server's.
        num_learners=1 if config.num_learners == 1 else 1 + config.num_learners,
        agents_per_env=probed.spec.rows_per_env,
        players=players_of(config),
        tasks=len(config.env.tasks),
    )


allocate = allocate_replay


def store_of(setup: RunSetup, policy: int = 0) -> ReplayStore:
    """Attach the replay, as the learner of a policy sees it."""
    memory, probed = setup.memory, setup.probed
    assert memory.replay is not None
    return ReplayStore(
        {**memory.arena, **memory.replay},
        probed.spec,
        setup.topology,
        setup.config.replay,
        memory.limits,
        state_size=probed.state_size,
        policy=policy,
        own_state_size=probed.networks[policy].state_size,
    )


def rollout_worker(context: ChildContext, setup: RunSetup, worker: int) -> None:
    """Run one rollout worker (child process)."""
    setup.user_code.install(networks=False)
    from rollmill.runtime.seeds import stream

    config, store = setup.config, store_of(setup)
    context = with_delays(context, config)
    random = stream(setup.sampling_seed, f"remover of rank {setup.ranks.rank}", worker)
    remover = make_remover(config.replay.remover, random, store.priority_of)
    RolloutWorker(
        context=context,
        store=store,
        worker=worker,
        builder=group_builder(context, setup, store.task_seconds, store.group_is_parked, worker),
        slots=EvictingSlots(store, worker, remover),
        matchmaker=matchmaker(setup, store),
        agents=setup.probed.spec.agents,
    ).run()


def policy_worker(context: ChildContext, setup: RunSetup, index: int) -> None:
    """Run one policy worker (child process)."""
    setup.user_code.install()
    from rollmill.inference.acting_weights import NewestWeights
    from rollmill.inference.batching import ReadyGroups
    from rollmill.inference.explorers import GeneratorExplorer
    from rollmill.inference.observation_readers import ShownReader
    from rollmill.regimes.torch_side import PolicySide, make_off_policy

    store = store_of(setup)
    side = PolicySide.of(context, setup, index, store, make_off_policy)
    config, device = setup.config, side.device
    seed = int_seed(setup.sampling_seed, f"policy worker of rank {setup.ranks.rank}", index)
    on_cpu = device.type == "cpu"
    past_selves = side.past_selves()
    side.run(
        batching=ReadyGroups(store, index, config.inference, side.context.stop, on_cpu=on_cpu),
        weights=[NewestWeights(*network, is_lowered=side.is_lowered) for network in side.networks],
        reader=ShownReader(store, device=device),
        explorer=GeneratorExplorer(
            store.topology,
            device=device,
            seed=seed,
            agent_steps=lambda: store.limiter.inserted_by_all,
            total_steps=config.total_steps,
            world_size=setup.ranks.world_size,
            first_row=setup.first_group * setup.topology.group_rows,
            rungs=ladder_rungs(config, setup.probed.spec),
        ),
        states=side.states(),
        seed=seed,
        past_selves=past_selves,
        guests=side.guests(),
    )


def learner(context: ChildContext, setup: RunSetup) -> None:
    """Run the learners of all policies, or the parameter server of one that has several (child process)."""
    setup.user_code.install()
    from rollmill.learning.league import Standings
    from rollmill.learning.ratings import rating_system
    from rollmill.regimes.torch_side import LearnerSide, run_learners

    config = setup.config
    # Shared gradients and weights are in channels_last, in any case; the server only adds them up.
    compute = replace(config.compute, channels_last=True) if config.num_learners > 1 else config.compute
    sides = LearnerSide.of(context, setup, compute)
    standings = Standings(len(sides), rating_system(config.population.rating))
    run_learners(sides, [_learner_of(side, context, standings) for side in sides])


def _learner_of(side: LearnerSide, context: ChildContext, standings: Standings) -> Learner:
    """Build the learner of a policy, in its process."""
    import torch

    from rollmill.learning.gradient_server import GradientServer
    from rollmill.learning.learner import Trainer
    from rollmill.learning.off_policy_measure import choose_replay_path
    from rollmill.learning.progress import noise_seed
    from rollmill.learning.replay_trainer import ReplayAccount, ReplayTrainer
    from rollmill.learning.snapshot_keeper import CountedPlaces
    from rollmill.learning.timetable import ByTime
    from rollmill.learning.update import Update
    from rollmill.learning.versions import NewestVersions
    from rollmill.regimes.torch_side import make_off_policy
    from rollmill.storage.gradients import GradientExchange

    run, plan, ranks = side.run, side.setup.plan, side.setup.collective
    regime = run.config.regime_as(ReplayRegimeConfig)
    several = regime.num_learners > 1
    store, arena, replay = store_of(run, side.policy), run.memory.arena, regime.replay
    algorithm = side.make(make_off_policy)
    generator = torch.Generator(side.setup.device).manual_seed(noise_seed(plan, ranks, 0))
    path = choose_replay_path(
        algorithm,
        run.probed.spec,
        side.setup.compute,
        replay,
        is_alone=ranks.world_size == 1,
        is_stop_wanted=context.stop.is_set,
    )
    update = Update(algorithm, side.setup.optimiser, path, generator=generator, collective=ranks)
    account = ReplayAccount(
        side.setup, store, algorithm, update=update, replay=replay, generator=generator, several=several
    )
    league = side.league(standings, CountedPlaces)
    trainer: Trainer
    if several:
        exchange = GradientExchange(arena, regime.num_learners)
        trainer = GradientServer(
            account, algorithm, exchange=exchange, arrays=arena, max_staleness=regime.staleness_bound
        )
    else:
        trainer = ReplayTrainer(account, league)
    timetable = ByTime(plan.checkpoints, saves=not ranks.rank)
    return side.learner(algorithm, trainer, NewestVersions(regime.publish_every), timetable, league)


def gradient_learner(context: ChildContext, setup: RunSetup, index: int) -> None:
    """Run one of several learners, with a parameter server (child process)."""
    setup.user_code.install()
    import torch

    from rollmill.learning.gradients import GradientLearner
    from rollmill.models.device import take_threads
    from rollmill.regimes.torch_side import make_off_policy
    from rollmill.storage.gradients import GradientExchange

    config, spec, arena = setup.config, setup.probed.spec, setup.memory.arena
    take_threads(config.compute.threads)
    torch.manual_seed(int_seed(config.seed, "initial weights", 0))
    algorithm = make_off_policy(config, spec)
    torch.manual_seed(int_seed(setup.sampling_seed, "gradient learner", index))  # Dropout must differ between learners.
    GradientLearner(
        with_delays(context, config),
        store_of(setup),
        GradientExchange(arena, config.num_learners),
        index,
        control_block(arena),
        algorithm,
        arrays=arena,
        spec=spec,
        optimiser=config.optimiser,
        compute=config.compute,
        replay=config.replay,
        total_steps=config.total_steps,
        seed=int_seed(setup.sampling_seed, "gradient learner", index),
    ).run()
