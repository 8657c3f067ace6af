"""The configuration of on-policy algorithms. Imports no torch: the command line reads it before torch is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollmill.algorithms.config import AlgorithmConfig
from rollmill.settings.fields import setting
from rollmill.settings.value_checks import ABOVE_ZERO, ANY_NUMBER, AT_LEAST_ZERO, NAME, UNIT, UNIT_BELOW_ONE, integer

AdvantageKind = Literal["gae", "vtrace"]
ClipKind = Literal["reciprocal", "symmetric", "none"]
PPO = "ppo"
"""The built-in algorithm."""
CoefficientSchedule = Literal["constant", "linear"]


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(AlgorithmConfig):
    """What an on-policy algorithm learns from trajectories.

    Defaults are Sample Factory's: its paper's table A.5 (Petrenko et al. 2020, arXiv:2006.11751) where that gives a
    value, else the default of its version 2.1.1. An attribute with another default gives the reason.

    Attributes:
        algorithm: ``"ppo"``, which is IMPALA with ``advantage="vtrace"`` and ``clip_kind="none"``, or a name given to
            :func:`rollmill.algorithms.registry.register_algorithm`.
        minibatches: Parts of equal size that a batch is split into; each gives one SGD step.
        epochs: Passes over each batch. ``"auto"`` is 8 for observations without pictures and 4 with pictures, which
            cost more to learn from (docs/journal/); ``config.json`` records the number.
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
        entropy_floor: Share of the entropy of the first batch (of its standard deviation, for real numbers) that a
            policy keeps while the last 100 episodes all had the worst return of the run: the entropy bonus grows, to at
            most 0.3, until it does (:mod:`rollmill.learning.entropy_guard`). 0 switches this off, and so do
            ``reward_weights``, because returns do not include the weighted terms.
        normalise_advantages: Whether a minibatch's advantages get mean 0 and standard deviation 1.
        entropy_schedule: Of ``entropy_coef``: ``"constant"`` or ``"linear"`` to 0, as ``schedule``.
        clip_schedule: Of ``clip_range``: ``"constant"`` or ``"linear"`` to 0, as ``schedule``.
        reward_weights: Name -> weight of the terms that the environment gives in ``info["reward_terms"]``. Their
            weighted sum is added to the reward, before ``reward_scale`` and ``reward_clip``; terms without a weight do
            not count, and the returns of episodes are those of the environment's rewards alone.
    """

    algorithm: str = setting(PPO, NAME)

    minibatches: int = setting(1, integer(1))
    epochs: int | Literal["auto"] = setting(1, integer(1))

    advantage: AdvantageKind = "gae"
    gae_lambda: float = setting(0.95, UNIT)
    vtrace_rho: float = setting(1.0, ABOVE_ZERO)
    vtrace_c: float = setting(1.0, ABOVE_ZERO)
    vtrace_lambda: float = setting(1.0, UNIT)
    clip_range: float = setting(0.1, ABOVE_ZERO, "(clip_kind='none' switches clipping off)")
    clip_kind: ClipKind = "reciprocal"
    value_clip: float | None = setting(None, ABOVE_ZERO, "to switch it off")
    value_coef: float = setting(0.5, AT_LEAST_ZERO)
    entropy_coef: float | Literal["auto"] = setting(0.003, AT_LEAST_ZERO)
    entropy_floor: float = setting(0.5, UNIT_BELOW_ONE, "(0 switches it off)")
    normalise_advantages: bool = True
    entropy_schedule: CoefficientSchedule = "constant"
    clip_schedule: CoefficientSchedule = "constant"
    reward_weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant.

        Raises:
            ValueError: A value is out of range, or two of them contradict each other; the message names the setting,
                the value, what is allowed and what to do.
        """
        super().__post_init__()
        if self.batch_size % self.minibatches:
            fitting = -(-self.batch_size // self.minibatches) * self.minibatches
            raise ValueError(
                f"learner.batch_size={self.batch_size} is not a multiple of learner.minibatches={self.minibatches}: "
                f"minibatches have equal sizes; use batch_size={fitting}"
            )
        for name, weight in self.reward_weights.items():
            ANY_NUMBER.check(f"learner.reward_weights.{name}", weight)
        if self.clip_kind == "symmetric" and self.clip_range >= 1:
            raise ValueError(
                f"learner.clip_range={self.clip_range} with learner.clip_kind='symmetric': 1 - clip_range must be "
                f"above 0; give less than 1, or clip_kind='reciprocal'"
            )

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


def auto_epochs(*, has_images: bool) -> int:
    """What ``epochs="auto"`` stands for.

    Stable-Baselines3's PPO makes 10 passes over any observations. Ours are fewer, because minibatches are larger and a
    learner that falls behind makes samples old; measured on vectors only (docs/journal/2026-11.md).
    """
    return 4 if has_images else 8
