"""The learner's configuration. Imports no torch: the command line reads it before torch is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.learning.schedule_points import SYNTAX, parse_points
from rollmill.models.device import check_device_name
from rollmill.settings.value_checks import (
    above_zero,
    at_least_zero,
    check_choice,
    check_integer,
    check_number,
    unit_below_one,
)

OptimiserKind = Literal["adam", "adamw", "rmsprop"]
PrecisionChoice = Literal["auto", "fp32", "bf16", "fp64"]
ScheduleKind = Literal["constant", "linear", "kl"]


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(OnPolicyConfig):
    """How a learner turns batches into SGD steps.

    Defaults are Sample Factory's: its paper's table A.5 (Petrenko et al. 2020, arXiv:2006.11751) where that gives a
    value, else the default of its version 2.1.1. Where ours differ, the attribute says so.

    Attributes:
        batch_size: Samples (agent steps) of one batch, all its minibatches together. In the replay regime transitions,
            or sequences where those are learned from.
        minibatches: Parts of equal size that a batch is split into; each gives one SGD step.
        epochs: Passes over each batch. ``"auto"`` is 8 for observations without pictures and 4 with pictures, which
            cost more to learn from (docs/journal/); ``config.json`` records the number.
        max_grad_norm: Largest L2 norm of the gradient; ``None`` does not clip.
        optimiser: ``"adam"``, ``"adamw"`` (decoupled weight decay) or ``"rmsprop"`` (epsilon outside the
            root, second moment from 0).
        learning_rate: The initial one.
        adam_betas: Decay of Adam's first and second moment.
        adam_eps: Adam's epsilon.
        weight_decay: Coefficient of the L2 penalty (Adam, RMSProp) or of the decay (AdamW).
        rmsprop_alpha: Decay of RMSProp's second moment (0.99: IMPALA, Cleanba).
        rmsprop_eps: RMSProp's epsilon (0.01: Cleanba, whose losses are sums; with our means it needs translating).
        schedule: Of the learning rate: ``"constant"``; ``"linear"`` to 0 at the end of the run; ``"kl"``, adapted after
            each batch to hold the KL divergence near ``kl_target``; or points, such as ``0:3e-4,1e6:1e-4,5e6:0``: agent
            steps and the learning rate there, with straight lines between. ``"linear"`` ends at ``total_steps``, or at
            ``max_seconds`` where that comes first (in lockstep and with several ranks at ``total_steps`` alone, so that
            the run depends on no clock). Points replace ``learning_rate``; of off-policy algorithms, other rates keep
            their ratio to it.
        kl_target: Nats, for ``schedule="kl"``.
        min_learning_rate: Lower bound for ``schedule="kl"``.
        max_learning_rate: Upper bound for ``schedule="kl"``.
        device: ``"auto"`` (the first CUDA device, else CPU) or a torch device such as ``"cpu"`` or ``"cuda:1"``.
        precision: Of the forward and backward pass; ``"auto"`` measures, or in the replay regime goes by the device.
            Parameters are fp32 with either. On a GPU, PyTorch lets fp32 convolutions and recurrent layers compute in
            TF32. ``"fp64"``: parameters, too, in all processes; slow, for finding out what rounding does.
        micro_batch: Samples, at most, of one forward and backward pass, whose gradients are summed up to a minibatch's;
            ``"auto"`` measures. It changes speed and memory, not the loss; with one exception: V-trace's advantages are
            known only in the pass itself, so a number given here lets the previous minibatch's moments normalise them.
            ``"auto"`` has the encoder alone work in micro-batches, as long as a minibatch's activations fit into 1 GiB
            (8 GiB on a GPU).
        threads: Torch threads of the learner process. More than 1 only pays where it owns its cores.
        compile: Whether torch.compile is used, for networks without a core that learn by GAE. ``"auto"`` does without:
            on a CPU it saves 7 % of a small network's update and takes 14 s and a C++ compiler to start; on a GPU it
            has not been measured.
        channels_last: Memory format of convolutions. ``"auto"`` measures; in lockstep, and in replay on a GPU or
            with several ranks, it is channels_last.
        step_timeout_s: An SGD step that takes longer is taken for hung and ends the run; so is a learner that shows no
            sign of life for as long (at least five seconds while it waits).
        slow_down_s: Sleep for so many seconds in each update: for studies of what a slow learner changes.
    """

    batch_size: int = 1024
    minibatches: int = 1
    epochs: int | Literal["auto"] = 1

    max_grad_norm: float | None = 4.0

    optimiser: OptimiserKind = "adam"
    learning_rate: float = 1e-4
    adam_betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-6
    weight_decay: float = 0.0
    rmsprop_alpha: float = 0.99
    rmsprop_eps: float = 0.01

    schedule: ScheduleKind | str = "constant"
    kl_target: float = 0.008
    min_learning_rate: float = 1e-6
    max_learning_rate: float = 1e-2

    device: str = "auto"
    precision: PrecisionChoice = "auto"
    micro_batch: int | Literal["auto"] = "auto"
    threads: int = 1
    compile: bool | Literal["auto"] = "auto"
    channels_last: bool | Literal["auto"] = "auto"
    step_timeout_s: float = 900.0
    slow_down_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuses values that cannot be meant.

        Raises:
            ValueError: A value is out of range, or two of them contradict each other; the message names the field, the
                value, what is allowed and what to do.
        """
        super().__post_init__()
        self._check_choices()
        self._check_numbers()
        self._check_combinations()

    @property
    def minibatch_size(self) -> int:
        """Samples of one SGD step."""
        return self.batch_size // self.minibatches

    @property
    def num_epochs(self) -> int:
        """``epochs``, of a run that has seen its environment."""
        assert self.epochs != "auto", "settled when the environment is known"
        return self.epochs

    @property
    def sgd_steps_per_batch(self) -> int:
        """SGD steps, and so policy versions, that one batch gives."""
        return self.minibatches * self.num_epochs

    def _check_choices(self) -> None:
        choices: dict[str, tuple[Any, ...]] = {
            "optimiser": get_args(OptimiserKind),
            "precision": get_args(PrecisionChoice),
            "compile": ("auto", True, False),
            "channels_last": ("auto", True, False),
        }
        for name, allowed in choices.items():
            check_choice(f"learner.{name}", getattr(self, name), allowed)
        if self.schedule not in get_args(ScheduleKind):
            try:
                parse_points(self.schedule)
            except ValueError as error:
                kinds = ", ".join(map(repr, get_args(ScheduleKind)))
                raise ValueError(f"learner.schedule={self.schedule!r}: {error}; choose {kinds}, or {SYNTAX}") from None

    def _check_numbers(self) -> None:
        for name in ("batch_size", "minibatches", "threads"):
            check_integer(f"learner.{name}", getattr(self, name), 1)
        if self.epochs != "auto":
            check_integer("learner.epochs", self.epochs, 1, ' or "auto"')
        if self.micro_batch != "auto":
            check_integer("learner.micro_batch", self.micro_batch, 1, ' or "auto"')

        rules: list[tuple[str, Callable[[float], bool], str]] = [
            ("learning_rate", above_zero, "above 0"),
            ("adam_eps", above_zero, "above 0"),
            ("weight_decay", at_least_zero, "0 or more"),
            ("rmsprop_alpha", unit_below_one, "in [0, 1)"),
            ("rmsprop_eps", above_zero, "above 0"),
            ("kl_target", above_zero, "above 0"),
            ("min_learning_rate", above_zero, "above 0"),
            ("max_learning_rate", above_zero, "above 0"),
            ("step_timeout_s", above_zero, "above 0 (seconds)"),
            ("slow_down_s", at_least_zero, "0 or more (seconds)"),
        ]
        for name, rule, allowed in rules:
            check_number(f"learner.{name}", getattr(self, name), rule, allowed)
        if self.max_grad_norm is not None:
            check_number("learner.max_grad_norm", self.max_grad_norm, above_zero, "above 0, or None to switch it off")
        if not isinstance(self.adam_betas, tuple) or len(self.adam_betas) != 2:
            raise ValueError(f"learner.adam_betas={self.adam_betas!r}: give two numbers in [0, 1), as (0.9, 0.999)")
        for beta in self.adam_betas:
            check_number("learner.adam_betas", beta, unit_below_one, "two numbers in [0, 1)")
        check_device_name("learner.device", self.device)

    def _check_combinations(self) -> None:
        if self.batch_size % self.minibatches:
            raise ValueError(
                f"learner.batch_size={self.batch_size} is not a multiple of learner.minibatches={self.minibatches}: "
                f"minibatches have equal sizes; use batch_size={_next_multiple(self.batch_size, self.minibatches)}"
            )
        if self.micro_batch != "auto" and self.micro_batch > self.minibatch_size:
            raise ValueError(
                f"learner.micro_batch={self.micro_batch} is more than the minibatch of {self.minibatch_size} samples "
                f"(batch_size / minibatches): give at most that, or 'auto'"
            )
        if not self.min_learning_rate <= self.max_learning_rate:
            raise ValueError(
                f"learner.min_learning_rate={self.min_learning_rate} is above "
                f"learner.max_learning_rate={self.max_learning_rate}: swap or change them"
            )
        if self.schedule == "kl" and not self.min_learning_rate <= self.learning_rate <= self.max_learning_rate:
            raise ValueError(
                f"learner.learning_rate={self.learning_rate} is outside learner.min_learning_rate="
                f"{self.min_learning_rate} .. learner.max_learning_rate={self.max_learning_rate}, which schedule='kl' "
                f"keeps it in: change one of the three"
            )
        if self.compile is True and self.advantage == "vtrace":
            raise ValueError(
                "learner.compile=True with learner.advantage='vtrace': only learning sample by sample is compiled; use "
                "advantage='gae', or compile='auto'"
            )


def auto_epochs(*, has_images: bool) -> int:
    """What ``epochs="auto"`` stands for.

    Stable-Baselines3's PPO makes 10 passes over any observations. Ours are fewer, because minibatches are larger and a
    learner that falls behind makes samples old; measured on vectors only (docs/journal/2026-11.md).
    """
    return 4 if has_images else 8


def _next_multiple(value: int, of: int) -> int:
    return -(-value // of) * of
