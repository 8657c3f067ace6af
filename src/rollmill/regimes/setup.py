"""What every process of a run is given, and what the regimes' processes have in common.

Functions import torch inside, because the main process, which imports this module too, does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rollmill.learning.live_numbers import add_numbers_to_layout, control_block
from rollmill.regimes.memory_parts import memory_advice, of_local_ranks, private_parts
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
from rollmill.storage.group_states import GroupStates
from rollmill.storage.rate_limiter import RateLimits
from rollmill.storage.slots import SlotField, SlotStore, Topology, add_to_layout, slot_fields
from rollmill.storage.weights import WeightStore
from rollmill.storage.weights import add_to_layout as add_weights_to_layout

if TYPE_CHECKING:
    from rollmill.envs.failures import RestartBudget
    from rollmill.envs.views import SavableGroup
    from rollmill.learning.sharing import SharedSizes


@dataclass(frozen=True)
class Probed:
    """What a short-lived process found out about the environment and the network before memory is laid out.

    Attributes:
        spec: The environment.
        state_size: S of the recurrent state; 0 for a feed-forward network.
        weight_nbytes: Bytes of one published version.
        num_parameters: Trainable numbers.
        first_iteration: In lockstep, where the run begins, or goes on.
        shared: In the replay regime, what several learners share; None where there cannot be several.
        saved_steps: In the replay regime, agent steps of the checkpoint that a run goes on from.
        largest_parameter: For messages: the network's largest parameter, in parentheses.
        has_cuda: Whether there is a GPU for what may run on one.
        settings: Dotted key -> value, of the settings that were "auto" and are settled now; see
            :mod:`rollmill.regimes.settling`.
    """

    spec: EnvSpec
    state_size: int
    weight_nbytes: int
    num_parameters: int
    first_iteration: int = 0
    shared: SharedSizes | None = None
    saved_steps: int | None = None
    largest_parameter: str = ""
    has_cuda: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)

    def settle(self, config: Config) -> Config:
        """``config`` with what is settled."""
        return apply(config, self.settings)


class Refusal(NamedTuple):
    """What a probe sends instead: the configuration does not fit what it found.

    Attributes:
        reason: For the user.
    """

    reason: str


class Memory(NamedTuple):
    """What the processes of a run share.

    Attributes:
        arena: Slots (but the replay's), tables, rings and weights.
        fields: The slots' arrays.
        replay: In the replay regime, the slots and all that outlives the processes with them.
        limits: In the replay regime, the rate limiter's.
        inserted: Agent steps that have been inserted into replays which go on, of all ranks; they may be more than a
            checkpoint has seen.
        notes: What is worth a line in the log.
        parts: What the run takes of the machine's memory, as far as that is known.
    """

    arena: Arena
    fields: list[SlotField]
    replay: Arena | None = None
    limits: RateLimits | None = None
    inserted: int = 0
    notes: tuple[str, ...] = ()
    parts: tuple[MemoryPart, ...] = ()

    def steps_done(self, saved_steps: int | None) -> int | None:
        """Agent steps that a run which goes on does not do again, whether its checkpoint has seen them or not."""
        return self.inserted or saved_steps


@dataclass(frozen=True)
class RunSetup:
    """Everything that a process needs to find its place; pickled to it when it starts.

    Attributes:
        config: Resolved.
        probed: What the environment and the network are.
        topology: Who serves whom.
        memory: What the processes share.
        run_dir: The run's directory.
        resume: Whether the learner goes on from a checkpoint.
        user_code: What the user registered.
        ranks: Which of several cooperating programs this is.
        sampling_seed: Keys environments and action sampling: the run's seed, or of a resumed run another one for each
            checkpoint that it goes on from, so that it does not play its first episodes again.
        episodes: That have been reported of what a replay holds beyond the checkpoint, and before.
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
    episodes: int = 0
    trust: bool = False

    @property
    def first_group(self) -> int:
        """Index of this rank's first group among those of all ranks."""
        return self.ranks.rank * self.topology.num_groups

    def store(self) -> SlotStore:
        """The slots, attached."""
        return SlotStore(self.memory.arena, self.memory.fields, self.topology)


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
    """Lays out and allocates the slots of an on-policy regime, and all that stands beside them.

    Args:
        config: Resolved.
        probed: What the environment and the network are.
        topology: Who serves whom.
        run_dir: The run's directory; nothing of it is needed.
        saved_steps: Agent steps of the checkpoint that the run goes on from; likewise.
        ranks: Which of several cooperating programs this is; those on this machine share its memory.
        trust: Whether the user said to trust a run that goes on; nothing of it is read here.

    Raises:
        NotEnoughMemory: They do not fit.
    """
    fields = slot_fields(
        probed.spec,
        rollout_length=config.rollout_length,
        state_size=probed.state_size,
        inferred="float64" if config.learner.precision == "fp64" else "float32",
    )
    layout = ArenaLayout()
    add_to_layout(layout, fields, topology)
    add_numbers_to_layout(layout)
    # The newest version, and in lockstep those that groups may still be acting by.
    add_weights_to_layout(layout, nbytes=probed.weight_nbytes, num_versions=max(2, topology.slots_per_group))
    slots = (
        f"{topology.num_slots} slots of {config.rollout_length} steps of {topology.group_rows} row(s), and what else "
        "the processes share"
    )
    parts = of_local_ranks([MemoryPart(slots, layout.nbytes), *private_parts(config, probed, topology, ranks)], ranks)
    arena = Arena.create(
        layout,
        poison=config.debug_poison,
        advice=memory_advice(
            probed, "use fewer environments (num_envs), a shorter rollout_length or a smaller learner.batch_size"
        ),
        parts=parts,
    )
    SlotStore(arena, fields, topology, create=True)
    WeightStore(arena, create=True)
    control_block(arena, create=True)
    return Memory(arena, fields, parts=parts)


def with_delays(context: ChildContext, config: Config) -> ChildContext:
    """The context of a process, with random delays where ``debug_delay_s`` asks for them."""
    return replace(context, inject_delay=DelayInjector(config.debug_delay_s)) if config.debug_delay_s else context


def group_states(run_dir: Path) -> GroupStates:
    """Where a run's groups leave what they need to go on."""
    return GroupStates(run_dir / "checkpoints" / ".groups")


def build_group(
    config: Config, group: int, budget: RestartBudget | None = None, *, seed: int | None = None
) -> SavableGroup:
    """The environments of one group, seeded by their places in the whole run.

    Args:
        config: Resolved.
        group: Which group, of those of all ranks.
        budget: See :func:`rollmill.envs.factory.make_group`.
        seed: Keys them; the run's by default.
    """
    from rollmill.envs.factory import make_group
    from rollmill.runtime.seeds import int_seed

    assert config.envs_per_group != "auto"
    first = group * config.envs_per_group
    return make_group(
        config.env,
        config.envs_per_group,
        [
            int_seed(config.seed if seed is None else seed, "environment", first + i)
            for i in range(config.envs_per_group)
        ],
        first,
        num_threads=1 if config.rollout.env_threads == "auto" else config.rollout.env_threads,
        box=config.box_actions,
        budget=budget,
    )


def random_steps(config: Config) -> Callable[[int], int]:
    """How many steps with random actions each group takes first, given its index: evenly spread over all groups."""
    assert config.envs_per_group != "auto"
    steps = config.rollout.decorrelate_steps
    # A replay mixes the times of its steps itself, and begins with random ones.
    most = (0 if config.in_replay else config.rollout_length) if steps == "auto" else steps
    others = max(1, config.num_envs // config.envs_per_group - 1)
    return lambda group: most * group // others


def group_builder(context: ChildContext, setup: RunSetup, seed_of: Callable[[int], int] | None = None) -> GroupBuilder:
    """What builds the environments of a rollout worker's groups.

    Args:
        context: The process's.
        setup: The run's.
        seed_of: The seed of environments, given the iteration that they begin with; one seed for all by default.
    """
    from rollmill.envs.failures import RestartBudget
    from rollmill.runtime.seeds import stream

    config, first = setup.config, setup.first_group
    budget = RestartBudget(config.env.restart_budget)
    steps = random_steps(config)

    def seed(iteration: int) -> int:
        return setup.sampling_seed if seed_of is None else seed_of(iteration)

    return GroupBuilder(
        context=context,
        make_environments=lambda group, i: build_group(config, first + group, budget, seed=seed(i)),
        action=config.stored_action(setup.probed.spec.action),
        random_steps=lambda group: steps(first + group),
        random=lambda group, i: stream(seed(i), "decorrelation", first + group),
    )


def evaluator(context: ChildContext, setup: RunSetup, is_last: bool) -> None:
    """Child: plays the networks that the learner leaves, or, after training, those that are left, and ends."""
    setup.user_code.install()
    import torch

    from rollmill.evaluation.in_training import evaluate_until, play_pending
    from rollmill.storage.checkpoints import CheckpointStore

    torch.set_num_threads(1)

    def is_stop_wanted() -> bool:
        context.ledger.enter(EvaluatorPhase.PLAYING)  # Again at every step: a sign of life.
        return context.stop.is_set()

    env, episodes = setup.config.env, setup.config.eval_episodes
    checkpoints = CheckpointStore(setup.run_dir / "checkpoints", setup.config.checkpoint)
    context.ledger.enter(EvaluatorPhase.PLAYING)
    if is_last:
        play_pending(setup.run_dir, env, episodes=episodes, checkpoints=checkpoints, is_stop_wanted=is_stop_wanted)
        return
    evaluate_until(
        setup.run_dir,
        env,
        episodes=episodes,
        checkpoints=checkpoints,
        is_stop_wanted=is_stop_wanted,
        while_waiting=lambda: context.ledger.enter(EvaluatorPhase.WAITING),
    )
