"""A frozen copy of a fast way to train a GRU on a CPU: one matrix product for the weights of all steps.

It belongs to the machine's bound (:mod:`benchmarks.machine_bound.frozen_networks`) and is not touched when
:mod:`rollmill.models.unrolls`, from which it was taken on 2026-11-21, changes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


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
        for reset_update, reset, update, new, start, kept_n, h_out in zip(
            acts[..., : 2 * size].unbind(),
            *(part.unbind() for part in acts.chunk(3, -1)),
            h_in.unbind(),
            recurrent_n.unbind(),
            out.unbind(),
            strict=True,
        ):
            start.copy_(h)
            of_both, of_new = torch.addmm(bias, start, transposed).tensor_split((2 * size,), 1)
            reset_update.add_(of_both).sigmoid_()
            kept_n.copy_(of_new)
            new.addcmul_(reset, kept_n).tanh_()
            h = torch.lerp(new, start, update, out=h_out)
        ctx.save_for_backward(acts, h_in, recurrent_n, weight)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        acts, h_in, recurrent_n, weight = ctx.saved_tensors
        steps, rows, size = h_in.shape
        reset, update, new = acts.chunk(3, -1)
        through_new = (1 - update) * (1 - new * new)
        through_reset = through_new * recurrent_n * reset * (1 - reset)
        factors = torch.stack([through_reset, (h_in - new) * update * (1 - update), through_new * reset], 2)
        d_recurrent, d_hs = torch.empty_like(factors), torch.empty_like(h_in)
        d_h = acts.new_zeros(rows, size)
        for d_step, factor, d_total, of_out, kept in zip(
            *(reversed(x.unbind()) for x in (d_recurrent, factors, d_hs, d_out, update)), strict=True
        ):
            torch.add(d_h, of_out, out=d_total)
            torch.mul(d_total.unsqueeze(1), factor, out=d_step)
            d_h = torch.addmm(d_total * kept, d_step.view(rows, -1), weight)
        d_recurrent = d_recurrent.view(steps, rows, -1)
        d_gates = torch.cat([d_recurrent[..., : 2 * size], d_hs * through_new], -1)
        flat = d_recurrent.flatten(0, 1)
        return d_gates, d_h, flat.t() @ h_in.flatten(0, 1), flat.sum(0)
