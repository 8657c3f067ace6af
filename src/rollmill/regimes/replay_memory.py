"""Allocates the memory of the replay regime: the replay, in memory or in a file, and what processes share beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.regimes.memory_parts import memory_advice, of_local_ranks, private_parts
from rollmill.regimes.player_setup import check_players
from rollmill.regimes.setup import Memory, Probed, add_policies_to_layout, create_policies
from rollmill.runtime.arena import Arena, ArenaLayout, MemoryPart
from rollmill.runtime.ranks import Ranks
from rollmill.settings.config import Config
from rollmill.settings.regime_config import ReplayRegimeConfig
from rollmill.settings.value_checks import ConfigError
from rollmill.storage import gradients, weights
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.rate_limiter import RateLimits, inserted_of, resumed_limits
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

if TYPE_CHECKING:
    from rollmill.regimes.preloading import Preload

_ADVICE = "use a smaller replay.capacity, or replay.storage=file, which takes it from the disk"


def allocate_replay(
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
        ConfigError: The rate limiter would deadlock, or players do not fit the environment or each other.
        RankLostError: Another rank did not open its replay in time.
    """
    check_players(config, probed.spec)
    players = topology.players
    policies = range(players.policies)
    fields = replay_fields(
        probed.spec,
        rollout_length=config.rollout_length,
        state_size=probed.state_size,
        stride=config.replay.stride,
        has_players=players != PlayerIds(),
    )
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology, config.replay)
    is_kept, notes = False, []
    inserted: tuple[int, ...] = ()
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
        (replay, is_kept, note), inserted = _open_of_all(
            open_file, saved_steps, ranks, config.distributed.timeout_s, policies
        )
        if is_kept:
            notes.append(f"resumes with the replay in {run_dir}")
        if note:
            notes.append(f"the replay in {run_dir} is recreated: {note}")
    else:
        kept = MemoryPart(f"a replay of {config.replay.most_steps // ranks.world_size:,} agent steps", layout.nbytes)
        parts = (kept, *parts)
        replay = Arena.create(
            layout,
            poison=config.debug_poison,
            advice=memory_advice(probed, _ADVICE),
            parts=of_local_ranks(parts, ranks),
            available=probed.available_memory,
        )
        if saved_steps is not None:
            notes.append(
                f"the replay in {run_dir} is removed (replay.storage=memory); it is refilled before learning resumes"
                if has_replay(run_dir)
                else "the replay was in memory and is lost: it is refilled before learning resumes"
            )
    beside = ArenaLayout()
    add_beside_to_layout(beside, probed.spec, fields, topology)
    add_policies_to_layout(beside, probed, players)
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
        available=probed.available_memory,
    )
    limits_from = partial(_limits, config, probed, topology, world_size=ranks.world_size)
    wanted = limits_from()
    limits = [wanted for _ in policies]
    if is_kept:
        limits = [resumed_limits(replay, wanted, policy=policy, policies=len(policies)) for policy in policies]
    elif saved_steps:
        saved = probed.saved_steps or (saved_steps,)
        limits = [limits_from(base=saved[policy] // ranks.world_size, of_run=saved_steps) for policy in policies]
    preload = None
    if config.replay.preload is not None and not is_kept:
        preload = _preload(config, probed, topology, ranks)
        limits = [replace(each, min_size=max(0, each.min_size - preload.steps)) for each in limits]
        left_out = f"; {preload.left_out:,} do not fit" if preload.left_out else ""
        notes.append(f"the replay begins with {preload.steps:,} recorded steps ({config.replay.preload}){left_out}")
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
        # The learners will set the counts of their checkpoints.
        for limiter in store.limiters:
            limiter.set(inserted=limiter.inserted, drawn=0)
    else:
        for limiter in store.limiters:
            limiter.remember(wanted, limiter.limits)
    if preload is not None:
        preload.write(store)
    create_policies(arena, players)
    if sizes is not None:
        gradients.GradientExchange(arena, num_learners, create=True)
        for ring in sizes.rings:
            weights.WeightStore(arena, ring=ring, create=True)
    return Memory(arena, fields, replay, tuple(limits), inserted, tuple(notes), beside_parts)


def _preload(config: Config, probed: Probed, topology: Topology, ranks: Ranks) -> Preload:
    from rollmill.regimes.preloading import Preload, read_stream

    assert config.replay.preload is not None
    if not ranks.is_alone:
        raise ConfigError("replay.preload: recorded steps are for one rank; leave it out")
    return Preload(read_stream(config.replay.preload, config, probed.spec), topology)


def _open_of_all(
    open_file: Callable[..., OpenedReplay], saved_steps: int | None, ranks: Ranks, timeout_s: float, policies: range
) -> tuple[OpenedReplay, tuple[int, ...]]:
    """Open a replay that, with the other ranks', covers the checkpoint; otherwise create a new one.

    A replay with fewer steps is stale: a later session had other ranks, or its replay in memory.

    Returns:
        The replay, and each policy's agent steps in the replays of all ranks; none for new ones.
    """
    opened = open_file(resume=saved_steps is not None)
    if saved_steps is None:
        return opened, ()
    of_policies = tuple(inserted_of(opened.arena, policy) for policy in policies) if opened.is_kept else ()
    held: list[int | None] = [sum(of_policies) if opened.is_kept else None]
    if not ranks.is_alone:
        from rollmill.learning.process_group import compare

        held = compare(ranks, "replays", held[0], timeout_s)
    if not opened.is_kept:
        return opened, ()
    steps = [count for count in held if count is not None]
    if len(steps) < len(held):
        why = "another rank's is"
    elif sum(steps) <= saved_steps - ranks.world_size:  # the first step's shares are rounded down
        why = f"it ends at {sum(steps):,} agent steps, but the run has reached {saved_steps:,} without it"
    else:
        return opened, of_policies if ranks.is_alone else (sum(steps),)
    opened.arena.close()
    return open_file(resume=False)._replace(note=why), ()


def _rules(config: Config, probed: Probed) -> dict[str, object]:
    """Return the rules that determine the sum tree's entries."""
    stacks, names = stacked_entries(probed.spec, config.rollout_length), config.population.names
    # Each tree is of one of several policies.
    of_policies = {"policies": list(names)} if len(names) > 1 else {}
    return {
        "n_step": config.replay.n_step,
        "window": config.replay.window,
        "stride": config.replay.stride,
        "priorities": config.replay.priorities,
        "stacks": {name: [stack.depth, stack.padding] for name, stack in stacks.items()},
        **of_policies,
    }


def _limits(
    config: Config, probed: Probed, topology: Topology, *, world_size: int, base: int = 0, of_run: int = 0
) -> RateLimits:
    """Return the limits of a policy on one rank: all ranks share each SGD step, and each collects its share of steps.

    Args:
        config: The resolved configuration.
        probed: Sizes of the environment and the network.
        topology: The run's topology.
        world_size: Number of ranks.
        base: Agent steps of the policy on this rank that an earlier session has collected, and whose replay is lost.
        of_run: Those of all policies and ranks.
    """
    least = config.replay.least_min_size(topology.num_groups * topology.group_rows)
    total, min_size = -(-config.total_steps // world_size), -(-config.replay.min_size // world_size)
    left = (total - of_run // world_size) // topology.players.policies
    return RateLimits(
        update_interval=config.replay.update_interval / world_size,
        # A resumed run must have something left to learn from, however near its end; but not before a sample can be
        # drawn.
        min_size=min(min_size, max(left // 2, least)) if of_run else min_size,
        error_buffer=config.regime_as(ReplayRegimeConfig).error_buffer(config, probed.spec.rows_per_env, world_size),
        total_steps=total,
        base=base,
    )
