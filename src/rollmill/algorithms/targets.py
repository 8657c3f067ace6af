"""Targets of on-policy losses that do not need the current weights; computed in the loader's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.losses.gae import gae_numpy, recursion_cut_numpy


class NonFiniteSampleError(RuntimeError):
    """A valid sample contains NaN or infinity."""


class Targets(NamedTuple):
    """Targets of a whole batch; advantages and returns have the dtype of the values.

    Attributes:
        reward: float32 ``[T, N]``, scaled and clipped.
        cut: bool ``[T, N]``, see :mod:`rollmill.specs`.
        advantage: float ``[T, N]``, from GAE; None if the loss computes it.
        return_: float ``[T, N]`` in the units of the rewards, for the loss or the normaliser of returns; None if
            neither needs it.
    """

    reward: NDArray[np.float32]
    cut: NDArray[np.bool_]
    advantage: NDArray[np.floating[Any]] | None
    return_: NDArray[np.floating[Any]] | None


def targets_of(
    arrays: Mapping[str, NDArray[Any]],
    config: OnPolicyConfig,
    *,
    value_mean: float,
    value_std: float,
    trace: float | None,
) -> Targets:
    """Scale and clip rewards, and compute advantages and returns from the stored values.

    Args:
        arrays: Arrays ``[T(+1), N, ...]`` of a batch.
        config: Weights of reward terms, whose columns are in the order of their names; reward scale and clip, discount,
            lambda.
        value_mean: The critic predicts (V - value_mean) / value_std.
        value_std: See ``value_mean``.
        trace: Lambda of the recursion over time. None computes neither advantages nor returns.

    Raises:
        NonFiniteSampleError: A reward, value or log-probability of a valid sample is not finite.
    """
    valid, terminated = arrays["valid"], arrays["terminated"]
    _check_finite(arrays, valid)
    reward = arrays["reward"]
    if config.reward_weights:
        weights = [config.reward_weights[name] for name in sorted(config.reward_weights)]
        reward = reward + arrays["reward_terms"] @ np.array(weights, np.float32)
    reward = reward * np.float32(config.reward_scale)
    if config.reward_clip is not None:
        reward = np.clip(reward, -config.reward_clip, config.reward_clip)
    cut = recursion_cut_numpy(terminated, arrays["truncated"], valid)
    if trace is None:
        return Targets(reward, cut, None, None)
    inferred = arrays["value"].dtype.type  # float64 in a run of double precision
    value = arrays["value"] * inferred(value_std) + inferred(value_mean)
    advantage, return_ = gae_numpy(reward, value, terminated, cut, valid, discount=config.discount, gae_lambda=trace)
    return Targets(reward, cut, advantage, return_)


def _check_finite(arrays: Mapping[str, NDArray[Any]], valid: NDArray[np.bool_]) -> None:
    """Raise for non-finite samples before they spread through the recursion over time."""
    # What is bootstrapped from, too: the value of an episode's final observation, and of the last one of a slot.
    follows = np.zeros_like(arrays["value"], np.bool_)
    follows[1:] = valid & ~arrays["terminated"]
    for name, origin in _FINITE.items():
        array, counts = arrays[name], valid
        if name == "value":
            counts = follows
            counts[:-1] |= valid
        wrong = ~np.isfinite(array[: len(counts)]) & counts
        if wrong.any():
            step, trajectory = np.argwhere(wrong)[0]
            version = int(arrays["policy_version"][min(step, len(valid) - 1), trajectory])
            raise NonFiniteSampleError(
                f"{name} is {array[step, trajectory]} in {int(wrong.sum())} sample(s) of a batch (the first at "
                f"step {step} of trajectory {trajectory}, policy version {version}): {origin}"
            )


_FINITE = {
    "reward": "it comes from the environment; env.check_finite=true names the environment and step.",
    "value": "it comes from the critic: the weights have diverged, or an observation is not finite. Try a lower "
    "learning_rate, a smaller max_grad_norm or normalise_returns.",
    "log_prob": "it comes from the policy: the weights have diverged, or an observation is not finite. Try a lower "
    "learning_rate or a smaller max_grad_norm.",
}
