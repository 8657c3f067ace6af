"""GRU and LSTM over many steps on a CPU, with resets inside and one matrix product for all weight gradients.

PyTorch's own layers differentiate each step by itself: every step forms a gradient of the size of the recurrent matrix
and adds it to the others, which for a few rows is most of the time, and a reset has to split the call. Here a step's
backward pass only carries the gradient of the state back, and what concerns the weights is one product over all steps
at the end, as cuDNN does it. The equations are those of ``torch.nn.GRU`` and ``torch.nn.LSTM``, biases included.

Matrix products run in the dtype of the recurrent matrix given, all else in float32.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

__all__ = ["unroll_gru", "unroll_lstm"]

Resets = tuple[Tensor | None, ...]


def unroll_gru(gates: Tensor, h: Tensor, resets: Resets, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A GRU over T steps.

    Args:
        gates: ``[T, N, 3 H]``: the input's share of the reset, update and new gates, its bias included.
        h: float32 ``[N, H]``, the state before step 0.
        resets: For each step, bool ``[N, 1]``: rows whose state is zeroed before it, or None if there are none.
        weight: ``[3 H, H]``, recurrent; float32 or bfloat16.
        bias: ``[3 H]``, recurrent.

    Returns:
        float32 outputs ``[T, N, H]`` and the last state ``[N, H]``.
    """
    return cast("tuple[Tensor, Tensor]", _GRU.apply(gates, h, resets, weight, bias))  # type: ignore[no-untyped-call]


def unroll_lstm(
    gates: Tensor, h: Tensor, c: Tensor, resets: Resets, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM over T steps; ``gates`` and ``weight`` hold the input, forget, cell and output gates.

    Args and returns as in :func:`unroll_gru`, with the cell ``c`` float32 ``[N, H]`` beside ``h``.
    """
    return cast(
        "tuple[Tensor, Tensor, Tensor]",
        _LSTM.apply(gates, h, c, resets, weight, bias),  # type: ignore[no-untyped-call]
    )


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, gates: Tensor, h: Tensor, resets: Resets, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        steps, rows, size = gates.shape[0], gates.shape[1], gates.shape[2] // 3
        with torch.autocast("cpu", enabled=False):
            acts = gates.float().clone()
            h_in, recurrent_n, out = (acts.new_empty(steps, rows, size) for _ in range(3))
            transposed = weight.t()
            for t in range(steps):
                _start(h_in[t], h, resets[t])
                recurrent = _product(bias, h_in[t], transposed)
                reset_update, new = acts[t, :, : 2 * size], acts[t, :, 2 * size :]
                reset_update.add_(recurrent[:, : 2 * size]).sigmoid_()
                recurrent_n[t] = recurrent[:, 2 * size :]
                new.addcmul_(reset_update[:, :size], recurrent_n[t]).tanh_()
                h = torch.lerp(new, h_in[t], reset_update[:, size:], out=out[t])
        ctx.save_for_backward(acts, h_in, recurrent_n, weight)
        ctx.resets, ctx.dtype = resets, gates.dtype  # type: ignore[attr-defined]
        return out, h.clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        acts, h_in, recurrent_n, weight = ctx.saved_tensors
        steps, _, size = h_in.shape
        with torch.autocast("cpu", enabled=False):
            reset, update, new = acts.split(size, -1)
            # What of the chain rule does not depend on the gradient, for all steps at once.
            through_new = (1 - update) * (1 - new * new)
            through_reset = recurrent_n * reset * (1 - reset)
            through_update = (h_in - new) * update * (1 - update)
            d_gates, d_recurrent = torch.empty_like(acts), torch.empty_like(acts)
            d_h = d_last
            for t in reversed(range(steps)):
                d_h = d_h + d_out[t]
                d_new = torch.mul(d_h, through_new[t], out=d_gates[t, :, 2 * size :])
                torch.mul(d_new, through_reset[t], out=d_gates[t, :, :size])
                torch.mul(d_h, through_update[t], out=d_gates[t, :, size : 2 * size])
                d_recurrent[t, :, : 2 * size] = d_gates[t, :, : 2 * size]
                torch.mul(d_new, reset[t], out=d_recurrent[t, :, 2 * size :])
                d_h = _kept(_product(d_h * update[t], d_recurrent[t], weight), ctx.resets[t])
            d_weight, d_bias = _weight_gradients(d_recurrent, h_in, weight)
        return d_gates.to(ctx.dtype), d_h, None, d_weight, d_bias


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, gates: Tensor, h: Tensor, c: Tensor, resets: Resets, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, rows, size = gates.shape[0], gates.shape[1], gates.shape[2] // 4
        with torch.autocast("cpu", enabled=False):
            acts = gates.float().clone()
            h_in, c_in, tanh_c, out = (acts.new_empty(steps, rows, size) for _ in range(4))
            transposed = weight.t()
            for t in range(steps):
                _start(h_in[t], h, resets[t])
                _start(c_in[t], c, resets[t])
                acts[t].add_(_product(bias, h_in[t], transposed))
                acts[t, :, : 2 * size].sigmoid_()
                acts[t, :, 2 * size : 3 * size].tanh_()
                acts[t, :, 3 * size :].sigmoid_()
                in_, forget, cell, output = acts[t].chunk(4, -1)
                c = torch.addcmul(forget * c_in[t], in_, cell)
                torch.tanh(c, out=tanh_c[t])
                h = torch.mul(output, tanh_c[t], out=out[t])
        ctx.save_for_backward(acts, h_in, c_in, tanh_c, weight)
        ctx.resets, ctx.dtype = resets, gates.dtype  # type: ignore[attr-defined]
        return out, h.clone(), c

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_last: Tensor, d_c: Tensor) -> tuple[Tensor | None, ...]:
        acts, h_in, c_in, tanh_c, weight = ctx.saved_tensors
        steps, rows, size = h_in.shape
        with torch.autocast("cpu", enabled=False):
            in_, forget, cell, output = acts.chunk(4, -1)
            into_c = output * (1 - tanh_c * tanh_c)
            factors = torch.cat(
                [
                    cell * in_ * (1 - in_),
                    c_in * forget * (1 - forget),
                    in_ * (1 - cell * cell),
                    tanh_c * output * (1 - output),
                ],
                -1,
            ).view(steps, rows, 4, size)
            d_gates = torch.empty_like(acts)
            d_h = d_last
            for t in reversed(range(steps)):
                d_h = d_h + d_out[t]
                d_c = torch.addcmul(d_c, d_h, into_c[t])
                of_step = d_gates[t].view(rows, 4, size)
                torch.mul(d_c.unsqueeze(1), factors[t, :, :3], out=of_step[:, :3])
                torch.mul(d_h, factors[t, :, 3], out=of_step[:, 3])
                d_h = _kept(_product(None, d_gates[t], weight), ctx.resets[t])
                d_c = _kept(d_c * forget[t], ctx.resets[t])
            d_weight, d_bias = _weight_gradients(d_gates, h_in, weight)
        return d_gates.to(ctx.dtype), d_h, d_c, None, d_weight, d_bias


def _start(into: Tensor, state: Tensor, reset: Tensor | None) -> None:
    # Filled, not multiplied: what is forgotten may be NaN.
    into.copy_(state if reset is None else state.masked_fill(reset, 0.0))


def _kept(gradient: Tensor, reset: Tensor | None) -> Tensor:
    return gradient if reset is None else gradient.masked_fill(reset, 0.0)


def _product(added: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """``added + a @ b`` in float32, the product in b's dtype."""
    if b.dtype == torch.float32:
        return a @ b if added is None else torch.addmm(added.float(), a, b)
    product = (a.to(b.dtype) @ b).float()
    return product if added is None else product + added


def _weight_gradients(d_recurrent: Tensor, h_in: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    flat = d_recurrent.flatten(0, 1)
    d_weight = flat.to(weight.dtype).t() @ h_in.flatten(0, 1).to(weight.dtype)
    return d_weight, flat.sum(0)
