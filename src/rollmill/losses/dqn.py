"""Deep Q-learning, for one or several categorical heads (branches).

Values are ``[N, K, n]``: N samples, K heads, n choices of each. A forbidden choice has a value below all others.
"""

from __future__ import annotations

from torch import Tensor

_EPSILON = 1.0e-3


def taken_values(q: Tensor, action: Tensor) -> Tensor:
    """Q_d(x, a_d) of each head.

    Args:
        q: ``[N, K, n]``.
        action: int ``[N, K]``.

    Returns:
        ``[N, K]``.
    """
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def max_q_value(target_q: Tensor) -> Tensor:
    """``max_a Q'(x, a)`` (Mnih et al. 2015, https://doi.org/10.1038/nature14236, equation 1's target).

    With several heads, the mean of their maxima (Tavakoli et al. 2018, https://arxiv.org/abs/1711.08946, use the same
    mean for double Q-learning in equation 6).

    Args:
        target_q: ``[N, K, n]``, the target network's.

    Returns:
        ``[N]``.
    """
    return target_q.amax(-1).mean(-1)


def double_q_value(online_q: Tensor, target_q: Tensor) -> Tensor:
    """``Q'(x, argmax_a Q(x, a))`` (van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461, equation 4).

    With several heads it is their mean (Tavakoli et al. 2018, equation 6).

    Args:
        online_q: ``[N, K, n]``; selects the action.
        target_q: ``[N, K, n]``; evaluates it.

    Returns:
        ``[N]``.
    """
    return taken_values(target_q, online_q.argmax(-1)).mean(-1)


def rescale(x: Tensor) -> Tensor:
    """Compress large values, an alternative to clipping rewards: ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x``.

    Pohlen et al. 2018, https://arxiv.org/abs/1805.11593, proposition A.2, with eps = 1e-3 (Kapturowski et al. 2019,
    R2D2, section 2.3).
    """
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + _EPSILON * x


def unscale(x: Tensor) -> Tensor:
    """The inverse of :func:`rescale`.

    With ``u = |x| + 1 + eps`` it is ``(((sqrt(1 + 4 eps u) - 1) / (2 eps))^2 - 1) sign(x)``; the fraction is
    rearranged to avoid cancellation in float32.
    """
    u = x.abs() + (1.0 + _EPSILON)
    root = 2.0 * u / ((1.0 + 4.0 * _EPSILON * u).sqrt() + 1.0)
    return x.sign() * (root.square() - 1.0)
