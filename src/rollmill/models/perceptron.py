"""Perceptrons, one or several of the same shape side by side, whose passes through ReLU layers are one node of a graph.

Where a layer takes a tenth of a millisecond, what automatic differentiation does around each operation is a third of
the time. Here the passes are written out: activations and their gradients are computed in place, and the gradients of
weights that are given detached are not formed, so that an actor's gradient goes through its critics for the price of
their inputs' gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rollmill.models.linear import linear

__all__ = ["perceptron"]


def perceptron(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """``W_L f(... f(W_1 x + b_1) ...) + b_L``.

    Autocast is respected by all layers but the last, which computes in the weights' own precision.

    Args:
        x: float ``[N, F]``; of several perceptrons, all get the same.
        weights: Of each layer, ``[out, in]``, or ``[E, out, in]`` for E perceptrons.
        biases: ``[out]``, or ``[E, 1, out]``.
        activation: f; None is ReLU, by the written out passes.

    Returns:
        ``[N, out]`` or ``[E, N, out]``, in the precision of the weights.
    """
    device = x.device.type
    narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weights[0].dtype
    if activation is None and torch.is_grad_enabled():
        # torch leaves Function.apply untyped.
        return cast("Tensor", _Perceptron.apply(x, narrow, *weights, *biases))  # type: ignore[no-untyped-call]
    return _forward(x, narrow, weights, biases, activation or torch.relu_)[-1]


def _forward(
    x: Tensor,
    narrow: torch.dtype,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: Callable[[Tensor], Tensor] = torch.relu_,
) -> list[Tensor]:
    """The input of each layer, and the output."""
    if narrow != weights[0].dtype:
        with torch.autocast(x.device.type, enabled=False):
            inner = [weight.to(narrow) for weight in weights[:-1]], [bias.to(narrow) for bias in biases[:-1]]
            return _layers(x.to(narrow), (*inner[0], weights[-1]), (*inner[1], biases[-1]), activation)
    return _layers(x.to(narrow), weights, biases, activation)


def _layers(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    if weights[0].dim() == 3:
        x = x.expand(len(weights[0]), *x.shape)
    inputs = [x]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs.append(activation(_layer(inputs[-1], weight, bias)))
    return [*inputs, _layer(inputs[-1].to(weights[-1].dtype), weights[-1], biases[-1])]


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    # A sum in place after the product: baddbmm would first copy the bias into each row.
    return linear(x, weight, bias) if weight.dim() == 2 else torch.bmm(x, weight.mT).add_(bias)


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, narrow: torch.dtype, *parameters: Tensor) -> Tensor:
        layers = len(parameters) // 2
        # The gradients need what BLAS reads fastest, which is not what linear() may give without a gradient.
        *inputs, output = _forward(x, narrow, parameters[:layers], parameters[layers:])
        ctx.save_for_backward(*inputs, *parameters)
        ctx.layers, ctx.narrow, ctx.input_dtype = layers, narrow, x.dtype
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layers, saved = ctx.layers, ctx.saved_tensors
        inputs, weights, biases = saved[:layers], saved[layers : 2 * layers], saved[2 * layers :]
        needed = ctx.needs_input_grad
        is_batched = weights[0].dim() == 3
        product = torch.bmm if is_batched else torch.mm
        of_weights: list[Tensor | None] = [None] * layers
        of_biases: list[Tensor | None] = [None] * layers
        for layer in reversed(range(layers)):
            x, weight = inputs[layer], weights[layer]
            narrow = weight.dtype if layer == layers - 1 else ctx.narrow
            if needed[2 + layer]:
                of_weights[layer] = product(gradient.mT, x.to(narrow)).to(weight.dtype)
            if needed[2 + layers + layer]:
                of_biases[layer] = gradient.sum(-2, keepdim=is_batched, dtype=biases[layer].dtype)
            if layer == 0 and not needed[0]:
                return None, None, *of_weights, *of_biases
            gradient = product(gradient, weight.to(narrow))
            if layer > 0:
                gradient = gradient.to(x.dtype)
                torch.ops.aten.threshold_backward.grad_input(gradient, x, 0, grad_input=gradient)
        of_input = gradient.sum(0) if is_batched else gradient
        return of_input.to(ctx.input_dtype), None, *of_weights, *of_biases
