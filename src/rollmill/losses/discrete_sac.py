"""Soft actor-critic for choices (Christodoulou 2019, https://arxiv.org/abs/1910.07207).

A policy over n choices gives its expectations exactly, so nothing is sampled. Arrays are ``[N, K, n]``: K categorical
heads, one with ``Discrete`` actions. A choice that is not allowed has probability 0 and a finite log-probability.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["policy_entropy", "soft_value_of_choices"]


def soft_value_of_choices(q: Tensor, log_policy: Tensor, temperature: Tensor | float) -> Tensor:
    """``V(x) = sum_a pi(a | x) (min_i Q_i(x, a) - alpha log pi(a | x))`` (equation 10).

    With several heads the result is the mean over heads, as in branching Q-learning (Tavakoli et al. 2018). The
    policy's loss (equation 12) is minus the mean of this, with ``q`` detached.

    Args:
        q: ``[E, N, K, n]``, of E critics.
        log_policy: ``[N, K, n]``.
        temperature: alpha, scalar.

    Returns:
        ``[N]``.
    """
    return (log_policy.exp() * (q.amin(0) - temperature * log_policy)).sum(-1).mean(-1)


def policy_entropy(log_policy: Tensor) -> Tensor:
    """Entropy of all heads together, in nats: ``[N, K, n]`` to ``[N]``."""
    return -(log_policy.exp() * log_policy).sum((-2, -1))
