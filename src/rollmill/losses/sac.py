"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905)."""

from __future__ import annotations

from torch import Tensor

__all__ = ["sac_actor_loss", "soft_value", "temperature_loss"]


def soft_value(q: Tensor, log_prob: Tensor, temperature: Tensor | float) -> Tensor:
    """``V(x) = min_i Q_i(x, a) - alpha log pi(a | x)`` for an action a ~ pi (equation 3).

    The minimum is that of clipped double Q-learning (Fujimoto et al. 2018, equation 10), see section 6 of the paper.

    Args:
        q: ``[E, N]``, of E critics.
        log_prob: ``[N]``.
        temperature: alpha, scalar.

    Returns:
        ``[N]``.
    """
    return q.min(0).values - temperature * log_prob


def sac_actor_loss(q: Tensor, log_prob: Tensor, temperature: Tensor | float) -> Tensor:
    """Mean of ``alpha log pi(a | x) - min_i Q_i(x, a)`` (equation 9), scalar.

    Args:
        q: ``[E, N]``, of reparametrised actions.
        log_prob: ``[N]``.
        temperature: alpha, scalar, without gradient.
    """
    return -soft_value(q, log_prob, temperature).mean()


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
