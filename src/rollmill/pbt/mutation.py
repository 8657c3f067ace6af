"""Mutation of a learner's numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollmill.learning.live_numbers import rule_of
from rollmill.pbt.config import PbtConfig

# Numbers near 1: a factor on the distance from 1 changes the horizon by that factor.
NEAR_ONE = ("discount", "gae_lambda", "adam_beta1", "adam_beta2")
_NEAREST_TO_ONE = 1e-6


def factored(name: str, value: float) -> float:
    """Return the part of a number that factors multiply: its distance from 1, or all of it."""
    return 1.0 - value if name in NEAR_ONE else value


def mutated(
    values: Mapping[str, float], config: PbtConfig, random: np.random.Generator, *, rate: float | None = None
) -> dict[str, float]:
    """Return the numbers after a mutation; those that are not mutated keep their value.

    Args:
        values: Name -> value.
        config: Factor, limits and mutation rate.
        random: Draws which numbers are mutated, by what and in which direction.
        rate: Probability of a mutation; None is the configured one.
    """
    rate = config.mutation_rate if rate is None else rate
    low, high = config.factor if isinstance(config.factor, tuple) else (config.factor, config.factor)
    found = {}
    for name, value in values.items():
        # All are drawn, so that the numbers of one do not depend on whether another one is mutated.
        draw, factor, direction = random.random(), random.uniform(low, high), random.random()
        found[name] = value if draw >= rate else _scaled(name, value, factor if direction < 0.5 else 1 / factor, config)
    return found


def _scaled(name: str, value: float, factor: float, config: PbtConfig) -> float:
    changed = factored(name, value) * factor
    if name in NEAR_ONE:
        changed = 1.0 - min(1.0, max(_NEAREST_TO_ONE, changed))
    low, high = config.limits_of(name)
    changed = min(max(changed, low), high)
    # A range of ratios, for example, may have an upper end that no limit was given for.
    return changed if rule_of(name).holds(changed) else value
