"""The residual network of IMPALA (Espeholt et al. 2018, figure 3 right), following Cleanba."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from rollmill.models.config import ModelConfig
from rollmill.models.encoders import EntryEncoder, ImageInput
from rollmill.models.initialisation import activation_module, initialise_conv, initialise_dense
from rollmill.models.linear import Dense
from rollmill.specs import ArraySpec


class _Residual(nn.Module):
    def __init__(self, channels: int, config: ModelConfig) -> None:
        super().__init__()
        self.first = initialise_conv(nn.Conv2d(channels, channels, 3, padding=1), config.init, published="lecun")
        self.second = initialise_conv(nn.Conv2d(channels, channels, 3, padding=1), config.init, published="lecun")
        self.activation = activation_module(config.activation, "relu")

    def forward(self, x: Tensor) -> Tensor:
        # Activations work in place, and the skip connection and the preceding layer still need x.
        residual: Tensor = self.second(self.activation(self.first(self.activation(x.clone()))))
        return x + residual


class _Stage(nn.Module):
    def __init__(self, conv: nn.Conv2d, config: ModelConfig) -> None:
        super().__init__()
        self.conv = initialise_conv(conv, config.init, published="lecun")
        self.residuals = nn.Sequential(_Residual(conv.out_channels, config), _Residual(conv.out_channels, config))

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.residuals(_max_pool_same(self.conv(x)))
        return maps


class ImpalaEncoder(EntryEncoder):
    """Three stages of convolution, max-pooling and two residual blocks; ReLU; a dense layer with ReLU.

    Args:
        spec: The image entry.
        dense_size: Width of the dense layer; 256 in the paper.
        config: Activation and initialisation.
        channels: Width of each stage; (16, 32, 32) in the paper.
    """

    def __init__(
        self, spec: ArraySpec, dense_size: int, config: ModelConfig, *, channels: tuple[int, ...] = (16, 32, 32)
    ) -> None:
        super().__init__(dense_size)
        first = ImageInput(spec, channels[0], 3, padding=1, centred=config.centres_pixels)
        height, width = first.image_size
        convolutions: list[nn.Conv2d] = [first]
        convolutions += [nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(channels)]
        self.stages = nn.Sequential(*(_Stage(conv, config) for conv in convolutions))
        for _ in channels:
            height, width = -(-height // 2), -(-width // 2)
        self.activation = activation_module(config.activation, "relu")
        self.dense = initialise_dense(Dense(height * width * channels[-1], dense_size), config.init)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` or ``[N, H, W, C]`` to ``[N, output_size]``."""
        maps = self.activation(self.stages(x))
        features: Tensor = self.activation(self.dense(maps.permute(0, 2, 3, 1).flatten(1)))
        return features


def _max_pool_same(x: Tensor) -> Tensor:
    """3 x 3 max-pooling with stride 2 and TensorFlow's SAME padding: (0, 1) for even sizes, (1, 1) for odd ones.

    ``ceil_mode`` lets the last window of an even side cross the edge, which pads that side without a copy.
    """
    padding = (x.shape[-2] % 2, x.shape[-1] % 2)
    return functional.max_pool2d(x, 3, 2, padding, ceil_mode=True)
