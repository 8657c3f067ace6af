"""The configuration of on-policy algorithms. Imports no torch: the command line reads it before torch is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rollmill.settings.value_checks import (
    above_zero,
    at_least_zero,
    check_choice,
    check_number,
    unit,
    unit_below_one,
)

AdvantageKind = Literal["gae", "vtrace"]
ClipKind = Literal["reciprocal", "symmetric", "none"]
CoefficientSchedule = Literal["constant", "linear"]


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig:
    """What an on-policy algorithm learns from trajectories.

    Defaults are Sample Factory's: its paper's table A.5 (Petrenko et al. 2020, arXiv:2006.11751) where that gives a
    value, else the default of its version 2.1.1. Where ours differ, the attribute says so.

    Attributes:
        algorithm: ``"ppo"``, which is IMPALA with ``advantage="vtrace"`` and ``clip_kind="none"``, or a name given to
            :func:`rollmill.algorithms.registry.register_algorithm`.
        discount: Gamma, for each agent step (not frame).
        advantage: Estimator: ``"gae"`` (Schulman et al. 2016) or ``"vtrace"`` (Espeholt et al. 2018).
        gae_lambda: Lambda of GAE.
        vtrace_rho: Clipping of the importance weight of the temporal difference, rho-bar.
        vtrace_c: Clipping of the trace's importance weight, c-bar.
        vtrace_lambda: Lambda that multiplies c (Espeholt et al. 2018, remark 2); 1 is the paper's V-trace.
        clip_range: Epsilon of the PPO ratio.
        clip_kind: ``"reciprocal"`` keeps the ratio in [1/(1+eps), 1+eps] (Sample Factory), ``"symmetric"`` in
            [1-eps, 1+eps] (Schulman et al. 2017); ``"none"`` is the plain policy gradient.
        value_clip: Largest change of a value prediction that the value loss rewards, in units of the value head;
            ``None`` switches it off (Sample Factory clips at 1.0; off here, as Andrychowicz et al. 2021 find it
            useless or harmful).
        value_coef: Weight of the value loss.
        entropy_coef: Weight of the entropy bonus. ``"auto"`` is 0.003 for actions with real numbers and 0.01 for others
            (docs/journal/); ``config.json`` records the number.
        entropy_floor: Share of the largest entropy that a policy keeps while the last 100 episodes all had the worst
            return of the run; the entropy bonus grows until it does (:mod:`rollmill.learning.entropy_guard`). 0
            switches this off.
        normalise_advantages: Whether a minibatch's advantages get mean 0 and standard deviation 1.
        entropy_schedule: Of ``entropy_coef``: ``"constant"`` or ``"linear"`` to 0, as ``schedule``.
        clip_schedule: Of ``clip_range``: ``"constant"`` or ``"linear"`` to 0, as ``schedule``.
        reward_scale: Factor on rewards, applied before clipping.
        reward_clip: Scaled rewards are clipped to [-reward_clip, reward_clip]; ``None`` does not
            (Sample Factory clips at 1000).
    """

    algorithm: str = "ppo"

    discount: float = 0.99
    advantage: AdvantageKind = "gae"
    gae_lambda: float = 0.95
    vtrace_rho: float = 1.0
    vtrace_c: float = 1.0
    vtrace_lambda: float = 1.0
    clip_range: float = 0.1
    clip_kind: ClipKind = "reciprocal"
    value_clip: float | None = None
    value_coef: float = 0.5
    entropy_coef: float | Literal["auto"] = 0.003
    entropy_floor: float = 0.5
    normalise_advantages: bool = True
    entropy_schedule: CoefficientSchedule = "constant"
    clip_schedule: CoefficientSchedule = "constant"
    reward_scale: float = 1.0
    reward_clip: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant.

        Raises:
            ValueError: A value is out of range; the message names the field, the value, what is allowed and what to do.
        """
        if not self.algorithm or not isinstance(self.algorithm, str):
            raise ValueError(f"learner.algorithm={self.algorithm!r}: give 'ppo' or a registered name")
        choices: dict[str, tuple[Any, ...]] = {
            "advantage": get_args(AdvantageKind),
            "clip_kind": get_args(ClipKind),
            "entropy_schedule": get_args(CoefficientSchedule),
            "clip_schedule": get_args(CoefficientSchedule),
            "normalise_advantages": (True, False),
        }
        for name, allowed in choices.items():
            check_choice(f"learner.{name}", getattr(self, name), allowed)
        if self.entropy_coef != "auto":
            check_number("learner.entropy_coef", self.entropy_coef, at_least_zero, '0 or more, or "auto"')
        rules: list[tuple[str, Callable[[float], bool], str]] = [
            ("discount", unit, "in [0, 1]"),
            ("gae_lambda", unit, "in [0, 1]"),
            ("vtrace_lambda", unit, "in [0, 1]"),
            ("vtrace_rho", above_zero, "above 0"),
            ("vtrace_c", above_zero, "above 0"),
            ("clip_range", above_zero, "above 0 (clip_kind='none' switches clipping off)"),
            ("value_coef", at_least_zero, "0 or more"),
            ("entropy_floor", unit_below_one, "in [0, 1); 0 switches it off"),
            ("reward_scale", above_zero, "above 0"),
        ]
        for name, rule, meaning in rules:
            check_number(f"learner.{name}", getattr(self, name), rule, meaning)
        for name in ("value_clip", "reward_clip"):
            value = getattr(self, name)
            if value is not None:
                check_number(f"learner.{name}", value, above_zero, "above 0, or None to switch it off")
        if self.clip_kind == "symmetric" and self.clip_range >= 1:
            raise ValueError(
                f"learner.clip_range={self.clip_range} with learner.clip_kind='symmetric': 1 - clip_range must be "
                f"above 0; give less than 1, or clip_kind='reciprocal'"
            )

    @property
    def entropy_weight(self) -> float:
        """``entropy_coef``, of a run that has seen its environment."""
        assert self.entropy_coef != "auto", "settled when the environment is known"
        return self.entropy_coef


def auto_entropy_coef(*, has_real_numbers: bool) -> float:
    """What ``entropy_coef="auto"`` stands for.

    0.01 is usual for choices (Mnih et al. 2016; Cleanba). With it a Gaussian grows so wide, where clipped actions cost
    nothing, that its mean alone acts badly: BipedalWalker's sampled actions earned 165, their means -49. Without any
    bonus, MountainCarContinuous often learns to stand still (docs/journal/2026-11.md).
    """
    return 0.003 if has_real_numbers else 0.01
