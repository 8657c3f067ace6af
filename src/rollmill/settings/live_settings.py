"""Settings of a learner that may change during a run, with their values at its start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.learning.config import Adam
from rollmill.learning.live_numbers import REWARD_WEIGHT

MOST_SYMMETRIC_CLIP = 0.99
"""1 - clip_range is the lower end of the ratio, and must be above 0."""

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


def upper_end(config: Config, number: str) -> float:
    """Return the largest value that a number may have in a policy's algorithm; infinity without one."""
    algorithm = config.algorithm
    if number == "clip_range" and isinstance(algorithm, OnPolicyConfig) and algorithm.clip_kind == "symmetric":
        return MOST_SYMMETRIC_CLIP
    return math.inf
