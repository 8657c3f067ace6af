"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905), also for choices.

A policy over n choices gives its expectations exactly, so nothing is sampled (Christodoulou 2019,
https://arxiv.org/abs/1910.07207). Its arrays are ``[N, K, n]``: K categorical heads, one with ``Discrete`` actions. A
choice that is not allowed has probability 0 and a finite log-probability.
"""

from __future__ import annotations

from torch import Tensor


def soft_value(q: Tensor, log_prob: Tensor, temperature: Tensor | float) -> Tensor:
    """``V(x) = min_i Q_i(x, a) - alpha log pi(a | x)`` for an action a ~ pi (equation 3).

    The policy's loss (equation 9) is minus the mean of this, with reparametrised actions. The minimum is that of
    clipped double Q-learning (Fujimoto et al. 2018, equation 10), see section 6 of the paper.

    Args:
        q: ``[E, N]``, of E critics.
        log_prob: ``[N]``.
        temperature: alpha, scalar.

    Returns:
        ``[N]``.
    """
    return q.min(0).values - temperature * log_prob


def temperature_loss(log_temperature: Tensor, excess_entropy: Tensor) -> Tensor:
    """``log alpha (H - target)``, scalar: alpha grows while the policy's entropy is below its target.

    Equation 18 has alpha in place of its logarithm; with the logarithm, as in the authors' code and in SB3, the step
    does not become smaller with alpha.

    Args:
        log_temperature: Scalar, with gradient.
        excess_entropy: ``[N]``, without gradient: the policy's entropy (or an estimate, ``-log pi(a | x)``) minus its
            target, in nats.
    """
    return log_temperature * excess_entropy.mean()


def soft_value_of_choices(q: Tensor, log_policy: Tensor, temperature: Tensor | float) -> Tensor:
    """``V(x) = sum_a pi(a | x) (min_i Q_i(x, a) - alpha log pi(a | x))`` (Christodoulou, equation 10).

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
