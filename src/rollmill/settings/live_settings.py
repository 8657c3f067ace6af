"""Settings of a learner that may change during a run, with their values at its start."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.learning.config import Adam
from rollmill.learning.live_numbers import REWARD_WEIGHT

MOST_SYMMETRIC_CLIP = 0.99
"""1 - clip_range is the lower end of the ratio, and must be above 0."""

SCHEDULES = {"entropy_coef": "entropy_schedule", "clip_range": "clip_schedule"}
"""Number -> the setting of its schedule, of those that the algorithm has."""

if TYPE_CHECKING:
    from rollmill.settings.config import Config


def live_numbers(config: Config) -> dict[str, float | None]:
    """Return name -> value at the start of a policy's numbers that ``run.set`` takes; None is a number yet unknown.

    In the replay regime the discount is not among them: the replay's workers sum returns by it.
    """
    algorithm, optimiser = config.algorithm, config.optimiser
    found: dict[str, float | None] = {"learning_rate": optimiser.learning_rate}
    if isinstance(algorithm, OnPolicyConfig):
        found["entropy_coef"] = None if algorithm.entropy_coef == "auto" else algorithm.entropy_coef
        if algorithm.clip_kind != "none":
            found["clip_range"] = algorithm.clip_range
        found |= {"value_coef": algorithm.value_coef, "discount": algorithm.discount}
        if algorithm.advantage == "gae":
            found["gae_lambda"] = algorithm.gae_lambda
        found |= {f"{REWARD_WEIGHT}{name}": weight for name, weight in algorithm.reward_weights.items()}
    found |= {"reward_scale": algorithm.reward_scale, "max_grad_norm": optimiser.max_grad_norm}
    if isinstance(optimiser.method, Adam):
        found["adam_beta1"], found["adam_beta2"] = optimiser.method.betas
    return found


def settings_of_numbers(config: Config, mutated: Collection[str] = ()) -> dict[str, str]:
    """Return name -> all that the settings say about a number, as text that is only to be compared.

    A number that was set during a run holds after a resume as long as this is the same.

    Args:
        config: The policy's settings.
        mutated: Numbers that population-based training changes.
    """
    schedules = {number: getattr(config.algorithm, key, None) for number, key in SCHEDULES.items()}
    schedules["learning_rate"] = asdict(config.optimiser.schedule)
    return {
        name: f"{value!r}, schedule {schedules.get(name)!r}{', mutated' if name in mutated else ''}"
        for name, value in live_numbers(config).items()
    }


def upper_end(config: Config, number: str) -> float:
    """Return the largest value that a number may have in a policy's algorithm; infinity without one."""
    algorithm = config.algorithm
    if number == "clip_range" and isinstance(algorithm, OnPolicyConfig) and algorithm.clip_kind == "symmetric":
        return MOST_SYMMETRIC_CLIP
    return math.inf
