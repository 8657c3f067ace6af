"""What all convolutions of a network have in common: their memory format, and statistics of image brightness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rollmill.models.encoders import ImageInput
from rollmill.models.running_moments import Sum


def centred_layers(network: nn.Module) -> list[ImageInput]:
    """Layers that centre images, including those of a user's own encoder."""
    return [layer for layer in network.modules() if isinstance(layer, ImageInput) and layer.moments is not None]


@contextmanager
def observing_pixel_levels(network: nn.Module, **ranks: Sum) -> Iterator[None]:
    """Context manager: merge every image that reaches a centring layer into that layer's statistics.

    Hooks in a forward pass see images after any layer between the observation and the centring layer.

    Args:
        network: Any module.
        **ranks: See :meth:`rollmill.models.running_moments.RunningMeanStd.update`.
    """

    def observe(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, ImageInput)
        layer.update_pixel_level(arguments[0], **ranks)

    hooks = [layer.register_forward_pre_hook(observe) for layer in centred_layers(network)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


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
