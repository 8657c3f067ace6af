"""Code shared by the processes that use torch, policy workers and learners, in all regimes.

Only these processes import this module: the main process and rollout workers must not import torch.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from rollmill.algorithms.base import Algorithm, OffPolicyAlgorithm
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.registry import make_algorithm
from rollmill.algorithms.requirements import require_bounds
from rollmill.inference.acting_weights import ActingWeights
from rollmill.inference.batching import Batching
from rollmill.inference.explorers import Explorer
from rollmill.inference.guests import Guest
from rollmill.inference.observation_readers import ObservationReader
from rollmill.inference.past_selves import PastSelves
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.inference.worker import PolicyWorker
from rollmill.learning.admission import Admission
from rollmill.learning.batch_loader import ReadyBatches
from rollmill.learning.clock import TrainingClock
from rollmill.learning.collective import Alone, Collective
from rollmill.learning.config import ComputeConfig
from rollmill.learning.fast_path import FastPath
from rollmill.learning.fingerprints import FINGERPRINTS_FILE, Fingerprints
from rollmill.learning.league import League, Standings
from rollmill.learning.learner import Learner, Trainer, run_in_turn
from rollmill.learning.live_numbers import LiveNumbers, control_block
from rollmill.learning.minibatches import Minibatches
from rollmill.learning.on_policy_trainer import OnPolicyTrainer
from rollmill.learning.process_group import ProcessGroup
from rollmill.learning.progress import LearnerSetup, Progress, RunPlan, RunSteps
from rollmill.learning.report import LearnerNote
from rollmill.learning.results import RecentResults
from rollmill.learning.snapshot_keeper import Places, SnapshotKeeper
from rollmill.learning.timetable import Timetable
from rollmill.learning.update import Update
from rollmill.learning.versions import Versions
from rollmill.models.device import compute_repeatably, resolve_device, take_device, take_threads
from rollmill.models.freezing import freeze
from rollmill.pbt.training import PolicyMember
from rollmill.regimes.guests import make_guest
from rollmill.regimes.initial_weights import InitialWeights, load_state
from rollmill.regimes.population import member_of, population_training, settings_of_policy
from rollmill.regimes.setup import RunSetup, with_delays
from rollmill.roles import LearnerPhase
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.seeds import int_seed
from rollmill.settings.config import Config
from rollmill.settings.policies import source_of
from rollmill.specs import EnvSpec
from rollmill.storage.background_writes import BackgroundWrites
from rollmill.storage.bank import SnapshotBank
from rollmill.storage.checkpoints import CheckpointStore
from rollmill.storage.evaluations import EvaluationQueue
from rollmill.storage.player_ids import PlayerIds
from rollmill.storage.slot_reserve import SlotReserve
from rollmill.storage.slots import SlotStore
from rollmill.storage.weights import WeightStore, acting_ring

AnAlgorithm = TypeVar("AnAlgorithm", bound=Algorithm)

ChoosePath = Callable[[OnPolicyAlgorithm, EnvSpec, ComputeConfig], FastPath]

_SHARED_GPU = (
    "several ranks share a GPU, which NCCL does not support: gradients are exchanged through gloo, which is slower. "
    "Start as many ranks on each machine as it has GPUs"
)


def make_on_policy(config: Config, spec: EnvSpec) -> OnPolicyAlgorithm:
    """Build a run's on-policy algorithm, with initial parameters in their precision.

    Raises:
        FreezeError: ``learner.freeze`` fits no parameter, or leaves none to train.
    """
    algorithm = make_algorithm(spec.observation, spec.action, config.model, config.on_policy)
    freeze(algorithm, config.optimiser.freeze)
    return algorithm.double() if config.compute.precision == "fp64" else algorithm


def make_off_policy(config: Config, spec: EnvSpec) -> OffPolicyAlgorithm:
    """Build a run's off-policy algorithm, with initial parameters.

    Raises:
        UnfitActionsError: It does not support the environment's actions.
        FreezeError: ``learner.freeze`` fits no parameter, or leaves none to train.
        ValueError: The configuration asks for unsupported networks.
    """
    # Off-policy algorithms act in the unit box, which is mapped to the environment's bounds.
    require_bounds(config.algorithm_name, spec.action)
    algorithm = make_algorithm(spec.observation, spec.action.in_unit_box, config.model, config.off_policy)
    freeze(algorithm, config.optimiser.freeze)
    return algorithm


def device_of_rank(name: str, ranks: Ranks) -> torch.device:
    """Return the device of a rank; "auto" gives each rank on a machine a different GPU."""
    device = resolve_device(name)
    if name == "auto" and device.type == "cuda" and not ranks.is_alone:
        return torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    return device


def _device_of(setup: RunSetup, name: str) -> torch.device:
    """Take the device that a setting names for this process; lockstep computes repeatably on it."""
    device = take_device(str(device_of_rank(name, setup.ranks)))
    if setup.config.in_lockstep:
        compute_repeatably(device)
    return device


class PolicyNetwork(NamedTuple, Generic[AnAlgorithm]):
    """A policy as a policy worker has it.

    Attributes:
        weights: The store that its learner publishes in.
        algorithm: The worker's copy of the algorithm, on its device, in evaluation mode.
    """

    weights: WeightStore
    algorithm: AnAlgorithm


@dataclass(frozen=True)
class PolicySide(Generic[AnAlgorithm]):
    """The parts of a policy worker.

    Attributes:
        context: The process's context.
        setup: The run's setup.
        index: Index of this policy worker.
        store: The slots.
        networks: One for each policy.
        device: The worker's device.
        is_lowered: Whether its weights are stored in bf16.
    """

    context: ChildContext
    setup: RunSetup
    index: int
    store: SlotStore
    networks: tuple[PolicyNetwork[AnAlgorithm], ...]
    device: torch.device
    is_lowered: bool

    @classmethod
    def of(
        cls,
        context: ChildContext,
        setup: RunSetup,
        index: int,
        store: SlotStore,
        make: Callable[[Config, EnvSpec], AnAlgorithm],
    ) -> PolicySide[AnAlgorithm]:
        """Register the user's code, set threads and device, and build the algorithms."""
        config = setup.config.inference
        take_threads(config.threads)
        device = _device_of(setup, config.device)
        networks = tuple(
            PolicyNetwork(
                WeightStore(setup.memory.arena, ring=acting_ring(policy)),
                # A user's network may have layers that differ in evaluation mode.
                make(settings, setup.probed.spec).to(device).eval(),
            )
            for policy, settings in enumerate(setup.config.policies)
        )
        is_lowered = not config.skip_policy and config.precision == "bf16"
        return cls(with_delays(context, setup.config), setup, index, store, networks, device, is_lowered)

    def past_selves(self) -> list[PastSelves]:
        """Build the networks of past selves; before :meth:`run`'s weights, whose networks they copy."""
        banks = self.setup.banks()
        pairs = zip(banks, self.networks, strict=True) if banks else ()
        return [PastSelves(bank, network.algorithm, is_lowered=self.is_lowered) for bank, network in pairs]

    def states(self, *, is_shared: bool = False) -> RecurrentStates:
        """Build the recurrent states of its groups."""
        groups = self.store.topology.groups_of_policy_worker(self.index)
        size = self.setup.probed.state_size
        return RecurrentStates(self.store, groups, state_size=size, device=self.device, is_shared=is_shared)

    def guests(self) -> list[Guest]:
        """Build the guests.

        Raises:
            PlayerError: One is not known, or does not fit the environment.
        """
        setup = self.setup
        players = [player for _, player in setup.config.population.named_guests]
        return [
            make_guest(player, setup.config, setup.probed.spec, self.device, index=index)
            for index, player in enumerate(players)
        ]

    def run(
        self,
        *,
        batching: Batching,
        weights: Sequence[ActingWeights],
        reader: ObservationReader,
        explorer: Explorer,
        states: RecurrentStates,
        seed: int,
        past_selves: Sequence[PastSelves] = (),
        guests: Sequence[Guest] = (),
    ) -> None:
        """Run the loop with these strategies."""
        config = self.setup.config
        PolicyWorker(
            self.context,
            self.store,
            index=self.index,
            action=config.stored_action(self.setup.probed.spec.action),
            config=config.inference,
            device=self.device,
            batching=batching,
            weights=weights,
            reader=reader,
            explorer=explorer,
            states=states,
            seed=seed,
            past_selves=past_selves,
            guests=guests,
        ).run()


@dataclass(frozen=True)
class LearnerSide:
    """The parts of the learner of one policy.

    Attributes:
        run: The run's setup.
        policy: Index of the policy.
        config: The policy's settings.
        setup: Objects shared by the parts of the learner.
        weights: The store that it publishes in.
        member: What population-based training knows about it; None without it.
    """

    run: RunSetup
    policy: int
    config: Config
    setup: LearnerSetup
    weights: WeightStore
    member: PolicyMember | None

    @classmethod
    def of(cls, context: ChildContext, run: RunSetup, compute: ComputeConfig | None = None) -> list[LearnerSide]:
        """Set threads and device, and connect to the other ranks; returns the parts for each policy.

        Args:
            context: The process's context.
            run: The run's setup.
            compute: Where and how the learners compute; None as configured.
        """
        compute = compute or run.config.compute
        # Slurm and systemd send SIGTERM to every process; the learner must survive it to save a checkpoint.
        signal.signal(signal.SIGTERM, lambda number, frame: context.stop.set())
        take_threads(compute.threads)
        collective: Collective = Alone()
        device = _device_of(run, compute.device)
        if not run.ranks.is_alone:
            collective = group = ProcessGroup(run.ranks, device, run.config.distributed.timeout_s)
            if group.shares_gpu and not run.ranks.rank:
                context.send(LearnerNote(_SHARED_GPU))
        policies = run.config.policies
        window = run.config.pbt.window if run.config.population.pbt else None
        tasks = run.config.env.tasks
        progress = [
            Progress(results=None if window is None else RecentResults(window, tasks), num_tasks=len(tasks))
            for _ in policies
        ]
        steps = RunSteps(progress, in_rounds=run.config.in_lockstep)
        ready = ReadyBatches()
        sides = []
        for policy, config in enumerate(policies):
            plan = run_plan(run, policy)
            setup = LearnerSetup(
                context=with_delays(context, run.config),
                optimiser=config.optimiser,
                compute=compute,
                plan=plan,
                progress=progress[policy],
                run_steps=steps,
                clock=TrainingClock(plan.schedule_s),
                collective=collective,
                device=device,
                ready=ready,
                numbers=LiveNumbers(
                    None
                    if run.ranks.rank
                    else control_block(run.memory.arena, terms=run.config.reward_terms, policy=policy),
                    settings=settings_of_policy(run.config, policy),
                    note=lambda text: context.send(LearnerNote(text)),
                    log=context.log.info,
                ),
            )
            weights = WeightStore(run.memory.arena, ring=acting_ring(policy))
            sides.append(cls(run, policy, config, setup, weights, member_of(run, policy, setup)))
        return sides

    def make(self, make: Callable[[Config, EnvSpec], AnAlgorithm]) -> AnAlgorithm:
        """Build the algorithm on its device, with initial weights from the run's seed, or those of another run."""
        torch.manual_seed(int_seed(self.run.config.seed, "initial weights", self.policy))
        algorithm = make(self.config, self.run.probed.spec)
        if (source := self._source) is not None:
            state = self._of_rank_0(lambda: InitialWeights(source).state)
            load_state(algorithm, state, self.config.init_skip, origin=source)
        torch.manual_seed(self.setup.plan.seed)
        self.setup.ledger.enter(LearnerPhase.MEASURING)
        return algorithm.to(self.setup.device)

    def learner(
        self,
        algorithm: Algorithm,
        trainer: Trainer,
        versions: Versions,
        timetable: Timetable,
        league: League | None = None,
        writes: BackgroundWrites | None = None,
    ) -> Learner:
        """Build the loop with these strategies."""
        if (source := self._source) is not None and self.config.init_optimiser:
            own = self.config.optimiser
            trainer.load_optimisers(self._of_rank_0(lambda: InitialWeights(source).optimisers(own)))
        return Learner(
            self.setup,
            self.weights,
            algorithm,
            trainer=trainer,
            versions=versions,
            timetable=timetable,
            league=league,
            member=self.member,
            writes=writes,
        )

    @property
    def _source(self) -> str | None:
        """The run or checkpoint that the policy begins from; None without one, or if the run is resumed."""
        return None if self.run.resume else source_of(self.run.config, self.run.config.population.names[self.policy])

    def _of_rank_0(self, read: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return what rank 0 reads, whose disk alone must have it."""
        collective = self.setup.collective
        found = {} if collective.rank else read()
        return found if collective.world_size == 1 else collective.broadcast(found)

    def league(self, standings: Standings, places: Callable[[SnapshotBank], Places]) -> League | None:
        """Build the league that counts the policy's matches and keeps its past selves; None without other players.

        Args:
            standings: The ratings of all policies.
            places: Builds the record of which places of a bank are in use.
        """
        run = self.run
        if run.topology.players == PlayerIds() or len(run.probed.spec.agents) < 2:
            return None
        population = run.config.population
        banks, num_versions = run.banks(), max(1, run.topology.slots_per_group)
        keeper = None
        if banks:
            bank = banks[self.policy]
            keeper = SnapshotKeeper(
                bank,
                places(bank),
                population,
                system=standings.system,
                name=population.names[self.policy],
                num_versions=num_versions,
            )
        names = [*population.names, *(name for name, _ in population.named_guests)]
        return League(self.policy, names, run.topology.players, standings, keeper, guests=population.guests)

    def on_policy_learner(
        self,
        *,
        admission: Callable[[SlotStore], Admission],
        reserve: SlotReserve,
        max_policy_lag: int,
        versions: Versions,
        timetable: Timetable,
        choose_path: ChoosePath,
        standings: Standings,
        places: Callable[[SnapshotBank], Places],
        writes: BackgroundWrites | None = None,
    ) -> Learner:
        """Build the loop with an on-policy algorithm.

        Args:
            admission: Builds what forms batches of completed slots.
            reserve: The slots that all learners of the process hold back.
            max_policy_lag: Versions by which a sample that counts may be older than the learner's.
            versions: Numbering of versions.
            timetable: Times of metrics rows and checkpoints.
            choose_path: Chooses compute settings, by measurement or by rule.
            standings: The ratings of all policies.
            places: Builds the record of which places of a bank are in use.
            writes: Writes checkpoints in the background; None writes them at once.
        """
        run, setup, spec = self.run, self.setup, self.run.probed.spec
        store = run.store_of(self.policy)
        algorithm = self.make(make_on_policy)
        random = np.random.default_rng(setup.plan.seed)
        path = choose_path(algorithm, spec, setup.compute)
        algorithm.encoder_batch = path.micro_batch
        observation, ranks = store.observation, setup.collective
        fingerprints = None
        if run.config.debug_fingerprints:
            file, first = run.folder_of(self.policy) / FINGERPRINTS_FILE, run.probed.first_iteration
            fingerprints = Fingerprints(file, observation, first_update=first)
        league = self.league(standings, places)
        trainer = OnPolicyTrainer(
            setup,
            store,
            algorithm,
            update=Update(algorithm, setup.optimiser, path, collective=ranks),
            minibatches=Minibatches(algorithm, observation, path, random, ranks),
            admission=admission(store),
            reserve=reserve,
            max_policy_lag=max_policy_lag,
            versions=versions,
            spec=spec,
            random=random,
            fingerprints=fingerprints,
            league=league,
        )
        return self.learner(algorithm, trainer, versions, timetable, league, writes)


def run_learners(sides: Sequence[LearnerSide], learners: Sequence[Learner]) -> None:
    """Run the loops of all policies until they end."""
    first = sides[0].setup
    members = [side.member for side in sides if side.member is not None]
    between = population_training(sides[0].run, first, members, learners).between if members else lambda: None
    run_in_turn(learners, first.run_steps, first.ready, between=between)
    first.collective.close()


def run_plan(setup: RunSetup, policy: int = 0) -> RunPlan:
    """Build the run's settings for the learner of a policy."""
    config, folder = setup.config, setup.folder_of(policy)
    names, checkpoint = config.population.names, config.checkpoint
    if config.in_lockstep and len(names) > 1:
        # Policies save one after another; one that has saved must still have the iteration that all others have.
        checkpoint = replace(checkpoint, keep=max(2, checkpoint.keep))
    return RunPlan(
        total_steps=config.total_steps,
        seed=int_seed(config.seed, "learner", policy),
        report_every_s=config.report_every_s,
        resume=setup.resume,
        checkpoints=CheckpointStore(folder / "checkpoints", checkpoint),
        evaluations=EvaluationQueue(folder, config.eval_every) if not setup.ranks.rank else None,
        episodes=setup.episodes[policy] if setup.episodes else 0,
        policy=policy,
        policy_name=names[policy] if len(names) > 1 else "",
        # Decisions by a clock are neither reproducible nor equal on all ranks.
        schedule_s=None if config.in_lockstep or not setup.ranks.is_alone else config.max_seconds,
    )
