"""The complete configuration of a run: the frozen configurations of the parts, and the checks across them.

No layer below may import it; each part receives its own configuration only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from rollmill.algorithms.off_policy_config import OFF_POLICY_ALGORITHMS, AnyOffPolicyConfig
from rollmill.algorithms.on_policy_config import PPO, OnPolicyConfig
from rollmill.envs.config import EnvConfig
from rollmill.inference.config import InferenceConfig
from rollmill.learning.config import ComputeConfig, OptimiserConfig
from rollmill.models.config import ACTOR_CRITIC, BUILT_IN_ENCODERS, ModelConfig
from rollmill.pbt.config import PbtConfig
from rollmill.rollout.config import RolloutConfig
from rollmill.runtime.affinity import PlacementConfig, usable_cores
from rollmill.runtime.ranks import DistributedConfig
from rollmill.settings.fields import setting
from rollmill.settings.pbt_checks import check_pbt
from rollmill.settings.policies import check_policies, config_of_policy
from rollmill.settings.regime_config import AsyncConfig, LockstepConfig, RegimeConfig, ReplayRegimeConfig
from rollmill.settings.task_checks import check_tasks
from rollmill.settings.value_checks import ABOVE_ZERO, ANY_NUMBER, AT_LEAST_ZERO, Checked, ConfigError, integer
from rollmill.specs import ActionSpec, BoxActions
from rollmill.storage.checkpoints import CheckpointConfig
from rollmill.storage.population_config import PopulationConfig
from rollmill.storage.replay_config import ReplayConfig
from rollmill.tracking.config import TrackingConfig

R = TypeVar("R", AsyncConfig, LockstepConfig, ReplayRegimeConfig)


# Groups have 16 environments, so that a batch of a policy worker has as many rows. There are at least two groups for
# each of two workers, and at most 16, because each group adds overhead.
_GROUP_ENVS, _FEWEST_GROUPS, _MOST_GROUPS = 16, 4, 16


def _divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` that is at most ``most``."""
    return next(n for n in range(min(number, most), 0, -1) if number % n == 0)


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """All settings of a run.

    Attributes:
        preset: Name of the reference configuration that this one is based on.
        regime: "async": simulation, inference and learning at their own pace (Sample Factory). "lockstep": iteration i
            learns from exactly what policy version max(0, i - lag) collected, so that the result does not depend on the
            speed or the number of workers (Cleanba). "replay": off-policy algorithms learn from a replay of collected
            steps, with a fixed ratio of SGD steps to agent steps (PAL).
        env: The environment.
        model: The network.
        optimiser: How gradients change weights.
        compute: Where and how the learner computes.
        inference: The policy workers.
        rollout: The rollout workers.
        checkpoint: When checkpoints are written and which are kept.
        placement: Cores and niceness of the processes.
        distributed: Ranks that train together.
        population: The policies that learn, and past selves as opponents.
        pbt: Population-based training, where ``population.pbt`` is set.
        tracking: The services that show the run, such as TensorBoard.
        policy: Settings that one of several policies has for itself, as ``NAME.KEY`` -> value, for example
            ``policy.attacker.learner.learning_rate``.
        task_share: Of several tasks (``env.tasks``), what each gets as much of as the others: "samples", a batch then
            has as many of each task; or "compute", as many rollout workers, and equal time of stepping, so that quick
            tasks give more samples.
        init_from: Weights to begin with, normalisers included: a run's directory (its newest checkpoint) or a
            checkpoint file. Counters, schedules and everything else start from zero. ``policy.NAME.load`` gives one of
            several policies others. None begins with new weights.
        init_skip: Parameters and buffers that get new values instead, as patterns of their names or of the modules
            that hold them, such as ``heads.policy``.
        init_optimiser: Whether the optimiser's moments are taken over, too.
        num_envs: Environments, over all rollout workers.
        envs_per_group: Environments that are stepped and inferred together. "auto" gives every rollout worker
            ``rollout.groups_per_worker`` groups. In lockstep, where it is a hyperparameter, "auto" is about 16, with
            at least 4 and at most 16 groups.
        rollout_length: T, agent steps of a slot.
        total_steps: Agent steps (valid samples consumed by the learner; in replay, collected) after which the run ends.
        max_seconds: Wall-clock seconds of training after which the run ends. The time of the start does not count;
            earlier sessions of a resumed run do. None sets no limit.
        target_return: The run also ends once 100 episodes have ended and the mean raw return of the last 100, of
            several tasks the mean of the tasks' means, is at least this. None sets no target.
        eval_every: Agent steps between evaluations of the network, which a separate process runs in its own
            environments and writes to ``evaluations.jsonl``. None runs no evaluations.
        eval_episodes: Complete episodes of each evaluation.
        eval_against: With several agents, players that the network meets in each evaluation, ``eval_episodes`` times in
            each seat: "random", names given to ``register_player``, run directories and checkpoint files.
        eval_video: Film one more episode, into ``videos/``, at the first of every so many evaluations: 1 films at each.
            None films none.
        seed: Key of every random stream of the run.
        report_every_s: Seconds between two rows of metrics and between two updates of the display. In lockstep, rows do
            not depend on time, so that two runs have the same rows: one for each thousandth of the run, at least one
            iteration and at most 100,000 agent steps apart.
        debug_delay_s: Every process sleeps at random times, for at most this many seconds, to show what depends on
            speed. 0 disables it.
        debug_fingerprints: Write ``fingerprints.jsonl``: hashes of the data of every update, step by step, and of the
            network after it.
        debug_poison: Fill fresh shared memory with NaN and impossible values, to detect reads of unwritten data.
    """

    preset: str = ""
    regime: RegimeConfig = field(default_factory=AsyncConfig)
    env: EnvConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
    pbt: PbtConfig = field(default_factory=PbtConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    policy: Mapping[str, object] = field(default_factory=dict)
    task_share: Literal["samples", "compute"] = "samples"
    init_from: str | None = None
    init_skip: tuple[str, ...] = ()
    init_optimiser: bool = False
    num_envs: int = setting(64, integer(1))
    envs_per_group: int | Literal["auto"] = setting("auto", integer(1))
    rollout_length: int = setting(32, integer(1))
    total_steps: int = setting(10_000_000, integer(1))
    max_seconds: float | None = setting(None, ABOVE_ZERO, "for no limit")
    target_return: float | None = setting(None, ANY_NUMBER, "for no target")
    eval_every: int | None = setting(None, integer(1), "for no evaluations")
    eval_episodes: int = setting(30, integer(1))
    eval_against: tuple[str, ...] = ()
    eval_video: int | None = setting(None, integer(1), "for no videos")
    seed: int = setting(1, integer(0))
    report_every_s: float = setting(2.0, ABOVE_ZERO, "(seconds)")
    debug_delay_s: float = setting(0.0, AT_LEAST_ZERO, "(seconds)")
    debug_fingerprints: bool = False
    debug_poison: bool = False

    def __post_init__(self) -> None:
        """Reject invalid values, and combinations of the parts' values that no run can use."""
        super().__post_init__()
        self._check_batch()
        self._check_groups()
        if self.env.tasks:
            check_tasks(self)
        self.regime.check(self)
        self._check_algorithm()
        self._check_model_options()
        self._check_compile()
        check_policies(self)
        if self.population.pbt:
            check_pbt(self)

    @property
    def policies(self) -> tuple[Config, ...]:
        """The settings of each policy; of this run where it has one."""
        if len(self.population.names) == 1 and not self.policy:
            return (self,)
        return tuple(config_of_policy(self, name) for name in self.population.names)

    @property
    def reward_terms(self) -> tuple[str, ...]:
        """Names of the reward terms that learners weigh, in the order of their columns in slots."""
        return () if self.in_replay else tuple(sorted(self.on_policy.reward_weights))

    @property
    def has_central_view(self) -> bool:
        """Whether groups write what all agents observe, for the critic of a policy."""
        return any(policy.model.central_value for policy in self.policies)

    @property
    def has_task_entry(self) -> bool:
        """Whether groups write which task a row belongs to, for the networks of policies."""
        models = [policy.model for policy in self.policies]
        return bool(self.env.tasks) and any(model.uses_task for model in models)

    @property
    def groups_multiple(self) -> int:
        """What the number of groups is a multiple of: every policy plays every task in as many groups."""
        return len(self.env.tasks) * len(self.population.names) if self.env.tasks else 1

    @property
    def in_lockstep(self) -> bool:
        """Whether the regime is "lockstep"."""
        return isinstance(self.regime, LockstepConfig)

    @property
    def in_replay(self) -> bool:
        """Whether the regime is "replay"."""
        return isinstance(self.regime, ReplayRegimeConfig)

    @property
    def replay(self) -> ReplayConfig:
        """In the replay regime, the replay and how it is sampled."""
        return self.regime_as(ReplayRegimeConfig).replay

    @property
    def num_learners(self) -> int:
        """Processes that compute gradients on each rank."""
        return self.regime.num_learners if isinstance(self.regime, ReplayRegimeConfig) else 1

    @property
    def algorithm(self) -> OnPolicyConfig | AnyOffPolicyConfig:
        """What is learned."""
        return self.regime.algorithm

    @property
    def on_policy(self) -> OnPolicyConfig:
        """The algorithm, for code that runs in no replay."""
        assert isinstance(self.algorithm, OnPolicyConfig)
        return self.algorithm

    @property
    def off_policy(self) -> AnyOffPolicyConfig:
        """The algorithm, for code that runs in the replay regime alone."""
        return self.regime_as(ReplayRegimeConfig).algorithm

    @property
    def minibatch_size(self) -> int:
        """Samples of one SGD step."""
        algorithm = self.algorithm
        return algorithm.minibatch_size if isinstance(algorithm, OnPolicyConfig) else algorithm.batch_size

    def regime_as(self, kind: type[R]) -> R:
        """The settings of the regime, for code that runs in no other one."""
        assert isinstance(self.regime, kind)
        return self.regime

    @property
    def algorithm_name(self) -> str:
        """What is learned."""
        return self.algorithm.algorithm

    @property
    def box_actions(self) -> BoxActions:
        """How the data plane maps real actions to the environment's bounds."""
        return self.algorithm.box_actions(self.model)

    def stored_action(self, action: ActionSpec) -> ActionSpec:
        """The action as slots hold it: in [-1, 1] where the data plane scales it to the environment's bounds."""
        return self.algorithm.stored_action(self.model, action)

    @property
    def iterations_per_checkpoint(self) -> int:
        """In lockstep, iterations between checkpoints; 0 writes only the last one."""
        steps = self.checkpoint.every_steps
        return 0 if steps is None else max(1, round(steps / self.algorithm.batch_size))

    def resolved(self, world_size: int = 1) -> Config:
        """This configuration with every "auto" of groups and workers replaced by a number for this machine.

        Values that the user set are kept. The number of environments is that of all ranks together, the number of
        workers that of each rank.

        Args:
            world_size: Ranks that share the environments.

        Raises:
            ConfigError: The numbers are inconsistent.
        """
        if self.in_lockstep and self.envs_per_group == "auto":
            # Independent of the machine, because the size of groups changes results.
            most = min(max(self.num_envs // _GROUP_ENVS, _FEWEST_GROUPS), _MOST_GROUPS)
            every = self.groups_multiple
            groups = every * _divisor(self.num_envs // every, max(1, most // every))
            fitting = replace(self, envs_per_group=self.num_envs // groups)
            return fitting.resolved(world_size)
        if self.in_replay and world_size > 1 and self.num_envs % world_size == 0:
            # Each rank has its own replay and its share of the environments.
            self.regime.check_ranks(self, world_size)
            of_rank = replace(self, num_envs=self.num_envs // world_size).resolved()
            return replace(of_rank, num_envs=self.num_envs)
        num_workers = self._num_workers(world_size)
        envs_per_group = self._envs_per_group(num_workers)
        num_groups = self.num_envs // envs_per_group
        if self.env.tasks and self.rollout.num_workers == "auto":
            # Tasks decide how many groups there can be, and groups how many workers.
            own = len(self.env.tasks) if self.task_share == "compute" else 1
            num_workers = max(own, min(num_workers, num_groups) // own * own)
        if num_groups % world_size:
            raise ConfigError(
                f"envs_per_group={self.envs_per_group}: the {num_groups} groups of {envs_per_group} environments do "
                f"not spread evenly over {world_size} ranks; use a multiple of {world_size} groups."
            )
        num_groups //= world_size
        if num_groups % self.groups_multiple:
            fewest = self.groups_multiple * world_size
            size = self.num_envs // fewest
            raise ConfigError(
                f"{num_groups} groups of environments on each rank do not divide into {self.groups_multiple} shares, "
                "one of each policy for each task (env.tasks): "
                + (
                    f"use envs_per_group={size}."
                    if size and self.num_envs % fewest == 0
                    else f"give a multiple of {fewest} environments (num_envs), and envs_per_group a divisor of "
                    f"num_envs/{fewest}."
                )
            )
        if world_size > 1:
            self.regime.check_ranks(self, world_size)
        if num_workers > num_groups:
            raise ConfigError(
                f"rollout.num_workers={num_workers} is more than the {num_groups} groups of {envs_per_group} "
                "environments: use fewer workers, more environments or smaller groups."
            )
        if self.inference.num_workers > num_groups:
            raise ConfigError(
                f"inference.num_workers={self.inference.num_workers} is more than the {num_groups} groups of "
                f"{envs_per_group} environments: use fewer policy workers, more environments or smaller groups."
            )
        per_batch = self.inference.groups_per_batch
        if self.in_lockstep and (num_groups % per_batch or self.inference.num_workers > num_groups // per_batch):
            raise ConfigError(
                f"inference.groups_per_batch={per_batch}: the {num_groups} groups of {envs_per_group} environments "
                f"must make whole batches, one at least for each of the {self.inference.num_workers} policy worker(s)."
            )
        return replace(self, envs_per_group=envs_per_group, rollout=replace(self.rollout, num_workers=num_workers))

    def _num_workers(self, world_size: int) -> int:
        """One rollout worker for each usable core, but not more than there are groups for."""
        if self.rollout.num_workers != "auto":
            return self.rollout.num_workers
        if self.env.tasks and self.task_share == "compute":
            tasks = len(self.env.tasks)
            return tasks * max(1, min(usable_cores() // tasks, self.num_envs // self.groups_multiple))
        per_worker = self.rollout.groups_per_worker
        if self.env.tasks and self.envs_per_group == "auto":
            return max(1, min(usable_cores(), self.num_envs // per_worker))
        if self.envs_per_group != "auto":
            num_groups = self.num_envs // self.envs_per_group // world_size
            most = max(1, min(usable_cores(), num_groups // per_worker))
            # The worker with the most groups determines the time of an iteration.
            return _divisor(num_groups, most) if self.in_lockstep else most
        most = max(1, min(usable_cores(), self.num_envs // per_worker))
        return next(n for n in range(most, 0, -1) if n == 1 or self.num_envs % (n * per_worker) == 0)

    def _envs_per_group(self, num_workers: int) -> int:
        """The size with which every rollout worker has ``rollout.groups_per_worker`` groups."""
        if self.envs_per_group != "auto":
            return self.envs_per_group
        groups = min(self.num_envs, num_workers * self.rollout.groups_per_worker)
        if (every := self.groups_multiple) > 1:
            # About as many groups as asked for, rather more than fewer, since these leave workers without work.
            possible = [n * every for n in range(1, self.num_envs // every + 1) if self.num_envs % (n * every) == 0]
            near = [n for n in possible if groups <= n <= 2 * groups]
            return self.num_envs // (near or [min(possible, key=lambda n: abs(n - groups))])[0]
        if self.rollout.num_workers == "auto":
            groups = _divisor(self.num_envs, groups)
        if self.num_envs % groups:
            raise ConfigError(
                f"num_envs={self.num_envs} does not divide into {num_workers} rollout workers x "
                f"{self.rollout.groups_per_worker} groups: use a multiple of {groups}, or set envs_per_group."
            )
        return self.num_envs // groups

    def _check_batch(self) -> None:
        algorithm = self.algorithm
        if not isinstance(algorithm, OnPolicyConfig):
            return
        batch, steps = algorithm.batch_size, self.rollout_length
        if batch % steps:
            lower = batch // steps * steps
            raise ConfigError(
                f"learner.batch_size={batch} is not a whole number of trajectories of rollout_length={steps}: use "
                f"{' or '.join(str(n) for n in (lower, lower + steps) if n)}, or another rollout_length."
            )
        trajectories = batch // steps
        whole = self.model.core != "none" or algorithm.advantage == "vtrace"
        if whole and trajectories % algorithm.minibatches:
            raise ConfigError(
                f"learner.minibatches={algorithm.minibatches} does not divide the batch's {trajectories} "
                "trajectories, which stay whole for a recurrent core and for V-trace: use a divisor."
            )
        micro = self.compute.micro_batch
        if micro != "auto" and micro > algorithm.minibatch_size:
            raise ConfigError(
                f"learner.micro_batch={micro} is more than the minibatch of {algorithm.minibatch_size} samples "
                "(batch_size / minibatches): give at most that, or 'auto'."
            )

    def _check_algorithm(self) -> None:
        """Check that a built-in algorithm is not named where only those of the other kind can be."""
        name = self.algorithm_name
        if self.in_replay and name == PPO:
            raise ConfigError(
                f"off_policy.algorithm={name!r}: it does not learn from a replay, as this run does; use --algo {name} "
                "for a run of its own."
            )
        if not self.in_replay and name in OFF_POLICY_ALGORITHMS:
            raise ConfigError(
                f"learner.algorithm={name!r}: it learns from a replay, which this run has not; use --algo {name} for a "
                "run of its own."
            )

    def _check_model_options(self) -> None:
        """Check that something may read the options of the user's network."""
        model, algorithm = self.model, self.algorithm_name
        is_built_in = model.model == ACTOR_CRITIC and model.encoder in BUILT_IN_ENCODERS
        if model.options and is_built_in and algorithm in (PPO, *OFF_POLICY_ALGORITHMS):
            raise ConfigError(
                f"model.options={dict(model.options)!r}: only a model, an encoder or an algorithm that you register "
                f"has options; this run has model.model={model.model!r}, model.encoder={model.encoder!r} and the "
                f"algorithm {algorithm!r}. Name yours, or omit the options."
            )

    def _check_compile(self) -> None:
        if self.compute.compile is True and not self.in_replay and self.on_policy.advantage == "vtrace":
            raise ConfigError(
                "learner.compile=True with learner.advantage='vtrace': only learning sample by sample is compiled; use "
                "advantage='gae', or compile='auto'."
            )
        if self.compute.compile is True and self.model.core != "none":
            raise ConfigError(
                f"learner.compile=True with model.core={self.model.core!r}: updates of recurrent cores are not "
                "compiled; use core='none', or compile='auto'."
            )

    def _check_groups(self) -> None:
        if self.envs_per_group != "auto" and self.num_envs % self.envs_per_group:
            raise ConfigError(
                f"envs_per_group={self.envs_per_group} does not divide num_envs={self.num_envs}: use a divisor or auto."
            )
