"""Rescaling that compresses large values, an alternative to clipping rewards.

``h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x`` (Pohlen et al. 2018, https://arxiv.org/abs/1805.11593, proposition A.2),
with eps = 1e-3 (Kapturowski et al. 2019, R2D2, section 2.3).
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["rescale", "unscale"]

_EPSILON = 1.0e-3


def rescale(x: Tensor) -> Tensor:
    """``h(x)``, of any shape."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + _EPSILON * x


def unscale(x: Tensor) -> Tensor:
    """The inverse of :func:`rescale`.

    With ``u = |x| + 1 + eps`` it is ``(((sqrt(1 + 4 eps u) - 1) / (2 eps))^2 - 1) sign(x)``; the fraction is
    rearranged to avoid cancellation in float32.
    """
    u = x.abs() + (1.0 + _EPSILON)
    root = 2.0 * u / ((1.0 + 4.0 * _EPSILON * u).sqrt() + 1.0)
    return x.sign() * (root.square() - 1.0)
