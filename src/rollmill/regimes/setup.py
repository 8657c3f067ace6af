"""What every process of a run is given, and what the regimes' processes have in common.

Functions import torch inside, because rollout workers, which import this module too, must do without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.config import Config
from rollmill.envs.registry import Registration, install, registrations
from rollmill.envs.user_code import import_user_code
from rollmill.runtime.arena import Arena
from rollmill.runtime.child import ChildContext
from rollmill.runtime.delays import Dawdler
from rollmill.specs import EnvSpec
from rollmill.storage.group_states import GroupStates
from rollmill.storage.slots import SlotField, SlotStore, Topology

if TYPE_CHECKING:
    from rollmill.envs.failures import RestartBudget
    from rollmill.envs.views import SavableGroup
    from rollmill.learning.learner import Learner


@dataclass(frozen=True)
class Probed:
    """What a short-lived process found out about the environment and the network before memory is laid out.

    Attributes:
        spec: The environment.
        state_size: S of the recurrent state; 0 for a feed-forward network.
        weight_nbytes: Bytes of one published version.
        num_parameters: Trainable numbers.
        first_iteration: In lockstep, where the run begins, or goes on.
    """

    spec: EnvSpec
    state_size: int
    weight_nbytes: int
    num_parameters: int
    first_iteration: int = 0


@dataclass(frozen=True)
class UserCode:
    """What a child needs so that names mean in it what they mean in the process that started the run.

    Attributes:
        modules: What ``--import`` named: imported again, and so registered again.
        environments: What was registered in the user's own script, where nothing is imported again.
    """

    modules: tuple[str, ...]
    environments: tuple[Registration, ...]

    @classmethod
    def of_this_process(cls, config: Config) -> UserCode:
        """What is registered here and now."""
        return cls(config.env.imports, registrations())

    def install(self) -> None:
        """Registers it all in this process."""
        for module in self.modules:
            import_user_code(module)
        install(self.environments)


@dataclass(frozen=True)
class RunSetup:
    """Everything that a process needs to find its place; pickled to it when it starts.

    Attributes:
        config: Resolved.
        probed: What the environment and the network are.
        topology: Who serves whom.
        fields: The slots' arrays.
        arena: The shared memory.
        run_dir: The run's directory.
        resume: Whether the learner goes on from a checkpoint.
        user_code: What the user registered.
        sampling_seed: Keys environments and action sampling: the run's seed, or of a resumed run another one for each
            checkpoint that it goes on from, so that it does not play its first episodes again.
    """

    config: Config
    probed: Probed
    topology: Topology
    fields: list[SlotField]
    arena: Arena
    run_dir: Path
    resume: bool
    user_code: UserCode
    sampling_seed: int

    def store(self) -> SlotStore:
        """The slots, attached."""
        return SlotStore(self.arena, self.fields, self.topology)


def dawdling(context: ChildContext, config: Config) -> ChildContext:
    """The context of a process that is slow now and then, if the configuration says so."""
    return replace(context, dawdle=Dawdler(config.debug_delay_s)) if config.debug_delay_s else context


def probe(context: ChildContext, config: Config, user_code: UserCode, run_dir: Path | None = None) -> None:
    """Child: builds one environment and the network, and reports their sizes.

    Args:
        context: Takes the report.
        config: Resolved.
        user_code: What the user registered.
        run_dir: In lockstep, of a run that goes on: its groups' states are laid out for those who need them.
    """
    user_code.install()
    from rollmill.envs.factory import probe as probe_environment
    from rollmill.models.flat_state import flat_nbytes
    from rollmill.models.registry import make_model

    spec = probe_environment(config.env)
    model = make_model(spec.observation, spec.action, config.model)
    first_iteration = _unpack_states(config, run_dir) if run_dir is not None and config.in_lockstep else 0
    num_parameters = sum(p.numel() for p in model.parameters())
    context.send(Probed(spec, model.state_size, flat_nbytes(model), num_parameters, first_iteration))


def _unpack_states(config: Config, run_dir: Path) -> int:
    """Lays out the states of the newest checkpoint that a run can go on from; returns its iteration."""
    from rollmill.learning.lockstep import InFlight
    from rollmill.storage.checkpoints import CheckpointStore

    loaded = CheckpointStore(run_dir / "checkpoints", config.checkpoint).load_latest(to_resume=True)
    in_flight = InFlight.unpack(loaded.state)
    states = group_states(run_dir)
    states.clear()
    for group, packed in enumerate(in_flight.groups):
        states.write_packed(in_flight.iteration, group, packed)
    return in_flight.iteration


def group_states(run_dir: Path) -> GroupStates:
    """Where a run's groups leave what they need to go on."""
    return GroupStates(run_dir / "checkpoints" / ".groups")


def build_group(
    config: Config, group: int, budget: RestartBudget | None = None, *, seed: int | None = None
) -> SavableGroup:
    """The environments of one group, seeded by their places in the whole run.

    Args:
        config: Resolved.
        group: Which group.
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
        squash=config.model.squash_actions,
        budget=budget,
    )


def random_steps(config: Config, topology: Topology) -> Callable[[int], int]:
    """How many steps with random actions each group takes first, given its index: evenly spread over the groups."""
    steps = config.rollout.decorrelate_steps
    most = config.rollout_length if steps == "auto" else steps
    others = max(1, topology.num_groups - 1)
    return lambda group: most * group // others


def run_learner(context: ChildContext, setup: RunSetup, make: Callable[..., Learner]) -> None:
    """Runs the learner of a regime.

    Args:
        context: The process's.
        setup: The run's.
        make: The learner's class, with what is its own.
    """
    setup.user_code.install()
    import torch

    from rollmill.learning.fingerprints import FINGERPRINTS_FILE, Fingerprints
    from rollmill.models.registry import make_model
    from rollmill.runtime.seeds import int_seed
    from rollmill.storage.checkpoints import CheckpointStore
    from rollmill.storage.weights import WeightStore

    config, spec, store = setup.config, setup.probed.spec, setup.store()
    torch.set_num_threads(config.learner.threads)
    # What gets no gradient any more, such as a ReLU that has died, leaves moments that shrink until they are denormal,
    # and stay so; arithmetic with such numbers takes a hundred times as long.
    torch.set_flush_denormal(True)
    torch.manual_seed(int_seed(config.seed, "initial weights", 0))
    fingerprints = None
    if config.debug_fingerprints:
        fingerprints = Fingerprints(setup.run_dir / FINGERPRINTS_FILE, store.observation)
    make(
        dawdling(context, config),
        store,
        WeightStore(setup.arena),
        make_model(spec.observation, spec.action, config.model),
        spec=spec,
        config=config.learner,
        checkpoints=CheckpointStore(setup.run_dir / "checkpoints", config.checkpoint),
        total_steps=config.total_steps,
        seed=int_seed(config.seed, "learner", 0),
        report_every_s=config.report_every_s,
        resume=setup.resume,
        fingerprints=fingerprints,
    ).run()
