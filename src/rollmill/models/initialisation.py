"""Initial weights, with their sources."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rollmill.models.activations import ELU, ReLU
from rollmill.models.config import Activation, Initialisation

# Standard deviation of a standard normal truncated to (-2, 2): JAX's LeCun-normal divides by it.
_TRUNCATED_STD = 0.87962566103423978

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": ReLU,
    "elu": ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}


def activation_module(choice: Activation, published: Activation) -> nn.Module:
    """Return the configured activation; ``"auto"`` selects ``published``."""
    return _ACTIVATIONS[published if choice == "auto" else choice]()


@torch.no_grad()
def _orthogonal(weight: Tensor, gain: float) -> None:
    nn.init.orthogonal_(weight, gain)


@torch.no_grad()
def initialise_conv(layer: nn.Conv2d, init: Initialisation, *, published: Initialisation = "orthogonal") -> nn.Conv2d:
    """Orthogonal with gain sqrt(2) (CleanRL), or LeCun-normal (Flax' default, as in Cleanba's IMPALA); zero bias."""
    chosen = published if init == "auto" else init
    if chosen == "torch":
        return layer
    if chosen == "lecun":
        fan_in = layer.weight[0].numel()
        std = math.sqrt(1.0 / fan_in) / _TRUNCATED_STD
        nn.init.trunc_normal_(layer.weight, std=std, a=-2.0 * std, b=2.0 * std)
    else:
        _orthogonal(layer.weight, math.sqrt(2.0))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


@torch.no_grad()
def initialise_dense(layer: nn.Linear, init: Initialisation, *, gain: float = math.sqrt(2.0)) -> nn.Linear:
    """Orthogonal with the given gain and zero bias (CleanRL, Cleanba), or PyTorch's own."""
    if init == "torch":
        return layer
    _orthogonal(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
