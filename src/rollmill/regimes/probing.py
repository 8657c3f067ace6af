"""A short-lived process that determines the sizes of environment and algorithm before memory is allocated.

Functions import torch inside, because the main process, which imports this module, too, must not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.regimes.settling import settled_policies, settled_settings
from rollmill.regimes.setup import NetworkSizes, Probed, Refusal, group_states
from rollmill.regimes.user_code import UserCode
from rollmill.runtime import cgroups
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ranks import Ranks
from rollmill.settings.config import Config
from rollmill.settings.policies import source_of
from rollmill.settings.value_checks import ConfigError
from rollmill.specs import CENTRAL_VIEW, TASK, EnvSpec
from rollmill.storage.agent_roles import players_of_agents
from rollmill.storage.group_states import GroupState

if TYPE_CHECKING:
    from rollmill.algorithms.base import Algorithm
    from rollmill.inference.guests import Guest
    from rollmill.models.noted_options import NotedOptions
    from rollmill.storage.checkpoints import CheckpointStore


def probe(
    context: ChildContext,
    config: Config,
    user_code: UserCode,
    run_dir: Path | None = None,
    ranks: Ranks | None = None,
    trust: bool = False,
) -> None:
    """Build one environment and the network, and report their sizes (child process).

    Args:
        context: Receives the report.
        config: The resolved configuration.
        user_code: The user's registrations.
        run_dir: In lockstep, the directory of a resumed run, whose groups' states are unpacked; else None.
        ranks: The ranks; one by default.
        trust: Whether to use the files of a resumed run even if another user wrote them.
    """
    # Of each rank before the others take theirs, which none does before its probe has ended.
    available_memory = None
    if ranks is not None and not ranks.is_alone:
        from rollmill.learning.process_group import compare  # It imports torch, before the user's code is imported.

        of_all = compare(ranks, "memory", cgroups.available_memory(), config.distributed.timeout_s)
        available_memory = of_all[ranks.rank]
    user_code.install()
    import torch

    from rollmill.algorithms.requirements import UnfitActionsError
    from rollmill.envs.central_view import with_central_view
    from rollmill.envs.errors import MissingExtra, UnknownEnvironment, UnsupportedSpace
    from rollmill.envs.factory import probe as probe_environment
    from rollmill.envs.task_spaces import with_task_entry
    from rollmill.envs.user_code import ModuleExitError, NoSuchModuleError
    from rollmill.evaluation.players import PlayerError
    from rollmill.evaluation.snapshot import NoRunError
    from rollmill.evaluation.tournament import TournamentError, check_opponents
    from rollmill.learning.sharing import shared_sizes
    from rollmill.models.errors import UnfitModelError
    from rollmill.models.flat_state import flat_nbytes
    from rollmill.models.freezing import FreezeError, freeze
    from rollmill.models.noted_options import NotedOptions
    from rollmill.models.observation import EncoderError, UnknownModelError
    from rollmill.models.registry import WrongModelError
    from rollmill.models.sizing import largest_parameter
    from rollmill.regimes.guests import make_guest
    from rollmill.regimes.initial_weights import InitialWeights
    from rollmill.regimes.torch_side import make_off_policy, make_on_policy
    from rollmill.runtime.plain_data import MalformedMessageError
    from rollmill.runtime.signed_files import UntrustedError
    from rollmill.storage.checkpoint_file import CheckpointError

    guests: list[Guest] = []
    assert config.envs_per_group != "auto"
    make = make_off_policy if config.in_replay else make_on_policy
    try:
        spec = probe_environment(config.env, tries_to_repeat=config.in_lockstep, group_size=config.envs_per_group)
        if taken := {CENTRAL_VIEW, TASK} & spec.observation.keys():
            raise UnsupportedSpace(
                f"{spec.name} has an observation entry {min(taken)!r}, a name that is kept for what Rollmill adds to "
                "observations (model.central_value, model.observe_task): rename it"
            )
        if config.has_task_entry:
            spec = with_task_entry(spec)
        if config.has_central_view:
            spec = with_central_view(spec)
        check_opponents(config.eval_against, spec, config.box_actions, trust=trust)
        players_of_agents(config.population, config.policy, spec.agents)
        for index, (_, player) in enumerate(config.population.named_guests):
            guests.append(make_guest(player, config, spec, torch.device("cpu"), index=index))
        options = [NotedOptions(settings.model.options) for settings in config.policies]
        algorithms = [
            _make_if_it_fits(partial(make, _unfrozen(settings, noted), spec))
            for settings, noted in zip(config.policies, options, strict=True)
        ]
        frozen = [
            freeze(made, settings.optimiser.freeze) for made, settings in zip(algorithms, config.policies, strict=True)
        ]
        is_first = run_dir is None and (ranks is None or not ranks.rank)
        for name, settings, made in zip(config.population.names, config.policies, algorithms, strict=True):
            if is_first and (source := source_of(config, name)) is not None:
                weights = InitialWeights(source)
                weights.load(made, config.init_skip)
                if config.init_optimiser:
                    weights.optimisers(settings.optimiser)
        first_iteration, saved = 0, None
        if run_dir is not None and config.in_lockstep:
            first_iteration = _unpack_states(config, run_dir, ranks or Ranks(), trust=trust)
        elif run_dir is not None and config.in_replay:
            saved = _saved_steps(config, run_dir, ranks or Ranks())
    except (
        UnfitActionsError,
        UnfitModelError,
        ModuleExitError,
        NoSuchModuleError,
        UntrustedError,
        MalformedMessageError,
        TournamentError,
        PlayerError,
        ConfigError,
        NoRunError,
        CheckpointError,
        FreezeError,
        UnknownModelError,
        WrongModelError,
        EncoderError,
        MissingExtra,
        UnknownEnvironment,
        UnsupportedSpace,
    ) as error:
        context.send(Refusal(str(error)))
        return
    shared = None
    if config.in_replay:
        try:
            shared = shared_sizes(algorithms[0])
        except ValueError:
            if config.num_learners > 1:
                raise
    networks = tuple(
        NetworkSizes(
            algorithm.state_size,
            flat_nbytes(algorithm.acting),
            sum(p.numel() for p in algorithm.parameters() if p.requires_grad),
            num_frozen,
        )
        for algorithm, num_frozen in zip(algorithms, frozen, strict=True)
    )
    largest = max(range(len(networks)), key=lambda policy: networks[policy].num_parameters)
    context.send(
        Probed(
            spec,
            networks,
            first_iteration,
            shared=shared,
            saved_steps=saved,
            largest_parameter=largest_parameter(algorithms[largest]),
            guest_state_size=max([_state_size(guest) for guest in guests], default=0),
            has_cuda=torch.cuda.is_available(),
            available_memory=available_memory,
            unread_options={name: tuple(sorted(noted.read)) for noted in options for name in noted.unread},
            settings=settled_settings(
                config,
                spec,
                networks[largest].num_parameters,
                lambda: _inference_precision(config, spec, algorithms[largest]),
            )
            | settled_policies(config, spec),
        )
    )


def _state_size(guest: Guest) -> int:
    from rollmill.inference.acting_weights import ActingAlgorithm

    return guest.algorithm.state_size if isinstance(guest, ActingAlgorithm) else 0


def _unfrozen(config: Config, options: NotedOptions) -> Config:
    """Return the configuration of a network that is trained as a whole, and that notes the options it reads."""
    optimiser = replace(config.optimiser, freeze=())
    return replace(config, model=replace(config.model, options=options), optimiser=optimiser)


def _make_if_it_fits(make: Callable[[], Algorithm]) -> Algorithm:
    """Build the algorithm, on the meta device if memory is short; allocating the slots then raises."""
    from rollmill.models.sizing import fits, without_memory

    outline = without_memory(make)
    if outline is not None and not fits(outline, cgroups.available_memory()):
        return outline
    return make()


def _inference_precision(config: Config, spec: EnvSpec, algorithm: Algorithm) -> str:
    """Measure the faster precision of a forward pass for one group, before other processes run."""
    import torch

    from rollmill.inference.precision import faster_precision
    from rollmill.models.actor_critic import ActorCritic

    model = algorithm.acting
    assert isinstance(model, ActorCritic), "other networks' precision follows from a rule"
    assert config.envs_per_group != "auto"
    if next(model.parameters()).is_meta:
        return "fp32"  # it does not fit into memory; allocating the slots raises
    rows = config.envs_per_group * spec.rows_per_env
    torch.set_num_threads(config.inference.threads)
    zeros = {
        name: torch.zeros((rows, *item.shape), dtype=getattr(torch, item.dtype))
        for name, item in spec.observation.items()
    }
    return faster_precision(model.eval(), zeros)


def _saved_steps(config: Config, run_dir: Path, ranks: Ranks) -> tuple[int, ...]:
    """Return the agent steps of each policy's checkpoint to resume from, on rank 0's disk."""
    from rollmill.learning.process_group import exchange
    from rollmill.storage.checkpoints import CheckpointStore

    def find() -> list[int]:
        stores = [CheckpointStore(at / "checkpoints", config.checkpoint) for at in config.population.folders(run_dir)]
        return [store.latest_header(to_resume=True).agent_steps for store in stores]

    return tuple(find() if ranks.is_alone else exchange(ranks, "saved steps", find, config.distributed.timeout_s))


def mark_newer(store: CheckpointStore, iteration: int) -> None:
    """Mark checkpoints of later iterations as ends: the run stopped before all policies had saved theirs.

    Otherwise later saves would remove the older ones, which all policies have, and metrics would count from there.
    """
    from rollmill.learning.in_flight import InFlight
    from rollmill.storage.checkpoint_file import CheckpointError, load_checkpoint

    for path in store.paths(to_resume=True):
        try:
            saved = InFlight.iteration_of(load_checkpoint(path))
        except (CheckpointError, ValueError):
            continue  # The learner says what is wrong with it.
        if type(saved) is not int or saved <= iteration:
            return
        store.mark_as_end(path)


def _unpack_states(config: Config, run_dir: Path, ranks: Ranks, *, trust: bool) -> int:
    """Unpack the states of this rank's groups from the checkpoint to resume from; returns its iteration."""
    from rollmill.learning.in_flight import InFlight
    from rollmill.learning.process_group import exchange
    from rollmill.runtime.signed_files import require_trust
    from rollmill.storage.checkpoints import CheckpointStore

    assert config.envs_per_group != "auto"
    num_groups = config.num_envs // config.envs_per_group

    def find() -> tuple[int, list[bytes]]:
        # The last policy saves last, with the states of the groups.
        store = CheckpointStore(config.population.folders(run_dir)[-1] / "checkpoints", config.checkpoint)
        state, path = store.load_latest(to_resume=True)
        in_flight = InFlight.unpack(state)
        in_flight.require_trusted(path, trust=trust)
        return in_flight.iteration, list(in_flight.groups)

    # Only rank 0's disk has it.
    iteration, groups = find() if ranks.is_alone else exchange(ranks, "groups", find, config.distributed.timeout_s)
    InFlight(iteration, [], groups).check_complete(num_groups)
    for folder in config.population.folders(run_dir)[:-1]:
        mark_newer(CheckpointStore(folder / "checkpoints", config.checkpoint), iteration)
    states = group_states(run_dir)
    states.clear()
    for group, packed in enumerate(groups[i] for i in ranks.share(len(groups))):
        # For each group, because states of other ranks arrive over the network.
        _, verdict = GroupState.unpack(packed)
        require_trust(run_dir / "checkpoints", verdict, "it holds pickled environments", trust=trust)
        states.write_packed(iteration, group, packed)
    return iteration
