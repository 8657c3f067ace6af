"""V-trace on the time axis of :mod:`rollmill.specs`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    """V-trace targets ``vs`` and advantages for the policy gradient, float32 ``[T, N]``."""

    vs: Tensor
    pg_advantage: Tensor


def vtrace(
    behaviour_log_prob: Tensor,
    target_log_prob: Tensor,
    reward: Tensor,
    value: Tensor,
    discount: Tensor,
    cut: Tensor,
    valid: Tensor,
    *,
    vtrace_lambda: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    rho_pg_bar: float | None = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, equation 1 and section 4.2).

    As ``rlax.vtrace_td_error_and_advantage``. With ``ratio = pi / mu`` and ``continues = 1 - cut``, for valid steps::

        rho_t    = min(rho_bar, ratio_t)
        c_t      = lambda * min(c_bar, ratio_t)
        delta_t  = rho_t * (r_t + discount_t * V(x_{t+1}) - V(x_t))
        vs_t     = V(x_t) + e_t,  e_t = delta_t + discount_t * c_t * continues_t * e_{t+1}
        next_t   = V(x_{t+1}) + lambda * continues_t * e_{t+1}
        pg_t     = min(rho_pg_bar, ratio_t) * (r_t + discount_t * next_t - V(x_t))

    ``next_t`` is rlax's ``lambda * vs_{t+1} + (1 - lambda) * V(x_{t+1})``; at a cut, and at the last step, it is
    V(x_{t+1}). Invalid steps have ``vs = V`` and advantage 0.

    Args:
        behaviour_log_prob: float32 ``[T, N]``, log mu(a_t | x_t).
        target_log_prob: float32 ``[T, N]``, log pi(a_t | x_t).
        reward: float32 ``[T, N]``: the consequence of a_t.
        value: float32 ``[T + 1, N]``: V(x_0) .. V(x_T) of the target policy.
        discount: float32 ``[T, N]``, 0 where the episode terminated.
        cut: bool ``[T, N]``, see :func:`rollmill.losses.gae.recursion_cut_numpy`; the last step always counts as cut.
        valid: bool ``[T, N]``.
        vtrace_lambda: lambda of section 4 ("Remark 2").
        rho_bar: Clip of the ratio in the temporal difference; decides the fixed point.
        c_bar: Clip of the trace coefficients; decides the speed of convergence.
        rho_pg_bar: Clip of the ratio that weights the policy gradient. None disables the weight, for surrogates that
            include the ratio already (PPO's).

    Returns:
        Targets and advantages, both without gradient.
    """
    with torch.no_grad():
        ratio = torch.where(valid, (target_log_prob - behaviour_log_prob).exp(), 0.0)
        now, following = value[:-1], value[1:]
        # Where the discount is 0 the next value may be NaN.
        bootstrap = torch.where(discount == 0.0, reward, reward + discount * following)
        delta = bootstrap - now
        error = torch.where(valid, ratio.clamp(max=rho_bar) * delta, 0.0)
        continues = ~cut & valid
        continues[-1] = False
        trace = torch.where(continues, discount * ratio.clamp(max=c_bar) * vtrace_lambda, 0.0)
        for t in range(reward.shape[0] - 2, -1, -1):
            error[t].addcmul_(trace[t], error[t + 1])
        correction = torch.zeros_like(error)
        correction[:-1] = torch.where(continues[:-1], discount[:-1] * error[1:] * vtrace_lambda, 0.0)
        advantage = delta + correction
        if rho_pg_bar is not None:
            advantage = ratio.clamp(max=rho_pg_bar) * advantage
        advantage = torch.where(valid, advantage, 0.0)
        return VTrace(now + error, advantage)
