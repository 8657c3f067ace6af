"""Code shared by the processes that use torch, policy workers and learners, in all regimes.

Only these processes import this module: the main process and rollout workers must not import torch.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from rollmill.algorithms.base import Algorithm, OffPolicyAlgorithm
from rollmill.algorithms.on_policy import OnPolicyAlgorithm
from rollmill.algorithms.registry import make_algorithm
from rollmill.algorithms.requirements import require_bounds
from rollmill.inference.acting_weights import ActingWeights
from rollmill.inference.batching import Batching
from rollmill.inference.explorers import Explorer
from rollmill.inference.observation_readers import ObservationReader
from rollmill.inference.past_selves import PastSelves
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.inference.worker import PolicyWorker
from rollmill.learning.admission import Admission
from rollmill.learning.clock import TrainingClock
from rollmill.learning.collective import Alone, Collective
from rollmill.learning.config import ComputeConfig
from rollmill.learning.fast_path import FastPath
from rollmill.learning.fingerprints import FINGERPRINTS_FILE, Fingerprints
from rollmill.learning.league import League, Places
from rollmill.learning.learner import Learner, Trainer, run_in_turn
from rollmill.learning.live_numbers import LiveNumbers, control_block
from rollmill.learning.minibatches import Minibatches
from rollmill.learning.on_policy_trainer import OnPolicyTrainer
from rollmill.learning.process_group import ProcessGroup
from rollmill.learning.progress import LearnerSetup, Progress, RunPlan
from rollmill.learning.report import LearnerNote
from rollmill.learning.timetable import Timetable
from rollmill.learning.update import Update
from rollmill.learning.versions import Versions
from rollmill.models.device import compute_repeatably, resolve_device, take_device, take_threads
from rollmill.regimes.setup import RunSetup, with_delays
from rollmill.roles import LearnerPhase
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.seeds import int_seed
from rollmill.settings.config import Config
from rollmill.specs import EnvSpec
from rollmill.storage.bank import SnapshotBank
from rollmill.storage.checkpoints import CheckpointStore
from rollmill.storage.evaluations import EvaluationQueue
from rollmill.storage.slots import SlotStore
from rollmill.storage.weights import WeightStore

AnAlgorithm = TypeVar("AnAlgorithm", bound=Algorithm)

_SHARED_GPU = (
    "several ranks share a GPU, which NCCL does not support: gradients are exchanged through gloo, which is slower. "
    "Start as many ranks on each machine as it has GPUs"
)


def make_on_policy(config: Config, spec: EnvSpec) -> OnPolicyAlgorithm:
    """Build a run's on-policy algorithm, with initial parameters in their precision."""
    algorithm = make_algorithm(spec.observation, spec.action, config.model, config.on_policy)
    return algorithm.double() if config.compute.precision == "fp64" else algorithm


def make_off_policy(config: Config, spec: EnvSpec) -> OffPolicyAlgorithm:
    """Build a run's off-policy algorithm, with initial parameters.

    Raises:
        UnfitActionsError: It does not support the environment's actions.
        ValueError: The configuration asks for unsupported networks.
    """
    # Off-policy algorithms act in the unit box, which is mapped to the environment's bounds.
    require_bounds(config.algorithm_name, spec.action)
    return make_algorithm(spec.observation, spec.action.in_unit_box, config.model, config.off_policy)


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


@dataclass(frozen=True)
class PolicySide(Generic[AnAlgorithm]):
    """The parts of a policy worker.

    Attributes:
        context: The process's context.
        setup: The run's setup.
        index: Index of this policy worker.
        store: The slots.
        weights: The store that the learner publishes in.
        algorithm: The worker's copy of the algorithm, on its device, in evaluation mode.
        device: The worker's device.
        is_lowered: Whether its weights are stored in bf16.
    """

    context: ChildContext
    setup: RunSetup
    index: int
    store: SlotStore
    weights: WeightStore
    algorithm: AnAlgorithm
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
        """Register the user's code, set threads and device, and build the algorithm."""
        config = setup.config.inference
        take_threads(config.threads)
        device = _device_of(setup, config.device)
        # A user's network may have layers that differ in evaluation mode.
        algorithm = make(setup.config, setup.probed.spec).to(device).eval()
        is_lowered = not config.skip_policy and config.precision == "bf16"
        weights = WeightStore(setup.memory.arena)
        return cls(with_delays(context, setup.config), setup, index, store, weights, algorithm, device, is_lowered)

    def past_selves(self) -> PastSelves | None:
        """Build the networks of past selves; before :meth:`run`'s weights, whose network they copy."""
        if not self.setup.config.population.snapshots:
            return None
        return PastSelves(self.setup.bank(), self.algorithm, is_lowered=self.is_lowered)

    def states(self, *, is_shared: bool = False) -> RecurrentStates:
        """Build the recurrent states of its groups."""
        groups = self.store.topology.groups_of_policy_worker(self.index)
        size = self.algorithm.state_size
        return RecurrentStates(self.store, groups, state_size=size, device=self.device, is_shared=is_shared)

    def run(
        self,
        *,
        batching: Batching,
        weights: ActingWeights,
        reader: ObservationReader,
        explorer: Explorer,
        states: RecurrentStates,
        seed: int,
        past_selves: PastSelves | None = None,
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
        ).run()


@dataclass(frozen=True)
class LearnerSide:
    """The parts of a learner.

    Attributes:
        run: The run's setup.
        setup: Objects shared by the parts of the learner.
        weights: The store that it publishes in.
    """

    run: RunSetup
    setup: LearnerSetup
    weights: WeightStore

    @classmethod
    def of(cls, context: ChildContext, run: RunSetup, compute: ComputeConfig | None = None) -> LearnerSide:
        """Set threads and device, and connect to the other ranks.

        Args:
            context: The process's context.
            run: The run's setup.
            compute: Where and how the learner computes; None as configured.
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
        plan = run_plan(run)
        setup = LearnerSetup(
            context=with_delays(context, run.config),
            optimiser=run.config.optimiser,
            compute=compute,
            plan=plan,
            progress=Progress(),
            clock=TrainingClock(plan.schedule_s),
            collective=collective,
            device=device,
            numbers=LiveNumbers(
                None if run.ranks.rank else control_block(run.memory.arena),
                note=lambda text: context.send(LearnerNote(text)),
                log=context.log.info,
            ),
        )
        return cls(run, setup, WeightStore(run.memory.arena))

    def make(self, make: Callable[[Config, EnvSpec], AnAlgorithm]) -> AnAlgorithm:
        """Build the algorithm on its device, with initial weights from the run's seed."""
        torch.manual_seed(int_seed(self.run.config.seed, "initial weights", 0))
        algorithm = make(self.run.config, self.run.probed.spec)
        torch.manual_seed(self.setup.plan.seed)
        self.setup.ledger.enter(LearnerPhase.MEASURING)
        return algorithm.to(self.setup.device)

    def start(
        self,
        algorithm: Algorithm,
        trainer: Trainer,
        versions: Versions,
        timetable: Timetable,
        league: League | None = None,
    ) -> None:
        """Run the loop with these strategies."""
        learner = Learner(
            self.setup,
            self.weights,
            algorithm,
            trainer=trainer,
            versions=versions,
            timetable=timetable,
            league=league,
        )
        run_in_turn([learner])
        self.setup.collective.close()

    def start_on_policy(
        self,
        store: SlotStore,
        *,
        admission: Admission,
        max_policy_lag: int,
        versions: Versions,
        timetable: Timetable,
        choose_path: Callable[[OnPolicyAlgorithm, EnvSpec, ComputeConfig], FastPath],
        places: Callable[[SnapshotBank], Places],
    ) -> None:
        """Run the loop with an on-policy algorithm.

        Args:
            store: The slots.
            admission: Forms batches of completed slots.
            max_policy_lag: Versions by which a sample that counts may be older than the learner's.
            versions: Numbering of versions.
            timetable: Times of metrics rows and checkpoints.
            choose_path: Chooses compute settings, by measurement or by rule.
            places: Builds what knows which places of a bank nobody plays.
        """
        run, setup, spec = self.run, self.setup, self.run.probed.spec
        algorithm = self.make(make_on_policy)
        random = np.random.default_rng(setup.plan.seed)
        path = choose_path(algorithm, spec, setup.compute)
        algorithm.encoder_batch = path.micro_batch
        observation, ranks = store.observation, setup.collective
        fingerprints = None
        if run.config.debug_fingerprints:
            file, first = run.run_dir / FINGERPRINTS_FILE, run.probed.first_iteration
            fingerprints = Fingerprints(file, observation, first_update=first)
        league = None
        if run.config.population.snapshots:
            bank = run.bank()
            num_versions = max(1, run.topology.slots_per_group)
            league = League(bank, places(bank), run.config.population, num_versions=num_versions)
        trainer = OnPolicyTrainer(
            setup,
            store,
            algorithm,
            update=Update(algorithm, setup.optimiser, path, collective=ranks),
            minibatches=Minibatches(algorithm, observation, path, random, ranks),
            admission=admission,
            max_policy_lag=max_policy_lag,
            versions=versions,
            spec=spec,
            random=random,
            fingerprints=fingerprints,
            league=league,
        )
        self.start(algorithm, trainer, versions, timetable, league)


def run_plan(setup: RunSetup) -> RunPlan:
    """Build the run's settings for a learner."""
    config = setup.config
    return RunPlan(
        total_steps=config.total_steps,
        seed=int_seed(config.seed, "learner", 0),
        report_every_s=config.report_every_s,
        resume=setup.resume,
        checkpoints=CheckpointStore(setup.run_dir / "checkpoints", config.checkpoint),
        evaluations=EvaluationQueue(setup.run_dir, config.eval_every) if not setup.ranks.rank else None,
        episodes=setup.episodes,
        # Decisions by a clock are neither reproducible nor equal on all ranks.
        schedule_s=None if config.in_lockstep or not setup.ranks.is_alone else config.max_seconds,
    )
