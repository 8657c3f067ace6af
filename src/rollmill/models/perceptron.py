"""One or several perceptrons of the same shape whose ReLU layers are one node of the autograd graph.

Where a layer takes a tenth of a millisecond, autograd's overhead for each operation is a third of the time. Here the
passes are written out: activations and their gradients are computed in place, and detached weights get no gradients, so
that an actor's gradient passes through its critics at the cost of their inputs' gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rollmill.models.linear import linear

_Layer = Callable[[Tensor, Tensor, Tensor], Tensor]
_Product = Callable[[Tensor, Tensor], Tensor]

# On a CPU, products with few columns take up to four times as long as products with few rows.
_FEW = 64
# If the gradient passes through a smaller share of the rows, it pays to select these rows first.
_SPARSE = 0.75

_NARROW = "medium"
"""torch's name for float32 products whose factors are rounded to bfloat16, or to TF32 on CUDA."""


def perceptron(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """``W_L f(... f(W_1 x + b_1) ...) + b_L``.

    All layers but the last respect autocast: factors are rounded to bfloat16 (TF32 on CUDA) inside the products, while
    sums and all tensors stay in float32. That is more exact than casting tensors, and on a CPU faster, because it needs
    no passes for casts. x86 CPUs without AMX multiply in float32.

    Args:
        x: float ``[N, F]``, the input of every perceptron.
        weights: For each layer, ``[out, in]``, or ``[E, out, in]`` for E perceptrons.
        biases: ``[out]``, or ``[E, 1, out]``.
        activation: f; None is ReLU, with the written-out passes.

    Returns:
        ``[N, out]`` or ``[E, N, out]``, in the dtype of the weights.
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
        # torch does not annotate Function.apply.
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
    """Inputs of the layers and the output; ``inner`` is the precision of the hidden layers' products."""
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
    # Adds in place, because baddbmm would first copy the bias into each row.
    return torch.bmm(x, weight.mT).add_(bias)


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inner: str, *parameters: Tensor) -> Tensor:
        layers = len(parameters) // 2
        # Not our linear(): its result may be transposed in memory, which slows the gradients down.
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
    """Return the gradient of x only, ``[N, in]``, through the given rows of each perceptron.

    With the minimum of several critics, each row's gradient passes through one of them: half of the work for two.
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
    if weight.shape[-2] == 1:  # an outer product
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
