"""The regimes of a run: each with the settings that it alone has, and what it asks of the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rollmill.algorithms.off_policy_config import AnyOffPolicyConfig, DQNConfig, OwnOffPolicyConfig
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.learning.config import KlSchedule
from rollmill.settings.fields import setting, tag
from rollmill.settings.value_checks import NAME, Checked, ConfigError, check_integer, integer
from rollmill.storage.rate_limiter import least_error_buffer
from rollmill.storage.replay_config import ReplayConfig

if TYPE_CHECKING:
    from rollmill.settings.config import Config


@dataclass(frozen=True, kw_only=True)
class AsyncConfig(Checked, section=""):
    """Simulation, inference and learning at their own pace.

    Attributes:
        algorithm: What is learned.
        admission: The rule that makes batches of completed slots: "fifo", in the order in which they were completed, or
            a name given to :func:`rollmill.learning.admission.register_admission`.
        num_slots: Slots in shared memory; "auto" reserves enough that no stage waits for a slot.
        max_policy_lag: Samples that are more than this many policy versions (SGD steps) older than the learner's at
            admission are left out and counted. The default is Sample Factory's.
        publish_every: SGD steps from one published version of the weights to the next; the last one of a batch is
            always published, but for a replay's. Publishing and loading cost both sides time; samples become
            ``(publish_every - 1) / 2`` steps older.
    """

    name: Literal["async"] = tag("async", key="regime")
    algorithm: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    admission: str = setting("fifo", NAME)
    num_slots: int | Literal["auto"] = setting("auto", integer(1))
    max_policy_lag: int = setting(1000, integer(0), key="learner.max_policy_lag")
    publish_every: int = setting(2, integer(1), key="learner.publish_every")

    def check(self, run: Config) -> None:
        """Refuse other settings that this regime cannot use.

        Args:
            run: The complete configuration.

        Raises:
            ConfigError: Which settings do not go together, and what to do.
        """
        if run.compute.precision == "fp64":
            raise ConfigError("learner.precision='fp64': only lockstep supports it; use regime='lockstep'.")

    def check_ranks(self, run: Config, world_size: int) -> None:
        """As :meth:`check`, for several ranks."""
        raise ConfigError(
            f"regime={self.name!r} with {world_size} ranks: only lockstep and replay support several ranks; use one of "
            "these, or start one program without torchrun."
        )


@dataclass(frozen=True, kw_only=True)
class LockstepConfig(Checked, section=""):
    """Iteration i learns from exactly what policy version max(0, i - lag) collected.

    Attributes:
        algorithm: What is learned.
        lag: Iterations between the policy that collects and the one that learns. With 0 they take turns, with 1 they
            overlap.
    """

    name: Literal["lockstep"] = tag("lockstep", key="regime")
    algorithm: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    lag: int = setting(1, integer(0), "(0: collecting and learning take turns)")

    @property
    def max_policy_lag(self) -> int:
        """Iterations by which a sample may be older than the learner's version: none is older than ``lag``."""
        return self.lag

    def check(self, run: Config) -> None:
        """See :meth:`AsyncConfig.check`."""
        iteration = run.num_envs * run.rollout_length
        if self.algorithm.batch_size != iteration:
            raise ConfigError(
                f"learner.batch_size={self.algorithm.batch_size}: in lockstep a batch is one rollout of every "
                f"environment, num_envs x rollout_length = {run.num_envs} x {run.rollout_length} = {iteration} "
                "samples; omit it, or change one of the three."
            )
        if run.checkpoint.every_s is not None:
            raise ConfigError(
                f"checkpoint.every_s={run.checkpoint.every_s}: in lockstep checkpoints are written after a number of "
                "steps, because environments that cannot be saved are rebuilt there; use checkpoint.every_steps and "
                "checkpoint.every_s=none."
            )
        if run.compute.precision == "fp64" and run.inference.precision != "auto":
            raise ConfigError(
                f"inference.precision={run.inference.precision!r} with learner.precision='fp64': the whole network "
                "uses double precision then; use inference.precision='auto'."
            )
        if run.inference.random_actions:
            raise ConfigError(
                "inference.random_actions=True: it is for measuring throughput, and its actions are not keyed by "
                "environment and step; use regime='async'."
            )

    def check_ranks(self, run: Config, world_size: int) -> None:
        """See :meth:`AsyncConfig.check_ranks`."""
        names = run.population.names
        if len(names) > 1:
            raise ConfigError(
                f"{len(names)} policies (population.policies) with {world_size} ranks: several policies are trained by "
                "one rank only; start one program without torchrun, or use one policy."
            )
        if self.algorithm.advantage == "vtrace" and self.algorithm.normalise_advantages:
            raise ConfigError(
                f"learner.normalise_advantages=True with learner.advantage='vtrace' and {world_size} ranks: V-trace "
                "computes advantages inside the loss, for one minibatch; use normalise_advantages=False, or 'gae'."
            )


@dataclass(frozen=True, kw_only=True)
class ReplayRegimeConfig(Checked, section=""):
    """Off-policy algorithms learn from a replay, with a fixed ratio of SGD steps to agent steps.

    Attributes:
        algorithm: What is learned.
        replay: What is kept and how it is sampled.
        publish_every: SGD steps from one published version of the weights to the next.
        num_learners: Processes that learn at the same time, each from batches of its own; with more than one, the
            ``learner`` process is their parameter server, and each gradient is an SGD step.
        max_staleness: SGD steps, at most, between the weights that one of several learners' gradient was computed at
            and those that it is applied to; the faster learner waits. "auto" is twice the number of learners.
    """

    name: Literal["replay"] = tag("replay", key="regime")
    algorithm: AnyOffPolicyConfig = field(default_factory=DQNConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    publish_every: int = setting(2, integer(1), key="learner.publish_every")
    num_learners: int = setting(1, integer(1), key="learner.num_learners")
    max_staleness: int | Literal["auto"] = setting("auto", integer(0), key="learner.max_staleness")

    def __post_init__(self) -> None:
        """Refuse values that no run could use."""
        super().__post_init__()
        if self.max_staleness != "auto":
            if self.num_learners == 1:
                raise ValueError(
                    f"learner.max_staleness={self.max_staleness!r} with one learner, whose gradients are never stale: "
                    "leave it out, or use a larger learner.num_learners"
                )
            # Gradients that are begun at the same weights are applied one after the other.
            check_integer("learner.max_staleness", self.max_staleness, self.num_learners - 1, ", or 'auto'")

    @property
    def staleness_bound(self) -> int:
        """``max_staleness``, or what "auto" stands for."""
        return 2 * self.num_learners if self.max_staleness == "auto" else self.max_staleness

    def check(self, run: Config) -> None:
        """See :meth:`AsyncConfig.check`."""
        if run.compute.precision == "fp64":
            raise ConfigError("learner.precision='fp64': only lockstep supports it; use regime='lockstep'.")
        replay = self.replay
        if replay.n_step > run.rollout_length:
            raise ConfigError(
                f"replay.n_step={replay.n_step} is more than rollout_length={run.rollout_length}: returns span at "
                "most two slots; use a longer rollout_length or a smaller n_step."
            )
        if run.total_steps <= replay.min_size:
            raise ConfigError(
                f"replay.min_size={replay.min_size} leaves nothing to learn in a run of total_steps={run.total_steps}:"
                " use a smaller min_size or more steps."
            )
        if run.total_steps - replay.min_size < replay.update_interval:
            raise ConfigError(
                f"replay.update_interval={replay.update_interval:g} is more than the "
                f"{run.total_steps - replay.min_size} agent steps after replay.min_size: nothing would be learned; "
                "use a smaller one, or more steps."
            )
        if isinstance(run.optimiser.schedule, KlSchedule):
            raise ConfigError("learner.schedule='kl': in the replay regime use 'constant', 'linear' or points.")
        for name, value in (("compile", run.compute.compile), ("micro_batch", run.compute.micro_batch)):
            if value not in ("auto", False):
                raise ConfigError(f"learner.{name}={value!r}: not supported in the replay regime; use 'auto'.")
        self._check_sequences(run)
        for name in ("squash_actions", "scale_actions"):
            if getattr(run.model, name) is True:
                raise ConfigError(f"model.{name}=True: off-policy algorithms always act within the bounds; omit it.")
        if run.model.central_value:
            raise ConfigError("model.central_value=True: off-policy algorithms have critics of their own; use false.")
        for name, instead in (
            ("normalise_observations", "divide by known scales in a wrapper of your own (env.wrappers)"),
            ("normalise_returns", "set learner.reward_scale"),
        ):
            if value := getattr(run.model, name):
                raise ConfigError(
                    f"model.{name}={value!r}: off-policy networks have no normalisers; use false, and {instead}."
                )
        self._check_players(run)
        if run.inference.random_actions:
            raise ConfigError("inference.random_actions=True: in the replay regime use off_policy.random_steps.")

    def _check_players(self, run: Config) -> None:
        """Check that several policies, guests and past selves have one learner process, and room in the replay."""
        population, replay = run.population, self.replay
        policies = len(population.names)
        if self.num_learners > 1 and (policies > 1 or population.guests or population.snapshots):
            raise ConfigError(
                f"learner.num_learners={self.num_learners} with {policies} policies, {len(population.guests)} guests "
                f"and population.snapshots={population.snapshots}: several learners share one policy; use "
                "learner.num_learners=1, or one policy without guests and past selves."
            )
        if policies == 1:
            return
        needed = replay.min_size * policies
        if needed > replay.most_steps:
            raise ConfigError(
                f"replay.min_size={replay.min_size} with {policies} policies, each of which collects so many agent "
                f"steps before it learns, is more than replay.capacity={replay.most_steps}, which they share; use a "
                f"capacity of {needed} or more, or a smaller min_size."
            )
        if run.total_steps <= needed:
            raise ConfigError(
                f"replay.min_size={replay.min_size}, of each of {policies} policies, leaves nothing to learn in a run "
                f"of total_steps={run.total_steps}: use a smaller min_size or more steps."
            )

    def _check_sequences(self, run: Config) -> None:
        """Check that a recurrent core has sequences to learn from, and that slots can hold them."""
        replay, core, algorithm = self.replay, run.model.core, self.algorithm
        # A user's own algorithm may have its own recurrent state; this is checked when it is built.
        if not isinstance(algorithm, OwnOffPolicyConfig):
            if core != "none" and not isinstance(algorithm, DQNConfig):
                raise ConfigError(
                    f"model.core={core!r} with off_policy.algorithm={algorithm.algorithm!r}: only DQN learns from "
                    "sequences; use algorithm 'dqn', or core='none'."
                )
            if (core != "none") != replay.has_sequences:
                raise ConfigError(
                    f"model.core={core!r} with replay.sequence_length={replay.sequence_length}: a recurrent core "
                    "learns from sequences, and nothing else does; give both (core='gru', sequence_length=20), or "
                    "neither (core='none', 0)."
                )
        if not replay.has_sequences:
            return
        if replay.window > run.rollout_length:
            raise ConfigError(
                f"replay.burn_in + sequence_length + n_step - 1 = {replay.window} is more than rollout_length="
                f"{run.rollout_length}: a sequence spans at most two slots; use a longer rollout_length or shorter "
                "sequences."
            )
        if run.rollout_length % replay.stride:
            raise ConfigError(
                f"replay.sequence_stride={replay.sequence_stride!r}, that is {replay.stride} steps, does not divide "
                f"rollout_length={run.rollout_length}: sequences start at the same steps of every slot; use a divisor."
            )

    def check_ranks(self, run: Config, world_size: int) -> None:
        """See :meth:`AsyncConfig.check_ranks`."""
        population = run.population
        if len(population.names) > 1 or population.guests or population.snapshots:
            raise ConfigError(
                f"{len(population.names)} policies, {len(population.guests)} guests and population.snapshots="
                f"{population.snapshots} with {world_size} ranks: several ranks learn one policy; start one program "
                "without torchrun, or use one policy without guests and past selves."
            )
        if self.algorithm.batch_size % world_size or self.num_learners > 1:
            raise ConfigError(
                f"learner.batch_size={self.algorithm.batch_size}, learner.num_learners={self.num_learners} "
                f"with {world_size} ranks: each rank has one learner for an equal part of each batch; use a "
                f"multiple of {world_size}, and one learner."
            )

    def error_buffer(self, run: Config, rows_per_env: int, world_size: int = 1) -> float:
        """The agent steps by which collecting may be ahead or behind on each rank.

        Args:
            run: The complete configuration.
            rows_per_env: Agents of an environment.
            world_size: Ranks, each of which collects its share of the steps for each SGD step.

        Raises:
            ConfigError: With the given value both sides could wait for each other for ever.
        """
        assert run.envs_per_group != "auto"
        given, interval = self.replay.error_buffer, self.replay.update_interval / world_size
        if given == "auto":
            return run.num_envs // world_size * rows_per_env + interval
        least = least_error_buffer(update_interval=interval, group_rows=run.envs_per_group * rows_per_env)
        if given < least:
            raise ConfigError(
                f"replay.error_buffer={given}: with update_interval={interval} and groups of "
                f"{run.envs_per_group * rows_per_env} rows, collecting and learning would wait for each other for "
                f"ever; use at least {least}, or 'auto'."
            )
        return given


RegimeConfig = AsyncConfig | LockstepConfig | ReplayRegimeConfig
