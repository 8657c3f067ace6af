"""Bootstrapped targets and temporal-difference losses.

Transitions are those of :class:`rollmill.algorithms.batches.TransitionBatch`: ``reward`` is a discounted sum over k
steps and ``discount`` is gamma^k, or 0 where the episode terminated, so a target is the same expression for every k.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class TemporalDifferenceLoss(NamedTuple):
    """``loss``, a scalar to be minimised, and ``error``, the mean ``|delta|`` of each sample, ``[N]``, detached."""

    loss: Tensor
    error: Tensor


def bootstrap_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """``y = sum_{j<k} gamma^j r_{t+j} + gamma^k v(x_{t+k})`` (Sutton & Barto 2018, equation 7.1).

    Args:
        reward: ``[N]``, the sum.
        discount: ``[N]``, gamma^k, 0 where the episode terminated.
        next_value: ``[N]``; where the episode terminated it does not count, and may be NaN.

    Returns:
        ``[N]``.
    """
    return reward + torch.where(discount == 0, 0.0, discount * next_value)


def temporal_difference_loss(
    prediction: Tensor, target: Tensor, weight: Tensor, kind: Literal["mse", "huber"]
) -> TemporalDifferenceLoss:
    """Weighted mean of ``l(delta)``, ``delta = prediction - target``.

    ``l`` is ``delta^2 / 2`` (``"mse"``), or that where ``|delta| <= 1`` and ``|delta| - 1/2`` elsewhere (``"huber"``,
    the error clipping of Mnih et al. 2015, Methods). The weights are those of prioritised replay (Schaul et al.
    2016, https://arxiv.org/abs/1511.05952, section 3.4).

    Args:
        prediction: ``[..., N]``, with gradient; leading axes are critics or branches.
        target: ``[..., N]`` or ``[N]``.
        weight: ``[N]``.
        kind: Which loss.

    Returns:
        The loss is summed over leading axes (each critic has its own) and averaged over N.
    """
    delta = prediction - target
    error = delta.detach().abs()
    if kind == "huber":
        loss = (weight * functional.huber_loss(prediction, target.expand_as(prediction), reduction="none")).sum()
    else:
        loss = (weight * delta.square()).sum() * 0.5
    loss = loss / prediction.shape[-1]
    return TemporalDifferenceLoss(loss, error if error.dim() == 1 else error.flatten(0, -2).mean(0))


def sequence_error(error: Tensor, valid: Tensor, eta: float = 0.9) -> Tensor:
    """Error that determines a sequence's priority: ``eta max_t |delta_t| + (1 - eta) mean_t |delta_t|``.

    Kapturowski et al. 2019 (R2D2, https://openreview.net/forum?id=r1lyTjAqYX), section 2.3; eta is theirs.

    Args:
        error: ``[L, N]``, ``|delta|`` of each step.
        valid: bool ``[L, N]``; False excludes a step.
        eta: Weight of the maximum.

    Returns:
        ``[N]``; 0 for a sequence without a valid step.
    """
    error = torch.where(valid, error, 0.0)
    mean = error.sum(0) / valid.sum(0).clamp(min=1)
    return eta * error.amax(0) + (1.0 - eta) * mean
