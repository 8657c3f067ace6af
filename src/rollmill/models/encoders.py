"""Encoders that map one observation entry to one feature vector.

Images
======
An image entry is ``[N, C, H, W]`` or ``[N, H, W, C]`` as its spec says (:func:`channels_first`). uint8 pixels are cast
on the device to the compute dtype (exact in bfloat16, which holds every integer up to 256), and the factor 1/255 is
folded into the first convolution's weight, which avoids a pass over the pixels. The cast writes channels_last memory,
on which convolutions are fastest.

An entry that is uint8 in its spec but arrives as float32 has been normalised (``model.normalise_images``): it has the
same axes and is not scaled again.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.models.config import Activation, ModelConfig
from rollmill.models.errors import UnfitModelError
from rollmill.models.initialisation import activation_module, initialise_conv, initialise_dense
from rollmill.models.linear import Dense
from rollmill.models.running_moments import RunningMeanStd, Sum
from rollmill.models.windows import convolve_windows
from rollmill.native import gather_images
from rollmill.specs import PICTURE_SIDE, ArraySpec

_COLOURS = (1, 3)
_LARGE = 36  # the smallest side on which the Nature CNN's three convolutions leave at least one position

# The native cast's dtypes; NumPy has no bfloat16.
_NATIVE_CAST = {torch.float32: torch.float32, torch.bfloat16: torch.uint16}


def channels_first(spec: ArraySpec) -> bool:
    """Whether the first of three axes holds the channels.

    An axis of size 1 or 3 at one end is grey or colour. Otherwise an image's sides are the two neighbouring axes with
    the most similar sizes, because boards and grids may have more planes than rows. On a tie the smaller axis is
    channels.
    """
    first, middle, last = spec.shape
    if (first in _COLOURS) != (last in _COLOURS) and middle not in _COLOURS:
        return first in _COLOURS
    if (alike := max(first, middle) * min(middle, last)) != (other := max(middle, last) * min(first, middle)):
        return other < alike
    return first < last


def is_grid(spec: ArraySpec) -> bool:
    """Whether an entry has the three axes of an image and at least 3 x 3 positions."""
    if len(spec.shape) != 3:
        return False
    height, width = spec.shape[1:] if channels_first(spec) else spec.shape[:2]
    return min(height, width) >= 3


def is_large_image(spec: ArraySpec) -> bool:
    """Whether an entry is a grid of at least 36 x 36 positions."""
    return is_grid(spec) and min(spec.shape[1:] if channels_first(spec) else spec.shape[:2]) >= _LARGE


def is_small_image(spec: ArraySpec) -> bool:
    """Whether an entry is an image of bytes, but too small for a picture whose numbers are scaled by 1/255."""
    if not spec.is_image or spec.is_categorical:
        return False
    image = as_image(spec)
    return min(image.shape[1:] if channels_first(image) else image.shape[:2]) < PICTURE_SIDE


def as_image(spec: ArraySpec) -> ArraySpec:
    """Return ``spec`` as an image of three axes if it is a grey image or a stack; else ``spec`` itself.

    A grey image is ``[H, W]``; a stack of images, ``[S, H, W, C]`` or ``[S, C, H, W]``, becomes one image of S * C
    channels.
    """
    if len(spec.shape) == 2 and spec.is_image:
        return replace(spec, shape=(1, *spec.shape))
    if len(spec.shape) != 4:
        return spec
    frames, *image = spec.shape
    if channels_first(replace(spec, shape=tuple(image))):
        return replace(spec, shape=(frames * image[0], *image[1:]))
    return replace(spec, shape=(*image[:2], frames * image[2]))


class EntryEncoder(nn.Module):
    """An encoder of one observation entry: ``forward([N, ...]) -> [N, output_size]``."""

    output_size: int

    def __init__(self, output_size: int) -> None:
        super().__init__()
        self.output_size = output_size


class ImageInput(nn.Conv2d):
    """A first convolution that reads pixels as stored (see the module's docstring).

    With ``centred``, the bias subtracts the typical brightness of each channel, that of the background: the running
    mean of the images' medians, or with "each" that of the image itself: images of several tasks have different
    backgrounds. Otherwise the common part of the gradients of a filter's weights adds up over all of
    them, a few steps of Adam push most filters below zero for every image, and a ReLU then stays there
    (docs/journal/2026-11.md).

    Args:
        spec: The image entry.
        out_channels: As in ``nn.Conv2d``.
        kernel_size: As in ``nn.Conv2d``.
        stride: As in ``nn.Conv2d``.
        padding: As in ``nn.Conv2d``.
        centred: Whether uint8 images are centred, or "each" by its own mean; categories never are.
        by_windows: Whether it is computed by :func:`rollmill.models.windows.convolve_windows`, which has no padding.

    Attributes:
        channels_last: Whether the cast writes channels_last memory. True unless a measurement says otherwise.
        moments: Statistics of each channel's median brightness, ``[C]``, whose mean is subtracted from uint8 images
            (but not from their padding), or None.
        pixel_scale: Factor folded into the weight for integer pixels: 1/255 for uint8, else the inverse of their
            highest value, or 1 for categories: entries declared up to at most 31, or on a grid too small for an image.
            Floats are not scaled.
    """

    def __init__(
        self,
        spec: ArraySpec,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        *,
        centred: bool | Literal["each"] = False,
        by_windows: bool = False,
    ) -> None:
        assert not (by_windows and padding)
        self.channels_first = channels_first(spec)
        channels = spec.shape[0] if self.channels_first else spec.shape[-1]
        super().__init__(channels, out_channels, kernel_size, stride, padding)
        self.is_bytes = spec.dtype == "uint8"
        self.image_size = spec.shape[1:] if self.channels_first else spec.shape[:2]
        is_picture = not spec.is_categorical and min(self.image_size) >= PICTURE_SIDE
        self.pixel_scale = 1.0 / _highest_pixel(spec) if is_picture else 1.0
        is_centred = bool(centred) and is_picture and self.is_bytes
        self.moments = RunningMeanStd((channels,)) if is_centred and centred != "each" else None
        self.centres_each = is_centred and centred == "each"
        self.channels_last = True
        self.by_windows = by_windows
        self._folded: tuple[Tensor, Tensor | None] | None = None

    def fold(self, dtype: torch.dtype) -> None:
        """Keep the weights as pixels need them, in autocast's dtype, for all passes until the next call.

        A forward pass for few rows spends up to a tenth of its time on preparing these weights. Call it again when
        weights or moments have changed. Nothing happens where :attr:`can_be_folded` is False.
        """
        if self.can_be_folded:
            weight, bias = self._of_pixels()
            self._folded = weight.to(dtype), None if bias is None else bias.to(dtype)

    @property
    def can_be_folded(self) -> bool:
        """Whether the weights do not depend on the image."""
        return not self.centres_each

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` or ``[N, H, W, C]`` to the convolution's output."""
        weight, bias = self.weight, self.bias
        if self.pixel_scale == 1.0 or not x.is_floating_point():
            weight, bias = self._of_pixels() if self._folded is None else self._folded
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        centres_each = self.centres_each and not x.is_floating_point()
        x = self._cast(x, dtype)
        if self.by_windows:
            out = convolve_windows(x, weight, bias, self.stride)
        else:
            out = functional.conv2d(x, weight, bias, self.stride, self.padding)
        if centres_each:
            # As if the mean had been subtracted from the image, and from its padding, too.
            level = x.mean((2, 3)).to(weight.dtype) @ weight.sum((2, 3)).t()
            out = out - level.to(out.dtype)[:, :, None, None]
        return out

    def _of_pixels(self) -> tuple[Tensor, Tensor | None]:
        """Weights and bias for integer pixels."""
        if self.pixel_scale == 1.0:
            return self.weight, self.bias
        weight, bias = self.weight * self.pixel_scale, self.bias
        if self.moments is not None:
            assert bias is not None
            bias = bias - (weight.sum((2, 3)) * self.moments.shift).sum(1)
        return weight, bias

    def update_pixel_level(self, x: Tensor, **ranks: Sum) -> None:
        """Merge the medians of raw ``[N, C, H, W]`` or ``[N, H, W, C]`` into ``moments``, if there are any.

        ``ranks`` are those of :meth:`rollmill.models.running_moments.RunningMeanStd.update`.
        """
        if self.moments is not None and not x.is_floating_point():
            channels = x.flatten(2) if self.channels_first else x.flatten(1, 2).transpose(1, 2)
            # torch 2.13's median of bytes is wrong if a stride is 0.
            self.moments.update(channels.contiguous().median(-1).values, None, **ranks)

    def _cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """``[N, C, H, W]`` or ``[N, H, W, C]`` to ``[N, C, H, W]`` of ``dtype``."""
        if (
            self.channels_last
            and x.dtype == torch.uint8
            and x.device.type == "cpu"
            and dtype in _NATIVE_CAST
            and not torch.compiler.is_compiling()
        ):
            # torch's own cast of bytes takes up to a fifth of the forward pass on a CPU.
            out = torch.empty((len(x), *self.image_size, self.in_channels), dtype=dtype)
            gather_images(
                out.view(_NATIVE_CAST[dtype]).numpy(),
                x.contiguous().numpy(),
                np.arange(len(x)),
                channels_first=self.channels_first,
                scale=1.0,
            )
            return out.permute(0, 3, 1, 2)
        if not self.channels_first:
            x = x.permute(0, 3, 1, 2)
        return x.to(dtype, memory_format=torch.channels_last if self.channels_last else torch.contiguous_format)


class ConvEncoder(EntryEncoder):
    """Convolutions and a dense layer, each followed by an activation.

    Args:
        spec: The image entry.
        convolutions: ``(channels, kernel, stride)`` of each.
        dense_size: Width of the dense layer.
        config: Activation and initialisation.
        published: The activation that ``"auto"`` selects.
        padding: Padding of every convolution.
        by_windows: As in :class:`ImageInput`, for the first one.

    Raises:
        ValueError: The image is too small for the convolutions.
    """

    def __init__(
        self,
        spec: ArraySpec,
        convolutions: tuple[tuple[int, int, int], ...],
        dense_size: int,
        config: ModelConfig,
        *,
        published: Activation = "relu",
        padding: int = 0,
        by_windows: bool = False,
    ) -> None:
        super().__init__(dense_size)
        layers: list[nn.Module] = []
        channels, kernel, stride = convolutions[0]
        first = ImageInput(
            spec, channels, kernel, stride, padding, centred=config.centres_pixels, by_windows=by_windows
        )
        height, width = first.image_size
        layers += [initialise_conv(first, config.init), activation_module(config.activation, published)]
        height, width = _conv_size(height, width, kernel, stride, padding)
        for (before, _, _), (channels, kernel, stride) in pairwise(convolutions):
            conv = nn.Conv2d(before, channels, kernel, stride, padding)
            layers += [initialise_conv(conv, config.init), activation_module(config.activation, published)]
            height, width = _conv_size(height, width, kernel, stride, padding)
        if min(height, width) < 1:
            raise UnfitModelError(
                f"an image of shape {spec.shape} is too small for the convolutions {convolutions}; "
                "use encoder='small' or encoder='mlp', or larger images"
            )
        self.convolutions = nn.Sequential(*layers)
        self.dense = initialise_dense(Dense(height * width * channels, dense_size), config.init)
        self.activation = activation_module(config.activation, published)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` or ``[N, H, W, C]`` to ``[N, output_size]``."""
        return _dense_head(self.convolutions(x), self.dense, self.activation)


class BoardEncoder(EntryEncoder):
    """One convolution whose windows hold whole lines of a board, and two dense layers.

    The second dense layer sees what several lines have in common. With it connect four is learned from half as many
    turns (docs/journal/2026-11.md).

    Args:
        spec: The board.
        channels: Of the convolution.
        window: Height and width of its windows.
        dense_size: Width of both dense layers.
        config: Activation and initialisation.
    """

    def __init__(self, spec: ArraySpec, channels: int, window: int, dense_size: int, config: ModelConfig) -> None:
        super().__init__(dense_size)
        self.lines = ConvEncoder(spec, ((channels, window, 1),), dense_size, config, by_windows=True)
        self.dense = initialise_dense(Dense(dense_size, dense_size), config.init)
        self.activation = activation_module(config.activation, "relu")

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` or ``[N, H, W, C]`` to ``[N, output_size]``."""
        features: Tensor = self.activation(self.dense(self.lines(x)))
        return features


class AsImageEncoder(EntryEncoder):
    """Reshapes a grey image or a stack of images, such as Atari's colour frames, for an image encoder.

    Args:
        spec: ``[H, W]``, ``[S, H, W, C]`` or ``[S, C, H, W]``.
        image: :func:`as_image` of it.
        encoder: Encoder of ``image``.
    """

    def __init__(self, spec: ArraySpec, image: ArraySpec, encoder: EntryEncoder) -> None:
        super().__init__(encoder.output_size)
        stacked_last = len(spec.shape) == 4 and not channels_first(replace(spec, shape=spec.shape[1:]))
        self.order = (0, 2, 3, 1, 4) if stacked_last else tuple(range(len(spec.shape) + 1))
        self.image_shape = image.shape
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        """``[N, ...]`` to ``[N, output_size]``."""
        features: Tensor = self.encoder(x.permute(self.order).reshape(-1, *self.image_shape))
        return features


class GridEncoder(EntryEncoder):
    """Convolutions over a grid of one-hot categories, otherwise a :class:`ConvEncoder`.

    MiniGrid's objects, colours and states are indices; a convolution of the bare numbers would have to tell a ball (6)
    from a key (5) by magnitude.

    Sometimes a single cell matters, and a recurrent core has to remember it over many steps. With ``normalise_grids``,
    a layer norm (Ba et al. 2016, https://arxiv.org/abs/1607.06450) keeps the features from saturating the core's gates,
    which would lose the cell, and the first layer is initialised for inputs of variance 1, where one-hot numbers have
    1/n (docs/journal/2026-11.md).

    Args:
        spec: The entry: integers from 0 to ``spec.high``.
        convolutions: ``(channels, kernel, stride)`` of each.
        dense_size: Width of the dense layer.
        config: Activation and initialisation.
    """

    categories: Tensor

    def __init__(
        self, spec: ArraySpec, convolutions: tuple[tuple[int, int, int], ...], dense_size: int, config: ModelConfig
    ) -> None:
        super().__init__(dense_size)
        assert spec.high is not None
        self.num_categories = int(spec.high) + 1
        # NumPy's: on the meta device, torch.arange imports SymPy.
        self.register_buffer(
            "categories", torch.tensor(np.arange(self.num_categories, dtype=np.uint8)), persistent=False
        )
        self.channels_first = channels_first(spec)
        shape = (*spec.shape[1:], spec.shape[0]) if self.channels_first else spec.shape
        height, width, channels = shape
        channels *= self.num_categories
        layers: list[nn.Module] = []
        for out, kernel, stride in convolutions:
            layers += [
                initialise_conv(nn.Conv2d(channels, out, kernel, stride), config.init),
                activation_module(config.activation, "relu"),
            ]
            channels = out
            height, width = _conv_size(height, width, kernel, stride, 0)
        self.convolutions = nn.Sequential(*layers)
        self.dense = initialise_dense(Dense(height * width * channels, dense_size), config.init)
        self.activation = activation_module(config.activation, "relu")
        if config.normalise_grids:
            layers[0].get_parameter("weight").data *= math.sqrt(self.num_categories)
            self.activation = nn.Sequential(nn.LayerNorm(dense_size), self.activation)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` or ``[N, H, W, C]`` to ``[N, output_size]``."""
        if self.channels_first:
            x = x.permute(0, 2, 3, 1)
        # Unlike one_hot(), a comparison needs no wide integers and does not wait for the device.
        one_hot = (x.unsqueeze(-1) == self.categories).flatten(3).to(self.dense.weight.dtype)
        return _dense_head(self.convolutions(one_hot.permute(0, 3, 1, 2)), self.dense, self.activation)


class DenseEncoder(EntryEncoder):
    """An MLP on a flattened entry; the identity without hidden layers.

    Integer entries with a single element and declared bounds become one-hot (``Discrete`` observations arrive as
    one-hot vectors); other uint8 entries declared up to 255 are scaled by 1/255; all others are cast to float.

    Args:
        spec: The entry.
        sizes: Widths of the hidden layers.
        config: Activation and initialisation.
        published: The activation that ``"auto"`` selects.
    """

    choices: Tensor

    def __init__(
        self, spec: ArraySpec, sizes: tuple[int, ...], config: ModelConfig, *, published: Activation = "tanh"
    ) -> None:
        choices = spec.choices
        width = choices or spec.size
        super().__init__(sizes[-1] if sizes else width)
        self.num_choices = choices
        first_choice = int(spec.low) if choices and spec.low is not None else 0
        # NumPy's: on the meta device, torch.arange imports SymPy.
        self.register_buffer("choices", torch.tensor(np.arange(first_choice, first_choice + choices)), persistent=False)
        self.input_scale = 1.0 / 255.0 if not choices and spec.dtype == "uint8" and spec.high == 255 else 1.0
        layers: list[nn.Module] = []
        for before, size in pairwise((width, *sizes)):
            layers += [
                initialise_dense(Dense(before, size), config.init),
                activation_module(config.activation, published),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, ...]`` to ``[N, output_size]``."""
        x = x.reshape(x.shape[0], -1)
        scale = 1.0 if x.is_floating_point() else self.input_scale
        if self.num_choices:
            # torch cannot compare wide unsigned integers.
            x = (x if x.is_floating_point() else x.long()) == self.choices
        first = self.layers[0].weight if len(self.layers) else None
        x = x.to(first.dtype if isinstance(first, Tensor) else torch.float32)
        if scale != 1.0:
            x = x * scale
        features: Tensor = self.layers(x)
        return features


def _dense_head(maps: Tensor, dense: nn.Linear, activation: nn.Module) -> Tensor:
    # In the order of channels_last memory, flattening is a view instead of a copy.
    features: Tensor = activation(dense(maps.permute(0, 2, 3, 1).flatten(1)))
    return features


def _conv_size(height: int, width: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    return (height + 2 * padding - kernel) // stride + 1, (width + 2 * padding - kernel) // stride + 1


def _highest_pixel(spec: ArraySpec) -> float:
    """Divisor of pixels; 1 for floats, or if no highest value is declared."""
    if spec.dtype == "uint8":
        return 255.0
    is_integer = spec.dtype.startswith(("int", "uint"))
    return spec.high if is_integer and spec.high is not None and 1.0 < spec.high < math.inf else 1.0
