"""What the first convolutions of a network, wherever they stand in it, learn of the brightness of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from rollmill.models.encoders import ImageInput
from rollmill.models.running_moments import Sum

__all__ = ["centred_layers", "observing_pixel_levels"]


def centred_layers(network: nn.Module) -> list[ImageInput]:
    """The layers that centre pictures, those of a user's own encoder included."""
    return [layer for layer in network.modules() if isinstance(layer, ImageInput) and layer.moments is not None]


@contextmanager
def observing_pixel_levels(network: nn.Module, **ranks: Sum) -> Iterator[None]:
    """Each picture that meanwhile comes to a layer that centres is merged into what it is centred by.

    Whatever stands between an observation and that layer is run through, which no other way knows of.

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
