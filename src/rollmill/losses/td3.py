"""Target policy smoothing of TD3 (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477)."""

from __future__ import annotations

from torch import Tensor


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
