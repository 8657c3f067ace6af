"""A frozen copy of a fast way to train a GRU on a CPU: one matrix product for the weights of all steps.

It belongs to the machine's bound (:mod:`rollmill.benchmarking.frozen_networks`) and is not touched when
:mod:`rollmill.models.unrolls`, from which it was taken on 2026-11-21, changes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["unroll"]


def unroll(gates: Tensor, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Outputs ``[T, N, H]`` for the input's share of the gates ``[T, N, 3 H]`` and the state ``[N, H]``."""
    # torch leaves Function.apply untyped.
    return cast("Tensor", _Unroll.apply(gates, state, weight, bias))  # type: ignore[no-untyped-call]


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        steps, rows, size = gates.shape[0], gates.shape[1], gates.shape[2] // 3
        acts = gates.clone()
        h_in, recurrent_n, out = (acts.new_empty(steps, rows, size) for _ in range(3))
        transposed = weight.t()
        for t in range(steps):
            h_in[t].copy_(h)
            recurrent = torch.addmm(bias, h_in[t], transposed)
            reset_update, new = acts[t, :, : 2 * size], acts[t, :, 2 * size :]
            reset_update.add_(recurrent[:, : 2 * size]).sigmoid_()
            recurrent_n[t] = recurrent[:, 2 * size :]
            new.addcmul_(reset_update[:, :size], recurrent_n[t]).tanh_()
            h = torch.lerp(new, h_in[t], reset_update[:, size:], out=out[t])
        ctx.save_for_backward(acts, h_in, recurrent_n, weight)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        acts, h_in, recurrent_n, weight = ctx.saved_tensors
        steps, rows, size = h_in.shape
        reset, update, new = acts.split(size, -1)
        through_new = (1 - update) * (1 - new * new)
        through_reset = recurrent_n * reset * (1 - reset)
        through_update = (h_in - new) * update * (1 - update)
        d_gates, d_recurrent = torch.empty_like(acts), torch.empty_like(acts)
        d_h = acts.new_zeros(rows, size)
        for t in reversed(range(steps)):
            d_h = d_h + d_out[t]
            d_new = torch.mul(d_h, through_new[t], out=d_gates[t, :, 2 * size :])
            torch.mul(d_new, through_reset[t], out=d_gates[t, :, :size])
            torch.mul(d_h, through_update[t], out=d_gates[t, :, size : 2 * size])
            d_recurrent[t, :, : 2 * size] = d_gates[t, :, : 2 * size]
            torch.mul(d_new, reset[t], out=d_recurrent[t, :, 2 * size :])
            d_h = torch.addmm(d_h * update[t], d_recurrent[t], weight)
        flat = d_recurrent.flatten(0, 1)
        return d_gates, d_h, flat.t() @ h_in.flatten(0, 1), flat.sum(0)
