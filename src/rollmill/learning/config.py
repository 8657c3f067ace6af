"""The learner's configuration. Imports no torch: the command line reads it before torch is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rollmill.learning.schedule_points import SYNTAX, parse_points
from rollmill.models.device import check_device_name
from rollmill.settings.fields import setting, tag
from rollmill.settings.value_checks import ABOVE_ZERO, AT_LEAST_ZERO, UNIT_BELOW_ONE, Checked, Rule, integer

PrecisionChoice = Literal["auto", "fp32", "bf16", "fp64"]


def _are_betas(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(UNIT_BELOW_ONE.holds, value))


@dataclass(frozen=True, kw_only=True)
class Adam(Checked, section="learner"):
    """Adam, or AdamW.

    Attributes:
        kind: ``"adam"``, or ``"adamw"``, whose weight decay is decoupled.
        betas: Decay of the first and second moment.
        eps: Epsilon.
    """

    kind: Literal["adam", "adamw"] = tag("adam", key="learner.optimiser")
    betas: tuple[float, float] = setting(
        (0.9, 0.999), Rule(_are_betas, "two numbers in [0, 1), as (0.9, 0.999)"), key="learner.adam_betas"
    )
    eps: float = setting(1e-6, ABOVE_ZERO, key="learner.adam_eps")


@dataclass(frozen=True, kw_only=True)
class RMSprop(Checked, section="learner"):
    """RMSProp with epsilon outside the root, and the second moment from 0.

    Attributes:
        alpha: Decay of the second moment (0.99: IMPALA, Cleanba).
        eps: Epsilon (0.01: Cleanba, whose losses are sums; with our means it needs translating).
    """

    kind: Literal["rmsprop"] = tag("rmsprop", key="learner.optimiser")
    alpha: float = setting(0.99, UNIT_BELOW_ONE, key="learner.rmsprop_alpha")
    eps: float = setting(0.01, ABOVE_ZERO, key="learner.rmsprop_eps")


@dataclass(frozen=True, kw_only=True)
class FixedSchedule(Checked, section="learner"):
    """A learning rate that depends on the run's progress alone.

    Attributes:
        name: See ``OptimiserConfig.schedule``.
    """

    name: Literal["constant", "linear"] | str = tag("constant", key="learner.schedule")

    def __post_init__(self) -> None:
        """Refuse what is no schedule.

        Raises:
            ValueError: The name is unknown and does not give points.
        """
        super().__post_init__()
        try:
            _ = self.points
        except ValueError as error:
            raise ValueError(
                f"learner.schedule={self.name!r}: {error}; choose 'constant', 'linear', 'kl', or {SYNTAX}"
            ) from None

    @property
    def points(self) -> tuple[tuple[int, float], ...]:
        """Agent steps and the learning rate there; empty for a schedule with a name."""
        return () if self.name in ("constant", "linear") else parse_points(self.name)


@dataclass(frozen=True, kw_only=True)
class KlSchedule(Checked, section="learner"):
    """A learning rate that is adapted after each batch, to hold the KL divergence near a target.

    Attributes:
        kl_target: Nats.
        min_learning_rate: Lower bound.
        max_learning_rate: Upper bound.
    """

    name: Literal["kl"] = tag("kl", key="learner.schedule")
    kl_target: float = setting(0.008, ABOVE_ZERO)
    min_learning_rate: float = setting(1e-6, ABOVE_ZERO)
    max_learning_rate: float = setting(1e-2, ABOVE_ZERO)

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant.

        Raises:
            ValueError: A value is out of range, or the bounds are the wrong way round.
        """
        super().__post_init__()
        if not self.min_learning_rate <= self.max_learning_rate:
            raise ValueError(
                f"learner.min_learning_rate={self.min_learning_rate} is above "
                f"learner.max_learning_rate={self.max_learning_rate}: swap or change them"
            )


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig(Checked, section="learner"):
    """How gradients change weights.

    Defaults are Sample Factory's: its paper's table A.5 (Petrenko et al. 2020, arXiv:2006.11751) where that gives a
    value, else the default of its version 2.1.1. An attribute with another default gives the reason.

    Attributes:
        max_grad_norm: Largest L2 norm of the gradient; ``None`` does not clip.
        method: ``"adam"``, ``"adamw"`` (decoupled weight decay) or ``"rmsprop"`` (epsilon outside the root, second
            moment from 0).
        learning_rate: The initial one.
        weight_decay: Coefficient of the L2 penalty (Adam, RMSProp) or of the decay (AdamW).
        schedule: Of the learning rate: ``"constant"``; ``"linear"`` to 0 at the end of the run; ``"kl"``, adapted after
            each batch to hold the KL divergence near ``kl_target``; or points, such as ``0:3e-4,1e6:1e-4,5e6:0``: agent
            steps and the learning rate there, with straight lines between. ``"linear"`` ends at ``total_steps``, or at
            ``max_seconds`` where that comes first (in lockstep and with several ranks at ``total_steps`` alone, so that
            the run depends on no clock). Points replace ``learning_rate``; of off-policy algorithms, other rates keep
            their ratio to it.
        freeze: Parameters that are not trained, as patterns of their names or of the modules that hold them, such as
            ``encoder`` or ``acting.encoder.*.weight``.
    """

    max_grad_norm: float | None = setting(4.0, ABOVE_ZERO, "to switch it off")

    method: Adam | RMSprop = field(default_factory=Adam)
    learning_rate: float = setting(1e-4, ABOVE_ZERO)
    weight_decay: float = setting(0.0, AT_LEAST_ZERO)

    schedule: KlSchedule | FixedSchedule = field(default_factory=FixedSchedule)
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant.

        Raises:
            ValueError: A value is out of range, or two of them contradict each other; the message names the setting,
                the value, what is allowed and what to do.
        """
        super().__post_init__()
        schedule, rate = self.schedule, self.learning_rate
        if isinstance(schedule, KlSchedule) and not schedule.min_learning_rate <= rate <= schedule.max_learning_rate:
            raise ValueError(
                f"learner.learning_rate={rate} is outside learner.min_learning_rate={schedule.min_learning_rate} .. "
                f"learner.max_learning_rate={schedule.max_learning_rate}, which schedule='kl' keeps it in: change one "
                "of the three"
            )


@dataclass(frozen=True, kw_only=True)
class ComputeConfig(Checked, section="learner"):
    """Where and how a learner computes; it changes speed and rounding, not what is learned.

    Attributes:
        device: A torch device such as ``"cpu"`` or ``"cuda:1"``, or ``"auto"``: the first CUDA device, but the CPU for
            small networks without pictures in async and lockstep, and without a GPU.
        precision: Of the forward and backward pass. ``"auto"`` measures in async, but is fp32 for small networks
            without images; in lockstep and replay it goes by network and device, so that it is the same in each run.
            Parameters are fp32 with either. On a GPU, PyTorch lets fp32 convolutions and recurrent layers compute in
            TF32. ``"fp64"``: parameters, too, in all processes; slow, for finding out what rounding does.
        micro_batch: Samples, at most, of one forward and backward pass, whose gradients are summed up to a minibatch's;
            ``"auto"`` measures in async, else it follows a rule. It changes speed and memory, not the loss; with one
            exception: V-trace's advantages are known only in the pass itself, so a number given here lets the previous
            minibatch's moments normalise them. ``"auto"`` has the encoder alone work in micro-batches, as long as a
            minibatch's activations fit into 1 GiB (8 GiB on a GPU).
        threads: Torch threads of the learner process. More than 1 only pays where it owns its cores.
        compile: Whether torch.compile is used, for networks without a core that learn by GAE. ``"auto"`` does not:
            on a CPU it saves 7 % of a small network's update and takes 14 s and a C++ compiler to start; on a GPU it
            has not been measured.
        channels_last: Memory format of convolutions. ``"auto"`` measures; in lockstep, and in replay on a GPU or
            with several ranks, it is channels_last.
        step_timeout_s: An SGD step that takes longer counts as hung and ends the run; so is a learner that shows no
            sign of life for as long (at least five seconds while it waits).
        slow_down_s: Sleep for so many seconds in each update: for studies of what a slow learner changes.
    """

    device: str = "auto"
    precision: PrecisionChoice = "auto"
    micro_batch: int | Literal["auto"] = setting("auto", integer(1))
    threads: int = setting(1, integer(1))
    compile: bool | Literal["auto"] = "auto"
    channels_last: bool | Literal["auto"] = "auto"
    step_timeout_s: float = setting(900.0, ABOVE_ZERO, "(seconds)")
    slow_down_s: float = setting(0.0, AT_LEAST_ZERO, "(seconds)")

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant.

        Raises:
            ValueError: A value is out of range; the message names the setting, the value and what is allowed.
        """
        super().__post_init__()
        check_device_name("learner.device", self.device)
