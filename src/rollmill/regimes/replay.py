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

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from rollmill.learning.live_numbers import add_numbers_to_layout, control_block
from rollmill.regimes.memory_parts import memory_advice, of_local_ranks, private_parts
from rollmill.regimes.setup import (
    Memory,
    Probed,
    RunSetup,
    group_builder,
    with_delays,
)
from rollmill.regimes.spreading import spread_groups
from rollmill.rollout.slot_policies import EvictingSlots
from rollmill.rollout.worker import RolloutWorker
from rollmill.runtime.arena import Arena, ArenaLayout, MemoryPart
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.seeds import int_seed
from rollmill.settings.config import Config
from rollmill.settings.regime_config import ReplayRegimeConfig
from rollmill.settings.value_checks import ConfigError
from rollmill.storage import gradients, weights
from rollmill.storage.rate_limiter import RateLimits, inserted_of, resumed_limits
from rollmill.storage.removers import make_remover
from rollmill.storage.replay import (
    ReplayStore,
    add_beside_to_layout,
    add_to_layout,
    damage_of,
    replay_fields,
    stacked_entries,
)
from rollmill.storage.replay_file import OpenedReplay, has_replay, open_replay
from rollmill.storage.slots import Topology

# Limit of a sum tree.
_MOST_LEAVES = 1 << 40
_ADVICE = "use a smaller replay.capacity, or replay.storage=file, which takes it from the disk"


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
    if bool(probed.state_size) != config.replay.has_sequences:
        raise ConfigError(
            f"replay.sequence_length={config.replay.sequence_length}, but algorithm {config.algorithm_name!r} "
            "has "
            + (
                "a recurrent state and learns from sequences: give their length."
                if probed.state_size
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
    wanted = -(-config.replay.capacity // (config.rollout_length * rows * world_size)) + 2 * num_groups
    if wanted * config.rollout_length * rows > _MOST_LEAVES:
        raise ConfigError(
            f"replay.capacity={config.replay.capacity}: use at most {_MOST_LEAVES:,} agent steps on each rank."
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
    )


def allocate(
    config: Config,
    probed: Probed,
    topology: Topology,
    run_dir: Path,
    saved_steps: int | None,
    ranks: Ranks,
    *,
    trust: bool,
) -> Memory:
    """Allocate the replay and the other shared memory.

    Args:
        config: The resolved configuration.
        probed: Sizes of the environment and the network.
        topology: The run's topology.
        run_dir: The run's directory, for a replay in a file.
        saved_steps: Agent steps of the checkpoint to resume from; None for a new run.
        ranks: The ranks, which resume their replays all together or not at all.
        trust: Whether to use the files of a resumed run even if another user wrote them.

    Raises:
        UntrustedError: The replay of the resumed run was written by another user.
        NotEnoughMemory: The replay does not fit.
        ConfigError: The rate limiter would deadlock.
        RankLostError: Another rank did not open its replay in time.
    """
    fields = replay_fields(
        probed.spec,
        rollout_length=config.rollout_length,
        state_size=probed.state_size,
        stride=config.replay.stride,
    )
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, config.replay)
    is_kept, inserted, notes = False, 0, []
    parts = private_parts(config, probed, topology, ranks)
    if config.replay.storage == "file":
        open_file = partial(
            open_replay,
            run_dir,
            layout,
            _rules(config, probed),
            damage=partial(damage_of, topology=topology, config=config.replay),
            poison=config.debug_poison,
            trust=trust,
        )
        (replay, is_kept, note), inserted = _open_of_all(open_file, saved_steps, ranks, config.distributed.timeout_s)
        if is_kept:
            notes.append(f"resumes with the replay in {run_dir}")
        if note:
            notes.append(f"the replay in {run_dir} is recreated: {note}")
    else:
        kept = MemoryPart(f"a replay of {config.replay.capacity // ranks.world_size:,} agent steps", layout.nbytes)
        parts = (kept, *parts)
        replay = Arena.create(
            layout,
            poison=config.debug_poison,
            advice=memory_advice(probed, _ADVICE),
            parts=of_local_ranks(parts, ranks),
        )
        if saved_steps is not None:
            notes.append(
                f"the replay in {run_dir} is removed (replay.storage=memory); it is refilled before learning resumes"
                if has_replay(run_dir)
                else "the replay was in memory and is lost: it is refilled before learning resumes"
            )
    beside = ArenaLayout()
    add_beside_to_layout(beside, probed.spec, fields, topology)
    weights.add_to_layout(beside, nbytes=probed.weight_nbytes)
    add_numbers_to_layout(beside)
    sizes, num_learners = probed.shared if config.num_learners > 1 else None, config.num_learners
    if sizes is not None:
        gradients.add_to_layout(beside, num_learners=num_learners, size=sizes.gradient)
        for ring, nbytes in sizes.rings.items():
            weights.add_to_layout(beside, nbytes=nbytes, ring=ring)
    beside_parts = of_local_ranks([MemoryPart("other memory that the processes share", beside.nbytes), *parts], ranks)
    arena = Arena.create(
        beside,
        poison=config.debug_poison,
        advice=memory_advice(probed, "use fewer environments (num_envs) or a smaller learner.batch_size"),
        # A replay in memory allocates pages on first write.
        parts=beside_parts,
    )
    limits_from = partial(_limits, config, probed, topology, world_size=ranks.world_size)
    wanted = limits = limits_from(base=0)
    if is_kept:
        limits = resumed_limits(replay, wanted)
    elif saved_steps:
        limits = limits_from(base=saved_steps // ranks.world_size)
    store = ReplayStore(
        {**arena, **replay},
        probed.spec,
        topology,
        config.replay,
        limits,
        state_size=probed.state_size,
        create=True,
        is_kept=is_kept,
    )
    if is_kept:
        # The learner will set the counts of its checkpoint.
        store.limiter.set(inserted=store.limiter.inserted, drawn=0)
    else:
        store.limiter.remember(wanted, limits)
    weights.WeightStore(arena, create=True)
    control_block(arena, create=True)
    if sizes is not None:
        gradients.GradientExchange(arena, num_learners, create=True)
        for ring in sizes.rings:
            weights.WeightStore(arena, ring=ring, create=True)
    return Memory(arena, fields, replay, limits, inserted, tuple(notes), beside_parts)


def _open_of_all(
    open_file: Callable[..., OpenedReplay], saved_steps: int | None, ranks: Ranks, timeout_s: float
) -> tuple[OpenedReplay, int]:
    """Open a replay that, with the other ranks', covers the checkpoint; otherwise create a new one.

    A replay with fewer steps is stale: a later session had other ranks, or its replay in memory.

    Returns:
        The replay, and the agent steps in the replays of all ranks; 0 for new ones.
    """
    opened = open_file(resume=saved_steps is not None)
    if saved_steps is None:
        return opened, 0
    held: list[int | None] = [inserted_of(opened.arena) if opened.is_kept else None]
    if not ranks.is_alone:
        from rollmill.learning.process_group import compare

        held = compare(ranks, "replays", held[0], timeout_s)
    if not opened.is_kept:
        return opened, 0
    steps = [count for count in held if count is not None]
    if len(steps) < len(held):
        why = "another rank's is"
    elif sum(steps) <= saved_steps - ranks.world_size:  # the first step's shares are rounded down
        why = f"it ends at {sum(steps):,} agent steps, but the run has reached {saved_steps:,} without it"
    else:
        return opened, sum(steps)
    opened.arena.close()
    return open_file(resume=False)._replace(note=why), 0


def _rules(config: Config, probed: Probed) -> dict[str, object]:
    """Return the rules that determine the sum tree's entries."""
    stacks = stacked_entries(probed.spec, config.rollout_length)
    return {
        "n_step": config.replay.n_step,
        "window": config.replay.window,
        "stride": config.replay.stride,
        "priorities": config.replay.priorities,
        "stacks": {name: [stack.depth, stack.padding] for name, stack in stacks.items()},
    }


def _limits(config: Config, probed: Probed, topology: Topology, *, base: int, world_size: int) -> RateLimits:
    """Return one rank's limits: all ranks share each SGD step, and each collects its share of agent steps."""
    least = config.replay.least_min_size(topology.num_groups * topology.group_rows)
    total, min_size = -(-config.total_steps // world_size), -(-config.replay.min_size // world_size)
    return RateLimits(
        update_interval=config.replay.update_interval / world_size,
        # A resumed run must have something left to learn from, however near its end; but not before a sample can be
        # drawn.
        min_size=min_size if not base else min(min_size, max((total - base) // 2, least)),
        error_buffer=config.regime_as(ReplayRegimeConfig).error_buffer(config, probed.spec.rows_per_env, world_size),
        total_steps=total,
        base=base,
    )


def store_of(setup: RunSetup) -> ReplayStore:
    """Attach the replay."""
    memory = setup.memory
    assert memory.replay is not None
    return ReplayStore(
        {**memory.arena, **memory.replay},
        setup.probed.spec,
        setup.topology,
        setup.config.replay,
        _limits_of(setup),
        state_size=setup.probed.state_size,
    )


def _limits_of(setup: RunSetup) -> RateLimits:
    limits = setup.memory.limits
    assert limits is not None
    return limits


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
        builder=group_builder(context, setup),
        slots=EvictingSlots(store, worker, remover),
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
    side.run(
        batching=ReadyGroups(store, index, config.inference, side.context.stop, on_cpu=on_cpu),
        weights=[NewestWeights(*network, is_lowered=side.is_lowered) for network in side.networks],
        reader=ShownReader(store, device=device),
        explorer=GeneratorExplorer(
            store.topology,
            device=device,
            seed=seed,
            agent_steps=lambda: store.limiter.inserted,
            total_steps=config.total_steps,
            world_size=setup.ranks.world_size,
            first_row=setup.first_group * setup.topology.group_rows,
        ),
        states=side.states(),
        seed=seed,
    )


def learner(context: ChildContext, setup: RunSetup) -> None:
    """Run the learner, or the parameter server of several (child process)."""
    setup.user_code.install()
    import torch

    from rollmill.learning.gradient_server import GradientServer
    from rollmill.learning.learner import Trainer
    from rollmill.learning.off_policy_measure import choose_replay_path
    from rollmill.learning.replay_trainer import ReplayAccount, ReplayTrainer, noise_seed
    from rollmill.learning.timetable import ByTime
    from rollmill.learning.update import Update
    from rollmill.learning.versions import NewestVersions
    from rollmill.regimes.torch_side import LearnerSide, make_off_policy, run_learners
    from rollmill.storage.gradients import GradientExchange

    regime = setup.config.regime_as(ReplayRegimeConfig)
    several = regime.num_learners > 1
    # Shared gradients and weights are in channels_last, in any case; the server only adds them up.
    compute = setup.config.compute
    sides = LearnerSide.of(context, setup, replace(compute, channels_last=True) if several else compute)
    side = sides[0]
    store, arena, replay = store_of(setup), setup.memory.arena, regime.replay
    ranks = side.setup.collective
    algorithm = side.make(make_off_policy)
    generator = torch.Generator(side.setup.device).manual_seed(noise_seed(side.setup.plan, ranks, 0))
    path = choose_replay_path(
        algorithm,
        setup.probed.spec,
        side.setup.compute,
        replay,
        is_alone=ranks.world_size == 1,
        is_stop_wanted=context.stop.is_set,
    )
    update = Update(algorithm, side.setup.optimiser, path, generator=generator, collective=ranks)
    account = ReplayAccount(
        side.setup, store, algorithm, update=update, replay=replay, generator=generator, several=several
    )
    trainer: Trainer
    if several:
        exchange = GradientExchange(arena, regime.num_learners)
        trainer = GradientServer(
            account, algorithm, exchange=exchange, arrays=arena, max_staleness=regime.staleness_bound
        )
    else:
        trainer = ReplayTrainer(account)
    timetable = ByTime(side.setup.plan.checkpoints, saves=not ranks.rank)
    run_learners(sides, [side.learner(algorithm, trainer, NewestVersions(regime.publish_every), timetable)])


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
    GradientLearner(
        with_delays(context, config),
        store_of(setup),
        GradientExchange(arena, config.num_learners),
        index,
        control_block(arena),
        make_off_policy(config, spec),
        arrays=arena,
        spec=spec,
        optimiser=config.optimiser,
        compute=config.compute,
        replay=config.replay,
        total_steps=config.total_steps,
        seed=int_seed(setup.sampling_seed, "gradient learner", index),
    ).run()
