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
from torch.nn import functional

from rollmill.models.linear import linear

__all__ = ["perceptron"]

_Layer = Callable[[Tensor, Tensor, Tensor], Tensor]
_Product = Callable[[Tensor, Tensor], Tensor]

# Products of fewer columns take up to four times as long, on a CPU, as those of fewer rows.
_FEW = 64
# Perceptrons that a gradient goes through in fewer of their rows are worth taking these rows out.
_SPARSE = 0.75

_NARROW = "medium"
"""torch's word for products of float32 whose factors are rounded to bfloat16, or to TF32 on CUDA."""


def perceptron(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """``W_L f(... f(W_1 x + b_1) ...) + b_L``.

    Autocast is respected by all layers but the last, in its own way: what is multiplied is rounded to bfloat16 (TF32 on
    CUDA) inside of the products, while their sums, and all tensors, stay in float32. That is more exact than casting
    tensors, and on a CPU faster, because nothing is cast in passes of its own. What cannot do so (on x86, CPUs without
    AMX) multiplies in float32.

    Args:
        x: float ``[N, F]``; of several perceptrons, all get the same.
        weights: Of each layer, ``[out, in]``, or ``[E, out, in]`` for E perceptrons.
        biases: ``[out]``, or ``[E, 1, out]``.
        activation: f; None is ReLU, by the written out passes.

    Returns:
        ``[N, out]`` or ``[E, N, out]``, in the precision of the weights.
    """
    x = x.to(weights[0].dtype)
    device = x.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return _perceptron(x, _NARROW, weights, biases, activation)
    return _perceptron(x, torch.get_float32_matmul_precision(), weights, biases, activation)


def _perceptron(
    x: Tensor,
    inner: str,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    if activation is None and torch.is_grad_enabled():
        # torch leaves Function.apply untyped.
        return cast("Tensor", _Perceptron.apply(x, inner, *weights, *biases))  # type: ignore[no-untyped-call]
    return _layers(x, inner, weights, biases, linear, activation or torch.relu_)[-1]


def _layers(
    x: Tensor,
    inner: str,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    layer: _Layer,
    activation: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """The input of each layer, and the output; ``inner`` is the precision of the hidden layers' products."""
    if weights[0].dim() == 3:
        x, layer = x.expand(len(weights[0]), *x.shape), _batched
    inputs = [x]
    outer = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(inner)
    try:
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            inputs.append(activation(layer(inputs[-1], weight, bias)))
    finally:
        torch.set_float32_matmul_precision(outer)
    return [*inputs, layer(inputs[-1], weights[-1], biases[-1])]


def _batched(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    # A sum in place after the product: baddbmm would first copy the bias into each row.
    return torch.bmm(x, weight.mT).add_(bias)


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inner: str, *parameters: Tensor) -> Tensor:
        layers = len(parameters) // 2
        # Not our linear(): what it gives may lie across in memory, and the gradients would go through it slowly.
        *inputs, output = _layers(x, inner, parameters[:layers], parameters[layers:], functional.linear, torch.relu_)
        ctx.save_for_backward(*inputs, *parameters[:layers])
        ctx.layers, ctx.inner = layers, inner
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        outer = torch.get_float32_matmul_precision()
        try:
            return _gradients(ctx, gradient)
        finally:
            torch.set_float32_matmul_precision(outer)


def _through_rows(
    rows: Sequence[Tensor], gradient: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor], inner: str
) -> Tensor:
    """The gradient of x alone, ``[N, in]``, which goes through these rows of each perceptron.

    Of the least of several critics' values each row's goes through one of them: half of the work for two.
    """
    of_x = gradient.new_zeros(gradient.shape[1], weights[0].shape[-1])
    outer = torch.get_float32_matmul_precision()
    for member, chosen in enumerate(rows):
        of_member = gradient[member].index_select(0, chosen)
        for layer in reversed(range(len(weights))):
            torch.set_float32_matmul_precision(outer if layer == len(weights) - 1 else inner)
            of_member = _times(of_member, weights[layer][member], torch.mm)
            if layer > 0:
                x = inputs[layer][member].index_select(0, chosen)
                torch.ops.aten.threshold_backward.grad_input(of_member, x, 0, grad_input=of_member)
        of_x.index_add_(0, chosen, of_member)
    return of_x


def _times(gradient: Tensor, weight: Tensor, product: _Product) -> Tensor:
    """``gradient @ weight``, ``[..., N, in]``."""
    if weight.shape[-2] == 1:  # an outer product: there is nothing to add up
        return gradient * weight
    if gradient.device.type == "cpu" and weight.shape[-1] < min(_FEW, weight.shape[-2]):
        return product(weight.mT, gradient.mT).mT
    return product(gradient, weight)


def _weight_gradient(gradient: Tensor, x: Tensor, product: _Product) -> Tensor:
    """``gradient.mT @ x``, ``[..., out, in]``."""
    if x.device.type == "cpu" and x.shape[-1] < min(_FEW, gradient.shape[-1]):
        return product(x.mT, gradient).mT
    return product(gradient.mT, x)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    layers, saved, needed = ctx.layers, ctx.saved_tensors, ctx.needs_input_grad
    inputs, weights = saved[:layers], saved[layers:]
    is_batched = weights[0].dim() == 3
    if is_batched and not any(needed[2:]) and gradient.device.type == "cpu":
        rows = [member.any(-1).nonzero().squeeze(-1) for member in gradient]
        if sum(map(len, rows)) <= _SPARSE * len(rows) * gradient.shape[1]:
            return _through_rows(rows, gradient, inputs, weights, ctx.inner), None, *[None] * 2 * layers
    product = torch.bmm if is_batched else torch.mm
    of_weights: list[Tensor | None] = [None] * layers
    of_biases: list[Tensor | None] = [None] * layers
    for layer in reversed(range(layers)):
        if layer == layers - 2:
            torch.set_float32_matmul_precision(ctx.inner)
        x, weight = inputs[layer], weights[layer]
        if needed[2 + layer]:
            of_weights[layer] = _weight_gradient(gradient, x, product)
        if needed[2 + layers + layer]:
            of_biases[layer] = gradient.sum(-2, keepdim=is_batched)
        if layer == 0 and not needed[0]:
            return None, None, *of_weights, *of_biases
        gradient = _times(gradient, weight, product)
        if layer > 0:
            torch.ops.aten.threshold_backward.grad_input(gradient, x, 0, grad_input=gradient)
    return gradient.sum(0) if is_batched else gradient, None, *of_weights, *of_biases
