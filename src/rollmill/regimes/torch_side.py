"""What the processes that use torch have in common, whatever the regime: policy workers and learners.

Only these processes import this module: the main process and rollout workers do without torch.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from rollmill.inference.recurrent_states import RecurrentStates
from rollmill.inference.worker import PolicyWorker
from rollmill.learning.admission import Admission
from rollmill.learning.clock import TrainingClock
from rollmill.learning.collective import Alone, Collective
from rollmill.learning.config import LearnerConfig
from rollmill.learning.fast_path import FastPath
from rollmill.learning.fingerprints import FINGERPRINTS_FILE, Fingerprints
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
from rollmill.models.device import resolve_device, take_device, take_threads
from rollmill.regimes.setup import RunSetup, with_delays
from rollmill.roles import LearnerPhase
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.seeds import int_seed
from rollmill.settings.config import Config
from rollmill.specs import EnvSpec
from rollmill.storage.checkpoints import CheckpointStore
from rollmill.storage.evaluations import EvaluationQueue
from rollmill.storage.slots import SlotStore
from rollmill.storage.weights import WeightStore

AnAlgorithm = TypeVar("AnAlgorithm", bound=Algorithm)

__all__ = [
    "LearnerSide",
    "PolicySide",
    "device_of_rank",
    "make_off_policy",
    "make_on_policy",
    "run_plan",
]


def make_on_policy(config: Config, spec: EnvSpec) -> OnPolicyAlgorithm:
    """The on-policy algorithm of a run, freshly initialised, in the precision of its parameters."""
    algorithm = make_algorithm(spec.observation, spec.action, config.model, config.learner)
    return algorithm.double() if config.learner.precision == "fp64" else algorithm


def make_off_policy(config: Config, spec: EnvSpec) -> OffPolicyAlgorithm:
    """The off-policy algorithm of a run, freshly initialised.

    Raises:
        UnfitActionsError: It has no use for such actions.
        ValueError: The networks are asked for what they do not have.
    """
    # Algorithms act in the unit box, and the environment's bounds make it one.
    require_bounds(config.off_policy.algorithm, spec.action)
    return make_algorithm(spec.observation, spec.action.in_unit_box, config.model, config.off_policy)


def device_of_rank(name: str, ranks: Ranks) -> torch.device:
    """The device that "auto" means for one of several ranks on a machine: each takes another GPU."""
    device = resolve_device(name)
    if name == "auto" and device.type == "cuda" and not ranks.is_alone:
        return torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    return device


@dataclass(frozen=True)
class PolicySide(Generic[AnAlgorithm]):
    """What a policy worker starts from.

    Attributes:
        context: The process's.
        setup: The run's.
        index: Which policy worker this is.
        store: The slots.
        weights: Where the learner publishes.
        algorithm: Its own copy, on its device, in evaluation mode.
        device: Where it computes.
        is_lowered: Whether its weights are kept in bf16.
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
        """Registers the user's code, takes threads and a device, and makes the algorithm."""
        config = setup.config.inference
        take_threads(config.threads)
        device = take_device(str(device_of_rank(config.device, setup.ranks)))
        # A user's own network may have layers that act otherwise than they learn.
        algorithm = make(setup.config, setup.probed.spec).to(device).eval()
        is_lowered = not config.skip_policy and config.precision == "bf16"
        weights = WeightStore(setup.memory.arena)
        return cls(with_delays(context, setup.config), setup, index, store, weights, algorithm, device, is_lowered)

    def states(self, *, is_shared: bool = False) -> RecurrentStates:
        """The recurrent states of its groups."""
        groups = self.store.topology.groups_of_policy_worker(self.index)
        size = self.algorithm.state_size
        return RecurrentStates(self.store, groups, state_size=size, device=self.device, is_shared=is_shared)

    def run(
        self,
        *,
        batching: Batching,
        weights: ActingWeights[AnAlgorithm],
        reader: ObservationReader,
        explorer: Explorer,
        states: RecurrentStates,
        seed: int,
    ) -> None:
        """Runs the loop with these strategies."""
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
        ).run()


@dataclass(frozen=True)
class LearnerSide:
    """What a learner starts from.

    Attributes:
        run: The run's setup.
        setup: What the parts of the learner share.
        weights: Where it publishes.
    """

    run: RunSetup
    setup: LearnerSetup
    weights: WeightStore

    @classmethod
    def of(cls, context: ChildContext, run: RunSetup, **settings: object) -> LearnerSide:
        """Takes threads and a device, and meets the other ranks.

        Args:
            context: The process's.
            run: The run's setup.
            **settings: Settings of the learner that the regime decides.
        """
        config = replace(run.config.learner, **settings)  # type: ignore[arg-type]  # checked by the dataclass
        # Slurm and systemd end a run by a SIGTERM to each of its processes; the one that can save must not die of it.
        signal.signal(signal.SIGTERM, lambda number, frame: context.stop.set())
        take_threads(config.threads)
        collective: Collective = Alone()
        device = take_device(str(device_of_rank(config.device, run.ranks)))
        if not run.ranks.is_alone:
            collective = ProcessGroup(run.ranks, device, run.config.distributed.timeout_s)
        plan = run_plan(run)
        setup = LearnerSetup(
            context=with_delays(context, run.config),
            config=config,
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
        """The algorithm, with the initial weights that the run's seed gives, on its device."""
        torch.manual_seed(int_seed(self.run.config.seed, "initial weights", 0))
        algorithm = make(self.run.config, self.run.probed.spec)
        torch.manual_seed(self.setup.plan.seed)
        self.setup.ledger.enter(LearnerPhase.MEASURING)
        return algorithm.to(self.setup.device)

    def start(self, algorithm: Algorithm, trainer: Trainer, versions: Versions, timetable: Timetable) -> None:
        """Runs the loop with these strategies."""
        learner = Learner(self.setup, self.weights, algorithm, trainer=trainer, versions=versions, timetable=timetable)
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
        choose_path: Callable[[OnPolicyAlgorithm, EnvSpec, LearnerConfig], FastPath],
    ) -> None:
        """Runs the loop with an on-policy algorithm.

        Args:
            store: The slots.
            admission: Makes batches of completed slots.
            max_policy_lag: Versions by which a sample that counts may be older than the learner's.
            versions: How versions are numbered.
            timetable: When rows of metrics and checkpoints are due.
            choose_path: How to compute: by measurement or by rule.
        """
        run, setup, spec = self.run, self.setup, self.run.probed.spec
        algorithm = self.make(make_on_policy)
        random = np.random.default_rng(setup.plan.seed)
        path = choose_path(algorithm, spec, setup.config)
        algorithm.encoder_batch = path.micro_batch
        observation, ranks = store.observation, setup.collective
        fingerprints = None
        if run.config.debug_fingerprints:
            file, first = run.run_dir / FINGERPRINTS_FILE, run.probed.first_iteration
            fingerprints = Fingerprints(file, observation, first_update=first)
        trainer = OnPolicyTrainer(
            setup,
            store,
            algorithm,
            update=Update(algorithm, setup.config, path, collective=ranks),
            minibatches=Minibatches(algorithm, observation, setup.config, path, random, ranks),
            admission=admission,
            max_policy_lag=max_policy_lag,
            versions=versions,
            spec=spec,
            random=random,
            fingerprints=fingerprints,
        )
        self.start(algorithm, trainer, versions, timetable)


def run_plan(setup: RunSetup) -> RunPlan:
    """What a learner is told of the run."""
    config = setup.config
    return RunPlan(
        total_steps=config.total_steps,
        seed=int_seed(config.seed, "learner", 0),
        report_every_s=config.report_every_s,
        resume=setup.resume,
        checkpoints=CheckpointStore(setup.run_dir / "checkpoints", config.checkpoint),
        evaluations=EvaluationQueue(setup.run_dir, config.eval_every) if not setup.ranks.rank else None,
        episodes=setup.episodes,
        # What a clock decides is neither reproducible nor the same on every rank.
        schedule_s=None if config.in_lockstep or not setup.ranks.is_alone else config.max_seconds,
    )
