"""The memory format of images and convolutions."""

from __future__ import annotations

import torch
from torch import nn

from rollmill.models.encoders import ImageInput

__all__ = ["has_convolutions", "set_channels_last"]


def has_convolutions(network: nn.Module) -> bool:
    """Whether a network has convolutions, so that the memory format matters."""
    return any(isinstance(module, nn.Conv2d) for module in network.modules())


def set_channels_last(network: nn.Module, enabled: bool) -> None:
    """Keep images and convolution weights in channels_last or channels-first memory."""
    for module in network.modules():
        if isinstance(module, ImageInput):
            module.channels_last = enabled
        if isinstance(module, nn.Conv2d):
            layout = torch.channels_last if enabled else torch.contiguous_format
            module.weight.data = module.weight.data.contiguous(memory_format=layout)
