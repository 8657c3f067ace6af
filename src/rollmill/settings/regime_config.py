"""The regimes of a run, each with the settings that it alone has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rollmill.algorithms.off_policy_config import AnyOffPolicyConfig, DQNConfig
from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.settings.fields import setting, tag
from rollmill.settings.value_checks import NAME, Checked, check_integer, integer
from rollmill.storage.replay_config import ReplayConfig


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
            check_integer("learner.max_staleness", self.max_staleness, self.num_learners - 1, ' or "auto"')

    @property
    def staleness_bound(self) -> int:
        """``max_staleness``, or what "auto" stands for."""
        return 2 * self.num_learners if self.max_staleness == "auto" else self.max_staleness


RegimeConfig = AsyncConfig | LockstepConfig | ReplayRegimeConfig
