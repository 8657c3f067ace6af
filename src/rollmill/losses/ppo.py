"""Losses of PPO and plain actor-critic policy gradients, as means over valid samples.

Every loss takes ``divisor``: the number of valid samples of the *whole* minibatch (all micro-batches, all ranks). The
losses and gradients of the pieces of a minibatch therefore add up to those of the whole. ``valid`` is None where all
samples are valid: masking takes a tenth of an SGD step of a small network.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

RangeKind = Literal["reciprocal", "symmetric"]


class Surrogate(NamedTuple):
    """The policy's loss and its diagnostics, scalars; the diagnostics are detached.

    Attributes:
        loss: To be minimised.
        clip_fraction: Share of samples whose ratio is outside of the range.
        approx_kl: Estimate of KL(mu || pi): mean of ``(ratio - 1) - log ratio``, which is never negative and has little
            variance (Schulman 2020, http://joschu.net/blog/kl-approx.html, k3).
        mean_ratio: Mean of pi / mu; 1 when the data is on-policy.
    """

    loss: Tensor
    clip_fraction: Tensor
    approx_kl: Tensor
    mean_ratio: Tensor


def masked(x: Tensor, valid: Tensor | None) -> Tensor:
    """0 in place of invalid elements, which may be NaN and get a gradient of 0; ``x`` itself where all are valid."""
    return x if valid is None else torch.where(valid, x, 0.0)


def masked_mean(x: Tensor, valid: Tensor | None, divisor: Tensor | float) -> Tensor:
    """Sum of the valid elements over ``divisor``, scalar; see :func:`masked`."""
    return masked(x, valid).sum() / divisor


def ratio_bounds(clip_range: float, kind: RangeKind) -> tuple[float, float]:
    """Return the range to which the ratio pi / mu is clipped.

    Args:
        clip_range: epsilon.
        kind: ``"symmetric"`` is the paper's [1 - e, 1 + e] (Schulman et al. 2017, https://arxiv.org/abs/1707.06347,
            equation 7); ``"reciprocal"`` is Sample Factory's [1 / (1 + e), 1 + e], symmetric in log space.

    Raises:
        ValueError: Unknown kind, or an epsilon that the kind does not allow.
    """
    if kind == "reciprocal":
        if clip_range < 0.0:  # 0 is where a linear schedule ends
            raise ValueError(f"clip_range is {clip_range}; a reciprocal range needs 0 or a positive number")
        return 1.0 / (1.0 + clip_range), 1.0 + clip_range
    if kind == "symmetric":
        if not 0.0 <= clip_range < 1.0:
            raise ValueError(f"clip_range is {clip_range}; a symmetric range needs a number from 0 to less than 1")
        return 1.0 - clip_range, 1.0 + clip_range
    raise ValueError(f"the kind of clip range is {kind!r}; allowed: 'reciprocal', 'symmetric'")


def clipped_surrogate(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantage: Tensor,
    valid: Tensor | None,
    divisor: Tensor | float,
    *,
    low: Tensor | float,
    high: Tensor | float,
) -> Surrogate:
    """PPO's clipped surrogate (Schulman et al. 2017, equation 7), negated: ``-min(ratio A, clip(ratio) A)``.

    Args:
        log_prob: float32 ``[...]``, log pi(a_t | x_t), with gradient.
        behaviour_log_prob: float32 ``[...]``, log mu(a_t | x_t).
        advantage: float32 ``[...]``.
        valid: bool ``[...]``, or None.
        divisor: Number of valid samples of the whole minibatch.
        low: Lower end of the range of ratios, see :func:`ratio_bounds`.
        high: Upper end.
    """
    # The log-probability of an invalid sample may be NaN. Masking before exp keeps inf * 0 out of the gradient.
    log_ratio = masked(log_prob - behaviour_log_prob, valid)
    ratio = log_ratio.exp()
    within = ratio.clamp(low, high)  # type: ignore[arg-type]  # torch's stubs require two bounds of one type
    objective = torch.minimum(ratio * advantage, within * advantage)
    loss = -masked_mean(objective, valid, divisor)
    with torch.no_grad():
        clipped = (ratio < low) | (ratio > high)
        return Surrogate(
            loss,
            masked_mean(clipped.to(ratio.dtype), valid, divisor),
            masked_mean(ratio - 1.0 - log_ratio, valid, divisor),
            masked_mean(ratio, valid, divisor),
        )


def policy_gradient_loss(
    log_prob: Tensor, behaviour_log_prob: Tensor, advantage: Tensor, valid: Tensor | None, divisor: Tensor | float
) -> Surrogate:
    """Plain policy gradient ``-log pi(a_t | x_t) A_t`` (IMPALA section 4.2 with V-trace's weighted advantages).

    Arguments and result are those of :func:`clipped_surrogate`; nothing is clipped.
    """
    loss = -masked_mean(log_prob * masked(advantage, valid), valid, divisor)
    with torch.no_grad():
        log_ratio = masked(log_prob - behaviour_log_prob, valid)
        ratio = log_ratio.exp()
        return Surrogate(
            loss,
            torch.zeros_like(loss),
            masked_mean(ratio - 1.0 - log_ratio, valid, divisor),
            masked_mean(ratio, valid, divisor),
        )


def value_loss(
    value: Tensor,
    target: Tensor,
    valid: Tensor | None,
    divisor: Tensor | float,
    *,
    behaviour_value: Tensor | None = None,
    value_clip: float | None = None,
) -> Tensor:
    """Half the mean squared error of the value, optionally clipped, scalar.

    With clipping: the larger of the errors of V and of ``V_mu + clip(V - V_mu, -c, c)`` (Baselines' PPO; "37
    implementation details", https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/, detail 9).

    Args:
        value: float32 ``[...]``, V(x_t), with gradient.
        target: float32 ``[...]``, in the units of ``value``.
        valid: bool ``[...]``, or None.
        divisor: Number of valid samples of the whole minibatch.
        behaviour_value: float32 ``[...]``, V(x_t) of the behaviour policy; required for clipping.
        value_clip: c; None disables clipping.

    Raises:
        ValueError: ``value_clip`` without ``behaviour_value``, or not positive.
    """
    # Mask before squaring: a NaN target would turn the zero gradient of an invalid sample into NaN.
    error = masked(value - target, valid).square()
    if value_clip is not None:
        if behaviour_value is None or value_clip <= 0.0:
            given = "no behaviour_value" if behaviour_value is None else "behaviour_value"
            raise ValueError(
                f"value_clip is {value_clip} with {given}; give a positive clip and behaviour_value, or value_clip=None"
            )
        near = behaviour_value + (value - behaviour_value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, masked(near - target, valid).square())
    return 0.5 * masked_mean(error, valid, divisor)


def entropy_loss(entropy: Tensor, valid: Tensor | None, divisor: Tensor | float) -> Tensor:
    """Negative mean entropy, scalar: minimising it keeps the policy exploring (Mnih et al. 2016, section 4)."""
    return -masked_mean(entropy, valid, divisor)


def masked_sums(x: Tensor, valid: Tensor | None, task: Tensor | None = None) -> Tensor:
    """``[count, sum, sum of squares]`` of the valid elements, float64 ``[3]``, additive over pieces and ranks.

    Args:
        x: ``[...]``.
        valid: bool ``[...]``, or None.
        task: ``[..., tasks]``, one-hot: the sums are those of each task, ``[3, tasks]``.
    """
    kept = masked(x, valid).double()
    valid = torch.ones_like(x, dtype=torch.bool) if valid is None else valid
    if task is None:
        return torch.stack([valid.sum().double(), kept.sum(), kept.square().sum()])
    columns = torch.stack([valid.double(), kept, kept.square()]).flatten(1)
    return columns @ task.flatten(0, -2).double()


def normalise_advantages(
    advantage: Tensor,
    valid: Tensor | None,
    *,
    sums: Tensor | None = None,
    task: Tensor | None = None,
    epsilon: float = 1e-8,
) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the valid samples; 0 where invalid.

    Args:
        advantage: float32 ``[...]``.
        valid: bool ``[...]``, or None.
        sums: :func:`masked_sums` of the whole minibatch, where ``advantage`` is a piece of it, or of another one.
        task: float32 ``[..., tasks]``, one-hot: mean and deviation are those of a sample's task, unless ``sums`` are
            those of all tasks together. A task of fewer than two samples gets those of all tasks.
        epsilon: Added to the deviation. 1e-8 is CleanRL's and SB3's.

    Returns:
        float32 ``[...]``, without gradient. The deviation is the unbiased one; of fewer than two samples it is 0.
    """
    with torch.no_grad():
        sums = masked_sums(advantage, valid, task) if sums is None else sums
        is_of_tasks = sums.ndim == 2
        if is_of_tasks:  # Another minibatch may lack a task, whose deviation of 0 would divide here.
            sums = torch.where(sums[0] < 2.0, sums.sum(1, keepdim=True), sums)
        count, total, squares = sums.unbind()
        mean = total / count.clamp_min(1.0)
        deviation = ((squares - count * mean.square()).clamp_min(0.0) / (count - 1.0).clamp_min(1.0)).sqrt()
        if is_of_tasks:
            assert task is not None, "sums of tasks need the tasks of the samples"
            mean, deviation = (task * mean).sum(-1), (task * deviation).sum(-1)
        scaled = (advantage - mean.to(advantage.dtype)) / (deviation + epsilon).to(advantage.dtype)
        return masked(scaled, valid)
