"""Settings of population-based training. Imports no torch: the command line reads it before torch is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollmill.learning.live_numbers import NUMBERS, REWARD_WEIGHT, rule_of
from rollmill.settings.fields import setting
from rollmill.settings.value_checks import (
    AT_LEAST_ZERO,
    NAME,
    UNIT,
    Checked,
    ConfigError,
    Rule,
    integer,
    number,
)

ReplacementRule = Literal["truncation", "half"]
AUTO_MUTATED = ("learning_rate", "entropy_coef", "adam_beta1")
"""What the paper mutates of a learner (section A.3.1)."""

SWITCHES: Mapping[str, tuple[str, ...]] = {"dmlab": ("clip",)}
"""Family of environments -> reward terms that a weight of 1 switches on and 0 off, and that no other weight suits."""


def _is_factor(value: Any) -> bool:
    return _ABOVE_ONE.holds(value) or (
        isinstance(value, tuple) and len(value) == 2 and all(map(_ABOVE_ONE.holds, value)) and value[0] <= value[1]
    )


_ABOVE_ONE = number(lambda value: value > 1, "above 1")
_FACTOR = Rule(_is_factor, "a number above 1, or a range of such numbers, as 1.1,1.5")
_HALF = number(lambda value: 0 < value <= 0.5, "above 0 and at most 0.5")


@dataclass(frozen=True, kw_only=True)
class PbtConfig(Checked, section="pbt"):
    """Population-based training (Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846), as in Sample Factory.

    Mutation rate, factor, shares and the relative gap are those of Sample Factory's paper (Petrenko et al. 2020,
    https://arxiv.org/abs/2006.11751, sections 4.3 and A.3.1). Its version 2.1.1 draws the factor from a range, rounds
    the shares up instead of to the nearest number, and never mutates the first policy.

    Attributes:
        objective: What is compared, larger being better: "return", the mean return; "true_objective", the mean of what
            the environment gives in ``info["true_objective"]`` at the end of an episode; "win_rate", the mean points
            in matches against other players; "rating"; "score", of several tasks the mean human-normalised score,
            capped at 1 for each task; or a name given to ``register_objective``. "auto" is "rating" for environments
            with several agents, "score" for several tasks that have such scores, and "return" for others.
        window: Newest episodes of a policy (matches, for "win_rate" and "rating") that are compared; of several tasks
            each has its share, of at least 5. A policy that has fewer since it was last replaced takes no part.
        every: Agent steps of a policy between two of its events. "auto" is a twentieth of its part of the run.
        start: Agent steps of a policy before its first event. "auto" is ``every``.
        rule: Which policies are replaced: with "truncation" the worst ``share``, by a random one of the best ``share``;
            with "half" those whose objective is lower than the best one's by more than half of its absolute value, by
            the best.
        share: Share of the policies that are the worst ones, and of those that are the best.
        gap: A policy is replaced only if the other's objective is larger by more than this.
        relative_gap: Likewise, by more than this share of the other's absolute objective.
        mutate: Numbers that are mutated, of those that ``run.set`` takes. For ``discount``, ``gae_lambda`` and Adam's
            betas the distance from 1 is mutated. "auto" is those of the paper that the algorithm and the optimiser have
            and that factors change in any policy (not a weight of 0): ``learning_rate``, ``entropy_coef``,
            ``adam_beta1`` and the weights of reward terms, which are called ``reward_weight.NAME``, without terms that
            are switches (DeepMind Lab's ``clip``).
        explore: "mutate": random factors. "pb2": a policy that is replaced gets the numbers for which a bandit predicts
            the largest gain, and others keep theirs (:mod:`rollmill.pbt.bandit`); for populations of fewer than ten.
        mutation_rate: Probability with which a number is mutated in an event.
        factor: A mutated number is multiplied or divided by it, or by a random factor of a range "1.1,1.5".
        limits: Smallest and largest value of a mutated number: ``pbt.limits.learning_rate=1e-5,1e-2``. Without, "pb2"
            looks between a tenth of the lowest and ten times the highest value (or distance from 1) of the policies at
            the start.
        vary: Whether all policies but the first begin with mutated numbers, each with probability 1.
    """

    objective: str = setting("auto", NAME)
    window: int = setting(100, integer(1), "(episodes)")
    every: int | Literal["auto"] = setting("auto", integer(1), "(agent steps)")
    start: int | Literal["auto"] = setting("auto", integer(0), "(agent steps)")
    rule: ReplacementRule = "truncation"
    share: float = setting(0.3, _HALF)
    gap: float = setting(0.0, AT_LEAST_ZERO)
    relative_gap: float = setting(0.1, AT_LEAST_ZERO)
    mutate: tuple[str, ...] | Literal["auto"] = "auto"
    explore: Literal["mutate", "pb2"] = "mutate"
    mutation_rate: float = setting(0.15, UNIT)
    factor: float | tuple[float, float] = setting(1.2, _FACTOR)
    limits: Mapping[str, object] = field(default_factory=dict)
    vary: bool = True

    def __post_init__(self) -> None:
        """Check the names of numbers and their limits, too."""
        super().__post_init__()
        names = () if self.mutate == "auto" else self.mutate
        if len(set(names)) < len(names):
            raise ConfigError(f"pbt.mutate={','.join(names)}: name each number once.")
        for setting_name, given in (("pbt.mutate", names), ("pbt.limits", tuple(self.limits))):
            for name in given:
                if name not in NUMBERS and not name.startswith(REWARD_WEIGHT):
                    raise ConfigError(
                        f"{setting_name} has {name!r}: give names among {', '.join(NUMBERS)} and {REWARD_WEIGHT}NAME."
                    )
        for name in self.limits:
            self.limits_of(name)

    def limits_of(self, name: str) -> tuple[float, float]:
        """Return the smallest and largest value of a number, which may be infinite.

        Raises:
            ConfigError: They are not two numbers that the setting may have.
        """
        given = self.limits.get(name)
        if given is None:
            return float("-inf"), float("inf")
        parts = given.split(",") if isinstance(given, str) else given
        try:
            if not isinstance(parts, (list, tuple)):
                raise TypeError
            low, high = map(float, parts)
        except (TypeError, ValueError):
            raise ConfigError(
                f"pbt.limits.{name}={given!r}: give the smallest and the largest value: 1e-5,1e-2."
            ) from None
        rule = rule_of(name)
        if not (rule.holds(low) and rule.holds(high) and low <= high):
            raise ConfigError(
                f"pbt.limits.{name}={given!r}: give the smallest and then the largest value, each {rule.text}."
            )
        return low, high
