"""Hidden and output layers of actors, critics and Q-networks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from rollmill.models.config import ModelConfig
from rollmill.models.initialisation import activation_module, initialise_dense
from rollmill.models.perceptron import perceptron


class MLP(nn.Module):
    """One perceptron, or several of the same shape as batched matrix products.

    The hidden layers respect autocast; the last layer computes in float32.

    Args:
        inputs: Width.
        outputs: Width.
        config: Widths, activation (``"auto"`` is ReLU) and initialisation.
        sizes: Widths of the hidden layers; None is ``mlp_sizes``.
        members: Number E of independently initialised perceptrons; None is one, without an axis E.
        gain: Gain of the last layer's orthogonal initialisation.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        config: ModelConfig,
        *,
        sizes: tuple[int, ...] | None = None,
        members: int | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = config.mlp_sizes if sizes is None else sizes
        widths = (inputs, *sizes, outputs)
        for index, (before, size) in enumerate(pairwise(widths)):
            gains = {"gain": gain} if index == len(sizes) else {}
            layers = [initialise_dense(nn.Linear(before, size), config.init, **gains) for _ in range(members or 1)]
            # Copied one by one: on the meta device, torch.stack imports PyTorch's compiler.
            weight, bias = torch.empty(len(layers), size, before), torch.empty(len(layers), 1, size)
            for member, layer in enumerate(layers):
                weight[member].copy_(layer.weight.detach())
                bias[member, 0].copy_(layer.bias.detach())
            self.register_parameter(f"weight_{index}", nn.Parameter(weight if members else weight[0]))
            self.register_parameter(f"bias_{index}", nn.Parameter(bias if members else bias[0, 0]))
        self.activation: nn.Module | None = None
        if config.activation not in ("auto", "relu"):
            self.activation = activation_module(config.activation, "relu")

    def forward(self, x: Tensor, *, frozen: bool = False, members: int | None = None) -> Tensor:
        """Map ``[N, inputs]`` to ``[N, outputs]``, or ``[E, N, outputs]`` with members.

        Args:
            x: Float.
            frozen: Whether the weights get no gradient.
            members: Number of leading perceptrons to evaluate; None is all.
        """
        # In order of registration; looking each up by name takes as long as a small product.
        parameters: list[Tensor] = list(self._parameters.values())  # type: ignore[arg-type]  # none of them is None
        if frozen:
            parameters = [parameter.detach() for parameter in parameters]
        if members is not None:
            parameters = [parameter[:members] for parameter in parameters]
        return perceptron(x, parameters[0::2], parameters[1::2], self.activation)
