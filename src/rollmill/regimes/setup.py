"""Setup passed to every process of a run, and functions shared by the regimes.

Functions import torch inside, because the main process, which imports this module, too, must not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.live_numbers import add_numbers_to_layout, control_block
from rollmill.regimes.memory_parts import memory_advice, of_local_ranks, private_parts
from rollmill.regimes.player_setup import check_players
from rollmill.regimes.user_code import UserCode
from rollmill.roles import EvaluatorPhase
from rollmill.rollout.group_builder import GroupBuilder
from rollmill.runtime.arena import Arena, ArenaLayout, MemoryPart
from rollmill.runtime.child import ChildContext
from rollmill.runtime.delays import DelayInjector
from rollmill.runtime.ranks import Ranks
from rollmill.settings.config import Config
from rollmill.settings.options import apply
from rollmill.specs import EnvSpec
from rollmill.storage.bank import SnapshotBank
from rollmill.storage.bank import add_to_layout as add_bank_to_layout
from rollmill.storage.group_states import GroupStates
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.slots import SlotField, SlotStore, Topology, add_to_layout, slot_fields
from rollmill.storage.weights import WeightStore, acting_ring
from rollmill.storage.weights import add_to_layout as add_weights_to_layout

if TYPE_CHECKING:
    from rollmill.envs.failures import RestartBudget
    from rollmill.envs.task_clock import TaskClock
    from rollmill.envs.views import AgentRows, SavableGroup
    from rollmill.learning.sharing import SharedSizes


class NetworkSizes(NamedTuple):
    """Sizes of a policy's network.

    Attributes:
        state_size: S of the recurrent state; 0 for a feed-forward network.
        weight_nbytes: Bytes of one published version.
        num_parameters: Trainable numbers.
        num_frozen: Numbers that ``learner.freeze`` excludes from training.
    """

    state_size: int
    weight_nbytes: int
    num_parameters: int
    num_frozen: int = 0


@dataclass(frozen=True)
class Probed:
    """Sizes of the environment and the networks, determined by a probe process.

    Attributes:
        spec: The environment.
        networks: One for each policy.
        first_iteration: In lockstep, the iteration at which the run starts or resumes.
        shared: In the replay regime, sizes shared by several learners; None if there cannot be several.
        saved_steps: In the replay regime, agent steps of each policy's checkpoint to resume from.
        guest_state_size: The largest S of a guest's network.
        largest_parameter: For messages: the network's largest parameter, in parentheses.
        has_cuda: Whether there is a GPU.
        available_memory: Bytes that were available before any of several ranks took its share; None for a single one.
        unread_options: Names in ``model.options`` that building the network did not ask for -> names that it asked
            for.
        settings: Dotted key -> value of resolved "auto" settings, of policies, too; see
            :mod:`rollmill.regimes.settling`.
    """

    spec: EnvSpec
    networks: tuple[NetworkSizes, ...]
    first_iteration: int = 0
    shared: SharedSizes | None = None
    saved_steps: tuple[int, ...] | None = None
    guest_state_size: int = 0
    largest_parameter: str = ""
    has_cuda: bool = False
    available_memory: int | None = None
    unread_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def state_size(self) -> int:
        """S of the slots, the largest of all networks."""
        return max(self.guest_state_size, *(network.state_size for network in self.networks))

    @property
    def weight_nbytes(self) -> int:
        """Bytes of one published version of all networks."""
        return sum(network.weight_nbytes for network in self.networks)

    @property
    def num_parameters(self) -> int:
        """Trainable numbers of all networks."""
        return sum(network.num_parameters for network in self.networks)

    @property
    def num_frozen(self) -> int:
        """Numbers of all networks that ``learner.freeze`` excludes from training."""
        return sum(network.num_frozen for network in self.networks)

    def settle(self, config: Config) -> Config:
        """Return ``config`` with the resolved settings."""
        return apply(config, self.settings)


class Refusal(NamedTuple):
    """Message of a probe that the configuration does not fit the environment.

    Attributes:
        reason: Explanation for the user.
    """

    reason: str


class Memory(NamedTuple):
    """Shared memory of a run's processes.

    Attributes:
        arena: Slots (but the replay's), tables, rings and weights.
        fields: The slots' arrays.
        replay: In the replay regime, the slots and further persistent state.
        limits: In the replay regime, those of each policy's rate limiter.
        inserted: Each policy's agent steps in the resumed replays of all ranks; may be more than its checkpoint has
            counted. Empty without resumed replays.
        notes: Lines for the log.
        parts: Known memory use of the run.
    """

    arena: Arena
    fields: list[SlotField]
    replay: Arena | None = None
    limits: tuple[RateLimits, ...] = ()
    inserted: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[MemoryPart, ...] = ()

    def steps_done(self, saved_steps: int | None) -> int | None:
        """Return the agent steps that a resumed run does not repeat."""
        return sum(self.inserted) or saved_steps


@dataclass(frozen=True)
class RunSetup:
    """Setup of a process; pickled to it when it starts.

    Attributes:
        config: The resolved configuration.
        probed: Sizes of the environment and the network.
        topology: The run's topology.
        memory: The shared memory.
        run_dir: The run's directory.
        resume: Whether the learner resumes from a checkpoint.
        user_code: The user's registrations.
        ranks: The ranks.
        sampling_seed: Keys environments and action sampling: the run's seed, or for a resumed run a different seed for
            each checkpoint, so that it does not repeat its first episodes.
        episodes: Episodes of each policy reported so far, including those in a replay beyond the checkpoint; empty
            without such a replay.
        trust: Whether to use the files of a resumed run even if another user wrote them.
    """

    config: Config
    probed: Probed
    topology: Topology
    memory: Memory
    run_dir: Path
    resume: bool
    user_code: UserCode
    sampling_seed: int
    ranks: Ranks = field(default_factory=Ranks)
    episodes: tuple[int, ...] = ()
    trust: bool = False

    @property
    def first_group(self) -> int:
        """Index of this rank's first group among those of all ranks."""
        return self.ranks.rank * self.topology.num_groups

    def store(self) -> SlotStore:
        """Attach the slots."""
        return SlotStore(self.memory.arena, self.memory.fields, self.topology)

    def store_of(self, policy: int) -> SlotStore:
        """Attach the slots as the learner of a policy sees them."""
        size = self.probed.networks[policy].state_size
        return SlotStore(self.memory.arena, self.memory.fields, self.topology, policy=policy, state_size=size)

    def banks(self) -> list[SnapshotBank]:
        """Attach the policies' banks of past selves; empty if there are none."""
        policies = range(self.topology.players.policies) if self.topology.players.places else ()
        return [SnapshotBank(self.memory.arena, policy=policy) for policy in policies]

    def folder_of(self, policy: int) -> Path:
        """Return the folder of a policy's checkpoints and metrics."""
        return self.config.population.folders(self.run_dir)[policy]


def allocate_slots(
    config: Config,
    probed: Probed,
    topology: Topology,
    run_dir: Path,
    saved_steps: int | None,
    ranks: Ranks,
    *,
    trust: bool,
) -> Memory:
    """Allocate the slots of an on-policy regime and the other shared memory.

    Args:
        config: The resolved configuration.
        probed: Sizes of the environment and the network.
        topology: The run's topology.
        run_dir: The run's directory; unused.
        saved_steps: Agent steps of the checkpoint to resume from; unused.
        ranks: The ranks; those on this machine share its memory.
        trust: Whether the user trusts a resumed run; unused.

    Raises:
        NotEnoughMemory: The slots do not fit.
        ConfigError: Past selves for an environment with one agent, or policies that do not fit it.
    """
    players = topology.players
    check_players(config, probed.spec)
    fields = slot_fields(
        probed.spec,
        rollout_length=config.rollout_length,
        state_size=probed.state_size,
        inferred="float64" if config.compute.precision == "fp64" else "float32",
        has_players=players != PlayerIds(),
        reward_terms=len(config.reward_terms),
        has_objective=config.population.pbt,
    )
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology)
    # The newest version, and in lockstep those that groups may still use.
    num_versions = max(2, topology.slots_per_group)
    add_policies_to_layout(layout, probed, players, num_versions=num_versions, terms=config.reward_terms)
    slots = (
        f"{topology.num_slots} slots of {config.rollout_length} steps of {topology.group_rows} row(s) and other memory "
        "that the processes share"
    )
    parts = of_local_ranks([MemoryPart(slots, layout.nbytes), *private_parts(config, probed, topology, ranks)], ranks)
    arena = Arena.create(
        layout,
        poison=config.debug_poison,
        advice=memory_advice(
            probed, "use fewer environments (num_envs), a shorter rollout_length or a smaller learner.batch_size"
        ),
        parts=parts,
        available=probed.available_memory,
        allocate=True,
    )
    SlotStore(arena, fields, topology, create=True)
    create_policies(arena, players, terms=config.reward_terms)
    return Memory(arena, fields, parts=parts)


def add_policies_to_layout(
    layout: ArenaLayout, probed: Probed, players: PlayerIds, *, num_versions: int = 2, terms: Sequence[str] = ()
) -> None:
    """Reserve each policy's numbers, weights, and bank of past selves.

    Args:
        layout: The arena.
        probed: Sizes of the networks.
        players: Who may play a row.
        num_versions: Versions of the weights that may be read at once.
        terms: Names of the reward terms that learners weigh.
    """
    for policy, network in enumerate(probed.networks):
        add_numbers_to_layout(layout, terms=terms, policy=policy)
        nbytes = network.weight_nbytes
        add_weights_to_layout(layout, nbytes=nbytes, num_versions=num_versions, ring=acting_ring(policy))
        if players.places:
            add_bank_to_layout(layout, places=players.places, nbytes=nbytes, num_versions=num_versions, policy=policy)


def create_policies(arena: Arena, players: PlayerIds, *, terms: Sequence[str] = ()) -> None:
    """Initialise what :func:`add_policies_to_layout` has reserved, before other processes start."""
    for policy in range(players.policies):
        WeightStore(arena, ring=acting_ring(policy), create=True)
        control_block(arena, terms=terms, policy=policy, create=True)
        if players.places:
            SnapshotBank(arena, policy=policy, create=True)


def with_delays(context: ChildContext, config: Config) -> ChildContext:
    """Return the context of a process, with random delays if ``debug_delay_s`` is set."""
    return replace(context, inject_delay=DelayInjector(config.debug_delay_s)) if config.debug_delay_s else context


def group_states(run_dir: Path) -> GroupStates:
    """Return the store of a run's group states."""
    return GroupStates(run_dir / "checkpoints" / ".groups")


def build_group(
    config: Config,
    group: int,
    budget: RestartBudget | None = None,
    *,
    seed: int | None = None,
    spec: EnvSpec,
    clock: TaskClock | None = None,
) -> SavableGroup:
    """Build the environments of one group, seeded by their indices in the whole run.

    Args:
        config: The resolved configuration.
        group: Index of the group among those of all ranks.
        budget: See :func:`rollmill.envs.factory.make_group`.
        seed: Seed of the environments; the run's by default.
        spec: The environment's spec.
        clock: Counts the time of the steps of each task; None for nothing.
    """
    from rollmill.envs.central_view import CentralView
    from rollmill.envs.factory import make_group
    from rollmill.envs.task_group import TaskGroup
    from rollmill.runtime.seeds import int_seed

    assert config.envs_per_group != "auto"
    first = group * config.envs_per_group
    task = group % len(config.env.names)
    made = make_group(
        config.env.of_task(task),
        config.envs_per_group,
        [
            int_seed(config.seed if seed is None else seed, "environment", first + i)
            for i in range(config.envs_per_group)
        ],
        first,
        num_threads=1 if config.rollout.env_threads == "auto" else config.rollout.env_threads,
        box=config.box_actions,
        budget=budget,
        agents=spec.agents,
        reward_terms=config.reward_terms,
    )
    if spec.tasks:
        return TaskGroup(made, spec, task, clock)
    return CentralView(cast("AgentRows", made), len(spec.agents)) if config.has_central_view else made


def random_steps(config: Config) -> Callable[[int], int]:
    """Return the number of initial random steps for a group's index, spread evenly over all groups."""
    assert config.envs_per_group != "auto"
    steps = config.rollout.decorrelate_steps
    # A replay mixes steps of different times anyway, and starts with random actions.
    most = (0 if config.in_replay else config.rollout_length) if steps == "auto" else steps
    others = max(1, config.num_envs // config.envs_per_group - 1)
    return lambda group: most * group // others


def group_builder(
    context: ChildContext,
    setup: RunSetup,
    task_seconds: NDArray[np.float64],
    parked: NDArray[np.bool_],
    worker: int,
    seed_of: Callable[[int], int] | None = None,
) -> GroupBuilder:
    """Return the builder of a rollout worker's groups.

    Args:
        context: The process's context.
        setup: The run's setup.
        task_seconds: float64 ``[workers, tasks]``: the time of the steps of each task.
        parked: bool ``[groups]``: which groups wait for slots.
        worker: Index of the worker.
        seed_of: Returns the seed of environments for their first iteration; one seed for all by default.
    """
    from rollmill.envs.failures import RestartBudget
    from rollmill.envs.task_clock import TaskClock
    from rollmill.runtime.seeds import stream

    config, first, spec = setup.config, setup.first_group, setup.probed.spec
    clock = TaskClock(
        task_seconds, worker, equal=config.task_share == "compute", parked=parked if config.env.tasks else None
    )
    budget = RestartBudget(config.env.restart_budget)
    steps = random_steps(config)

    def seed(iteration: int) -> int:
        return setup.sampling_seed if seed_of is None else seed_of(iteration)

    return GroupBuilder(
        context=context,
        make_environments=lambda group, i: build_group(
            config, first + group, budget, seed=seed(i), spec=spec, clock=clock
        ),
        action=spec.action,
        box=config.box_actions,
        random_steps=lambda group: steps(first + group),
        random=lambda group, i: stream(seed(i), "decorrelation", first + group),
    )


def evaluator(context: ChildContext, setup: RunSetup, is_last: bool) -> None:
    """Evaluate the learner's networks during training, or the remaining ones after it (child process)."""
    setup.user_code.install()
    import torch

    from rollmill.evaluation.in_training import Evaluations, evaluate_until, play_pending_of_all
    from rollmill.storage.checkpoints import CheckpointStore

    torch.set_num_threads(1)

    def is_stop_wanted() -> bool:
        context.ledger.enter(EvaluatorPhase.PLAYING)  # a sign of life at every step
        return context.stop.is_set()

    config = setup.config
    how = Evaluations(config.env, config.eval_episodes, config.eval_against, config.eval_video, setup.trust)
    folders = {
        folder: CheckpointStore(folder / "checkpoints", config.checkpoint)
        for folder in config.population.folders(setup.run_dir)
    }
    context.ledger.enter(EvaluatorPhase.PLAYING)
    if is_last:
        play_pending_of_all(folders, how, is_stop_wanted=is_stop_wanted)
        return
    evaluate_until(
        folders,
        how,
        is_stop_wanted=is_stop_wanted,
        while_waiting=lambda: context.ledger.enter(EvaluatorPhase.WAITING),
    )
