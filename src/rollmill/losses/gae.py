"""Generalised advantage estimation on the time axis of :mod:`rollmill.specs`.

Uses NumPy, because batches are prepared on the CPU, where its loop over time takes half as long as torch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def recursion_cut_numpy(
    terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], valid: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mark the steps after which a recursion over time stops.

    Args:
        terminated: bool ``[T, N]``.
        truncated: bool ``[T, N]``.
        valid: bool ``[T, N]``.

    Returns:
        bool ``[T, N]``: ``terminated[t] | truncated[t] | ~valid[t + 1]``, and True for the last step.
    """
    cut = terminated | truncated
    cut[:-1] |= ~valid[1:]
    cut[-1] = True
    return cut


def gae_numpy(
    reward: NDArray[np.float32],
    value: NDArray[np.floating[Any]],
    terminated: NDArray[np.bool_],
    cut: NDArray[np.bool_],
    valid: NDArray[np.bool_],
    *,
    discount: float,
    gae_lambda: float,
) -> tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]:
    """Generalised advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438, equations 11 to 16).

    For valid steps::

        delta_t = r_t + discount * (1 - terminated_t) * V(x_{t+1}) - V(x_t)
        A_t     = delta_t + discount * gae_lambda * (1 - cut_t) * A_{t+1}
        R_t     = A_t + V(x_t)

    A truncated episode bootstraps from V of its true final observation, which is stored at t + 1. An invalid step has
    advantage 0; its reward and value may be NaN.

    Args:
        reward: float32 ``[T, N]``, in the scale of the loss.
        value: float ``[T + 1, N]``, in the units of the rewards.
        terminated: bool ``[T, N]``.
        cut: bool ``[T, N]``, see :func:`recursion_cut_numpy`.
        valid: bool ``[T, N]``.
        discount: gamma, for one agent step.
        gae_lambda: lambda: 0 is one-step temporal difference, 1 Monte Carlo minus the baseline.

    Returns:
        Advantages and returns, float ``[T, N]``, as precise as the values are.
    """
    # After a terminated step the next value may be NaN.
    delta = np.where(terminated, reward, reward + np.float32(discount) * value[1:]) - value[:-1]
    advantage = np.where(valid, delta, np.float32(0.0))
    decay = (~cut & valid) * np.float32(discount * gae_lambda)
    for t in range(reward.shape[0] - 2, -1, -1):
        advantage[t] += decay[t] * advantage[t + 1]
    return advantage, advantage + value[:-1]
