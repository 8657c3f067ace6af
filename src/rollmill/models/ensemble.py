"""Multi-layer perceptrons side by side: several of the same shape, each layer one batched matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rollmill.models.config import Activation, Initialisation
from rollmill.models.initialisation import activation_module, initialise_dense
from rollmill.models.precision import in_full_precision

__all__ = ["EnsembleLinear", "EnsembleMLP"]


class EnsembleLinear(nn.Module):
    """E linear layers: ``[E, N, in]`` to ``[E, N, out]``.

    Args:
        members: E.
        inputs: Width.
        outputs: Width.
        init: Of each member, independently of the others.
        gain: Of an orthogonal one.
    """

    def __init__(
        self, members: int, inputs: int, outputs: int, init: Initialisation, *, gain: float = math.sqrt(2.0)
    ) -> None:
        super().__init__()
        layers = [initialise_dense(nn.Linear(inputs, outputs), init, gain=gain) for _ in range(members)]
        # Transposed, so that the product reads the matrix as it lies.
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().t() for layer in layers]).contiguous())
        self.bias = nn.Parameter(torch.stack([layer.bias.detach().unsqueeze(0) for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        """``[E, N, in]``, or ``[N, in]`` for all members alike, to ``[E, N, out]``."""
        if x.dim() == 2:
            x = x.expand(len(self.weight), *x.shape)
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleMLP(nn.Module):
    """E perceptrons. Hidden layers respect autocast, the last one computes in float32.

    Args:
        members: E.
        inputs: Width.
        sizes: Widths of the hidden layers.
        outputs: Width.
        activation: ``"auto"`` is ReLU.
        init: Of all layers; the last one's orthogonal gain is 1.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        sizes: Sequence[int],
        outputs: int,
        *,
        activation: Activation = "auto",
        init: Initialisation = "torch",
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, size in pairwise((inputs, *sizes)):
            layers += [EnsembleLinear(members, before, size, init), activation_module(activation, "relu")]
        self.hidden = nn.Sequential(*layers)
        self.output = EnsembleLinear(members, (inputs, *sizes)[-1], outputs, init, gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, inputs]`` to ``[E, N, outputs]``."""
        result: Tensor = in_full_precision(self.output, self.hidden(x.to(self.output.weight.dtype)))
        return result
