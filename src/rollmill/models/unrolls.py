"""GRU and LSTM over many steps on a CPU, with resets and one matrix product for all weight gradients.

PyTorch's own layers differentiate each step separately: every step forms a gradient of the size of the recurrent matrix
and adds it to the others, which dominates for a few rows, and a reset has to split the call. Here a step's backward
pass only propagates the gradient of the state, and the gradients of the weights are one product over all steps at the
end, as in cuDNN. The equations are those of ``torch.nn.GRU`` and ``torch.nn.LSTM``, including biases.

Matrix products run in the dtype of the recurrent matrix given, everything else in float32 (or float64 throughout).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from rollmill.models.linear import linear
from rollmill.models.precision import wide

Resets = tuple[Tensor | None, ...]
_WORTH_A_COPY = 8  # steps


def unroll_gru(gates: Tensor, h: Tensor, resets: Resets, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A GRU over T steps.

    Args:
        gates: ``[T, N, 3 H]``: the input's share of the reset, update and new gates, its bias included.
        h: float32 ``[N, H]``, the state before step 0.
        resets: For each step, bool ``[N, 1]``: rows whose state is zeroed before it, or None.
        weight: ``[3 H, H]``, recurrent; float32 or bfloat16.
        bias: ``[3 H]``, recurrent.

    Returns:
        float32 outputs ``[T, N, H]`` and the last state ``[N, H]``.
    """
    # torch does not annotate Function.apply.
    return cast("tuple[Tensor, Tensor]", _GRU.apply(gates, h, resets, weight, bias))  # type: ignore[no-untyped-call]


def unroll_lstm(
    gates: Tensor, h: Tensor, c: Tensor, resets: Resets, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM over T steps; ``gates`` and ``weight`` hold the input, forget, cell and output gates.

    Arguments and results are those of :func:`unroll_gru`, plus the cell ``c``, float32 ``[N, H]``.
    """
    return cast(
        "tuple[Tensor, Tensor, Tensor]",
        _LSTM.apply(gates, h, c, resets, weight, bias),  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    )


class _GRU(torch.autograd.Function):
    # Uses unbind once, because for small networks indexing costs as much as computing.

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, h: Tensor, resets: Resets, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        steps, rows, size = gates.shape[0], gates.shape[1], gates.shape[2] // 3
        with torch.autocast("cpu", enabled=False):
            acts = wide(gates).clone()
            h_in, recurrent_n, out = (acts.new_empty(steps, rows, size) for _ in range(3))
            of_state = _product_with(weight.t(), steps)
            for reset_update, reset, update, new, start, kept_n, h_out, is_reset in zip(
                acts[..., : 2 * size].unbind(),
                *(part.unbind() for part in acts.chunk(3, -1)),
                h_in.unbind(),
                recurrent_n.unbind(),
                out.unbind(),
                resets,
                strict=True,
            ):
                _start(start, h, is_reset)
                of_both, of_new = of_state(start).add_(bias).tensor_split((2 * size,), 1)
                reset_update.add_(of_both).sigmoid_()
                kept_n.copy_(of_new)
                new.addcmul_(reset, kept_n).tanh_()
                h = torch.lerp(new, start, update, out=h_out)
        ctx.save_for_backward(acts, h_in, recurrent_n, weight)
        ctx.resets, ctx.dtype = resets, gates.dtype
        return out, h.clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        acts, h_in, recurrent_n, weight = ctx.saved_tensors
        steps, rows, size = h_in.shape
        with torch.autocast("cpu", enabled=False):
            reset, update, new = acts.chunk(3, -1)
            # Factors of the chain rule that do not depend on the gradient, for all steps at once.
            through_new = (1 - update) * (1 - new * new)
            factors = torch.stack(
                [
                    through_new * recurrent_n * reset * (1 - reset),
                    (h_in - new) * update * (1 - update),
                    through_new * reset,
                ],
                2,
            )
            d_recurrent, d_hs = torch.empty_like(factors), torch.empty_like(h_in)
            to_state = _product_with(weight, steps)
            d_h = d_last
            for d_step, factor, d_total, of_out, kept, is_reset in zip(
                *(reversed(x.unbind()) for x in (d_recurrent, factors, d_hs, d_out, update)),
                reversed(ctx.resets),
                strict=True,
            ):
                torch.add(d_h, of_out, out=d_total)
                torch.mul(d_total.unsqueeze(1), factor, out=d_step)
                d_h = _kept(to_state(d_step.view(rows, -1)).addcmul_(d_total, kept), is_reset)
            d_recurrent = d_recurrent.view(steps, rows, -1)
            d_weight, d_bias = _weight_gradients(d_recurrent, h_in, weight)
            d_gates = torch.cat([d_recurrent[..., : 2 * size], d_hs * through_new], -1)
        return d_gates.to(ctx.dtype), d_h, None, d_weight, d_bias


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, h: Tensor, c: Tensor, resets: Resets, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, rows, size = gates.shape[0], gates.shape[1], gates.shape[2] // 4
        with torch.autocast("cpu", enabled=False):
            acts = wide(gates).clone()
            h_in, c_in, tanh_c, out = (acts.new_empty(steps, rows, size) for _ in range(4))
            of_state = _product_with(weight.t(), steps)
            for act, in_forget, in_, forget, cell, output, h_start, c_start, tanh, h_out, is_reset in zip(
                acts.unbind(),
                acts[..., : 2 * size].unbind(),
                *(part.unbind() for part in acts.chunk(4, -1)),
                h_in.unbind(),
                c_in.unbind(),
                tanh_c.unbind(),
                out.unbind(),
                resets,
                strict=True,
            ):
                _start(h_start, h, is_reset)
                _start(c_start, c, is_reset)
                act.add_(of_state(h_start)).add_(bias)
                in_forget.sigmoid_()
                cell.tanh_()
                output.sigmoid_()
                c = torch.addcmul(forget * c_start, in_, cell)
                torch.tanh(c, out=tanh)
                h = torch.mul(output, tanh, out=h_out)
        ctx.save_for_backward(acts, h_in, c_in, tanh_c, weight)
        ctx.resets, ctx.dtype = resets, gates.dtype
        return out, h.clone(), c

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_last: Tensor, d_c: Tensor) -> tuple[Tensor | None, ...]:
        acts, h_in, c_in, tanh_c, weight = ctx.saved_tensors
        steps, rows, size = h_in.shape
        with torch.autocast("cpu", enabled=False):
            in_, forget, cell, output = acts.chunk(4, -1)
            into_c = output * (1 - tanh_c * tanh_c)
            of_c = torch.stack(
                [cell * in_ * (1 - in_), c_in * forget * (1 - forget), in_ * (1 - cell * cell)],
                2,
            )
            of_output = tanh_c * output * (1 - output)
            d_gates = acts.new_empty(steps, rows, 4, size)
            to_state = _product_with(weight, steps)
            d_h = d_last
            for d_step, d_first, d_output, factor, last_factor, into, kept, of_out, is_reset in zip(
                *(
                    reversed(x.unbind())
                    for x in (d_gates, d_gates[:, :, :3], d_gates[:, :, 3], of_c, of_output, into_c, forget, d_out)
                ),
                reversed(ctx.resets),
                strict=True,
            ):
                d_h = d_h + of_out
                d_c = torch.addcmul(d_c, d_h, into)
                torch.mul(d_c.unsqueeze(1), factor, out=d_first)
                torch.mul(d_h, last_factor, out=d_output)
                d_h = _kept(to_state(d_step.view(rows, -1)), is_reset)
                d_c = _kept(d_c * kept, is_reset)
            d_gates = d_gates.view(steps, rows, -1)
            d_weight, d_bias = _weight_gradients(d_gates, h_in, weight)
        return d_gates.to(ctx.dtype), d_h, d_c, None, d_weight, d_bias


def _start(into: Tensor, state: Tensor, reset: Tensor | None) -> None:
    # Filled instead of multiplied, because the discarded state may be NaN.
    into.copy_(state if reset is None else state.masked_fill(reset, 0.0))


def _kept(gradient: Tensor, reset: Tensor | None) -> Tensor:
    return gradient if reset is None else gradient.masked_fill(reset, 0.0)


def _product_with(matrix: Tensor, calls: int) -> Callable[[Tensor], Tensor]:
    """``x -> x @ matrix`` in float32, computed in the matrix's dtype, for few rows and as many calls.

    Such a product takes as long as reading the matrix, so memory order matters (docs/journal): float32 is read
    fastest as the right factor along its rows, bfloat16 as the left factor along its rows.
    """
    worth_a_copy = calls >= _WORTH_A_COPY
    if matrix.dtype == torch.float32:
        right = matrix.contiguous() if worth_a_copy else matrix
        return (lambda x: x @ right) if right.is_contiguous() else lambda x: linear(x, matrix.t(), None)
    left = matrix.t().contiguous() if worth_a_copy else matrix.t()
    if left.is_contiguous():
        return lambda x: wide(linear(x.to(left.dtype), left, None))
    return lambda x: wide(x.to(matrix.dtype) @ matrix)


def _weight_gradients(d_recurrent: Tensor, h_in: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    flat = d_recurrent.flatten(0, 1)
    d_weight = flat.to(weight.dtype).t() @ h_in.flatten(0, 1).to(weight.dtype)
    return d_weight, flat.sum(0)
