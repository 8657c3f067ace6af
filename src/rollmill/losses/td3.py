"""Deterministic policy gradients: DDPG and TD3.

Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971; Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["clipped_double_value", "deterministic_policy_loss", "smoothed_action"]


def smoothed_action(action: Tensor, normal: Tensor, std: float, clip: float) -> Tensor:
    """``clip(pi'(x) + clip(eps, -c, c), -1, 1)``, ``eps ~ N(0, std)`` (TD3, equation 14 and algorithm 1).

    Args:
        action: ``[N, C]`` in [-1, 1], from the target policy.
        normal: ``[N, C]``, standard normal.
        std: In units of half the range.
        clip: c.

    Returns:
        ``[N, C]`` in [-1, 1].
    """
    return (action + (normal * std).clamp_(-clip, clip)).clamp_(-1.0, 1.0)


def clipped_double_value(q: Tensor) -> Tensor:
    """``min_i Q'_i(x, a)`` (TD3, equation 10).

    Args:
        q: ``[E, N]``, of E critics (one for DDPG, section 3).

    Returns:
        ``[N]``.
    """
    return q.min(0).values


def deterministic_policy_loss(q: Tensor) -> Tensor:
    """``-mean Q_1(x, pi(x))`` (TD3, algorithm 1; DDPG, equation 6), scalar.

    Args:
        q: ``[N]``, the first critic's values of the policy's actions.
    """
    return -q.mean()
