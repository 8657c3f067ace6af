"""Batches for losses, on the learner's device: transitions, sequences, or samples of trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor


class TransitionBatch(NamedTuple):
    """N transitions (x_t, a_t, R_t, x_{t+k}), on the learner's device.

    Attributes:
        observation: Name -> ``[N, ...]``, x_t.
        discrete: int32 ``[N, K]``, the choices of a_t; None without categorical heads.
        continuous: float32 ``[N, C]``, a_t in [-1, 1], mapped to the Box's bounds; None without real heads.
        reward: float32 ``[N]``, ``sum_{j<k} gamma^j r_{t+j}``.
        discount: float32 ``[N]``, gamma^k, the factor of x_{t+k}'s value; 0 if the episode terminated before.
        next_observation: Name -> ``[N, ...]``, x_{t+k}; the true final observation of a truncated episode.
        action_mask: bool ``[N, mask_size]`` at x_t; None if the environment has none.
        next_action_mask: Likewise at x_{t+k}.
        weight: float32 ``[N]``, importance weights of prioritised replay; ones for uniform replay.
    """

    observation: Mapping[str, Tensor]
    discrete: Tensor | None
    continuous: Tensor | None
    reward: Tensor
    discount: Tensor
    next_observation: Mapping[str, Tensor]
    action_mask: Tensor | None
    next_action_mask: Tensor | None
    weight: Tensor


class SequenceBatch(NamedTuple):
    """N sequences of W steps and W + 1 observations, on the learner's device, with L learned steps.

    Steps ``burn_in`` to ``burn_in + L`` are the learned ones. The steps before them only produce the recurrent state;
    the steps after them are part of the returns.

    Attributes:
        burn_in: Steps before the learned ones.
        observation: Name -> ``[W + 1, N, ...]``.
        discrete: int32 ``[W, N, K]``, as in :class:`TransitionBatch`.
        continuous: float32 ``[W, N, C]``, likewise.
        reward: float32 ``[L, N]``, ``sum_{j<k} gamma^j r_{t+j}``; 0 if the step is not valid.
        discount: float32 ``[L, N]``, gamma^k, the factor of x_{t+k}'s value; 0 if the episode terminated before, or
            the step is not valid.
        then: int64 ``[L, N]``, index of x_{t+k} in the W + 1 observations; the true final one of a truncated episode.
        valid: bool ``[L, N]``, False for steps without a transition.
        reset: bool ``[W + 1, N]``: the recurrent state is zeroed before x_t is consumed.
        reset_steps: Every t with any ``reset[t]``, ascending, known to the host.
        rnn_state: float32 ``[N, S]``, of the acting policy, before ``reset[0]`` is applied.
        action_mask: bool ``[W + 1, N, mask_size]``; None if the environment has none.
        weight: float32 ``[N]``, importance weights.
    """

    burn_in: int
    observation: Mapping[str, Tensor]
    discrete: Tensor | None
    continuous: Tensor | None
    reward: Tensor
    discount: Tensor
    then: Tensor
    valid: Tensor
    reset: Tensor
    reset_steps: Sequence[int]
    rnn_state: Tensor
    action_mask: Tensor | None
    weight: Tensor


class OnPolicyBatch(NamedTuple):
    """A part of a minibatch with one backward pass: M samples ``[M, ...]``, or K trajectories ``[T, K, ...]``.

    The losses of all parts of a minibatch, on all ranks, add up. Each loss is therefore a sum over the part, divided by
    ``divisor``. See :mod:`rollmill.specs` for the meaning of the arrays.

    Attributes:
        observation: Name -> ``[M, ...]`` or ``[T(+1), K, ...]``; T + 1 if the loss computes V(x_T).
        discrete: int32 ``[..., heads]``, the choices of a_t; None without categorical heads.
        continuous: float32 ``[..., numbers]``, the continuous part of a_t; None without real heads.
        action_mask: bool ``[..., mask_size]``; None if the environment has none.
        log_prob: Log-probability of a_t under the behaviour policy.
        value: V(x_t) of the behaviour policy, in the network's units.
        reward: Scaled and clipped rewards.
        advantage: Advantages of the behaviour policy (GAE); None if the loss computes them.
        return_: The corresponding returns, in units of the rewards; None likewise.
        keep: bool: samples that count; all of them unless the part is trajectories, see :attr:`mask`.
        terminated: bool ``[T, K]``; for trajectories only, like the following arrays.
        cut: bool ``[T, K]``: where recursions over time stop.
        valid: bool ``[T, K]``: steps that are transitions, including those beyond the lag limit.
        reset: bool ``[T + 1, K]``.
        reset_steps: Every t with any ``reset[t]``, ascending, known to the host.
        rnn_state: ``[K, S]`` before x_0; None without a recurrent core.
        divisor: Samples that count in the whole minibatch; a scalar tensor if losses are compiled.
        moments: float64 ``[3]``: count, sum and sum of squares of the advantages of the whole minibatch, or, where the
            loss computes them, of the previous one, with several tasks ``[3, tasks]``; None if unknown before the loss.
        coefficients: Scheduled numbers by name, such as ``"clip_range"`` and ``"entropy_coef"``.
    """

    observation: Mapping[str, Tensor]
    discrete: Tensor | None
    continuous: Tensor | None
    action_mask: Tensor | None
    log_prob: Tensor
    value: Tensor
    reward: Tensor
    advantage: Tensor | None
    return_: Tensor | None
    keep: Tensor
    terminated: Tensor | None
    cut: Tensor | None
    valid: Tensor | None
    reset: Tensor | None
    reset_steps: Sequence[int]
    rnn_state: Tensor | None
    divisor: Tensor | float
    moments: Tensor | None
    coefficients: Mapping[str, Tensor | float]

    @property
    def mask(self) -> Tensor | None:
        """``keep`` of trajectories; None for samples, all of which count, so that a loss need not mask anything."""
        return None if self.reset is None else self.keep


Batch = TransitionBatch | SequenceBatch | OnPolicyBatch
