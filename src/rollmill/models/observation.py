"""Encoder of a whole observation: one encoder for each entry, or a user's own by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rollmill.models.config import BUILT_IN_ENCODERS, ModelConfig
from rollmill.models.encoders import (
    AsImageEncoder,
    BoardEncoder,
    ConvEncoder,
    DenseEncoder,
    EntryEncoder,
    GridEncoder,
    as_image,
    channels_first,
    is_grid,
    is_large_image,
)
from rollmill.models.errors import UnfitModelError
from rollmill.models.impala import ImpalaEncoder
from rollmill.models.sound import SoundEncoder
from rollmill.runtime.definitions import Registry
from rollmill.specs import PICTURE_SIDE, ActionSpec, ArraySpec

EncoderFactory = Callable[[Mapping[str, ArraySpec], ActionSpec, ModelConfig], nn.Module]

# Mnih et al. 2015, https://doi.org/10.1038/nature14236, "Model architecture".
_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
# Petrenko et al. 2020, https://arxiv.org/abs/2006.11751, figure A.1; `convnet_simple` of Sample Factory 2.
_SAMPLE_FACTORY = ((32, 8, 4), (64, 4, 2), (128, 3, 2))
_SAMPLE_FACTORY_MEASUREMENTS = (128, 128)
# For pictures too small for Nature's strides: without any, 32 x 32 would take 7 million parameters. Ours.
_MEDIUM = ((16, 4, 2), (32, 3, 2), (64, 3, 1))
_MOST_PLANES = 4  # of a picture that is not of bytes
# For grids too small for strides (MiniGrid's 7 x 7): convolutions of BabyAI and rl-starter-files, without pooling.
_SMALL = ((16, 2, 1), (32, 2, 1), (64, 2, 1))
_TINY = ((32, 2, 1), (64, 2, 1))
# One layer sees a whole line of four, and costs a fifth of three layers that see as far.
_BOARD_CHANNELS, _BOARD_WINDOW = 128, 4


class UnknownModelError(ValueError):
    """The name of a model or encoder is not registered."""


ENCODERS: Registry[EncoderFactory] = Registry(
    "encoder", {}, register="register_encoder", reserved=BUILT_IN_ENCODERS, error=UnknownModelError
)


class EncoderError(ValueError):
    """A registered encoder is not a module, lacks ``output_size``, or returns features of another shape."""


def entry_encoder(kind: str, name: str, spec: ArraySpec, config: ModelConfig) -> EntryEncoder:
    """Build the built-in encoder ``kind`` for one entry.

    Args:
        kind: One of ``BUILT_IN_ENCODERS``.
        name: The entry's name, for messages.
        spec: The entry.
        config: Widths, activation, initialisation.

    Raises:
        UnfitModelError: Unknown kind, an image encoder for an entry that is not an image, or likewise for a sound.
    """
    if kind == "sound" or (kind == "auto" and spec.is_sound):
        return SoundEncoder(spec, config)
    image = as_image(spec)
    if image is not spec and kind != "mlp":
        return AsImageEncoder(spec, image, entry_encoder(kind, name, image, config))
    if kind == "auto":
        kind = "nature" if is_large_image(spec) else "small" if is_grid(spec) else "mlp"
    if kind not in BUILT_IN_ENCODERS:
        raise UnfitModelError(f"encoder of entry {name!r} is {kind!r}; allowed: {', '.join(BUILT_IN_ENCODERS)}")
    if kind == "mlp" or (kind == "board" and not is_grid(spec)):
        return DenseEncoder(spec, config.mlp_sizes, config)
    if not is_grid(spec):
        raise UnfitModelError(
            f"encoder {kind!r} needs an image, but observation entry {name!r} has shape {spec.shape}; use encoder='mlp'"
        )
    if kind == "impala":
        return ImpalaEncoder(spec, config.dense_size or 256, config)
    dense_size = config.dense_size or 512
    if kind == "nature":
        return ConvEncoder(spec, _NATURE, dense_size, config)
    side = min(spec.shape[1:] if channels_first(spec) else spec.shape[:2])
    if kind == "board":
        return BoardEncoder(spec, _BOARD_CHANNELS, min(_BOARD_WINDOW, side), config.dense_size or 256, config)
    if kind == "small":
        convolutions = _SMALL if side >= 4 else _TINY
        if spec.is_categorical and not config.normalise_images:
            return GridEncoder(spec, convolutions, config.dense_size or 128, config)
        # Numbers on more planes than a picture has are a board, whose every place counts.
        if side >= PICTURE_SIDE and (spec.dtype == "uint8" or min(spec.shape) <= _MOST_PLANES):
            convolutions = _MEDIUM
        return ConvEncoder(spec, convolutions, config.dense_size or 128, config)
    return ConvEncoder(spec, _SAMPLE_FACTORY, dense_size, config, published="elu")


class ObservationEncoder(nn.Module):
    """One encoder for each entry, in the order of the specs, their features concatenated.

    Args:
        observation: Name -> spec.
        config: ``encoder`` is for images; sounds get their own encoder, other entries an MLP (with the Sample Factory
            encoders: its two layers of 128 for measurements). ``entry_encoders`` overrides it for single entries.

    Attributes:
        output_size: Width of the features.

    Raises:
        UnfitModelError: ``entry_encoders`` names an entry that does not exist.
    """

    def __init__(self, observation: Mapping[str, ArraySpec], config: ModelConfig) -> None:
        super().__init__()
        unknown = set(config.entry_encoders) - set(observation)
        if unknown:
            raise UnfitModelError(
                f"model.entry_encoders names {sorted(unknown)}, but the observation has {sorted(observation)}"
            )
        self.names = tuple(observation)
        encoders = []
        for name, spec in observation.items():
            kind = config.entry_encoders.get(name)
            if kind is not None:
                encoders.append(entry_encoder(kind, name, spec, config))
            elif len(observation) > 1 and spec.is_sound:
                encoders.append(SoundEncoder(spec, config))
            elif len(observation) > 1 and not is_grid(as_image(spec)):
                if config.encoder.startswith("sf_"):
                    encoders.append(DenseEncoder(spec, _SAMPLE_FACTORY_MEASUREMENTS, config, published="elu"))
                else:
                    encoders.append(DenseEncoder(spec, config.mlp_sizes, config))
            else:
                encoders.append(entry_encoder(config.encoder, name, spec, config))
        # A list, because module names must not contain the dots and slashes that entry names may.
        self.encoders = nn.ModuleList(encoders)
        self.output_size = sum(encoder.output_size for encoder in encoders)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Map name -> ``[N, ...]`` to features ``[N, output_size]``."""
        if len(self.names) == 1:
            features: Tensor = self.encoders[0](observation[self.names[0]])
            return features
        parts = [encoder(observation[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        return torch.cat(parts, -1)


def register_encoder(name: str, factory: EncoderFactory) -> None:
    """Make ``ModelConfig(encoder=name)`` use ``factory(observation, action, config)`` as the encoder.

    The module maps a dict of name -> ``[N, ...]`` tensors to features ``[N, F]`` and has an attribute ``output_size``,
    F. It encodes the whole observation. Every process that builds models must register it, so register it in a module
    that is imported everywhere (``--import``).

    Args:
        name: A new name.
        factory: A class or a function.

    Raises:
        ValueError: The name is taken by another factory.
    """
    ENCODERS.register(name, factory)


def make_encoder(
    observation: Mapping[str, ArraySpec], action: ActionSpec, config: ModelConfig
) -> tuple[nn.Module, int]:
    """Build the encoder that ``config`` names; returns it and the width of its features.

    Raises:
        UnknownModelError: ``config.encoder`` is not registered.
        EncoderError: The registered factory did not return a module with an ``output_size``.
        ValueError: The encoder does not fit the observation.
    """
    if config.encoder in BUILT_IN_ENCODERS:
        built_in = ObservationEncoder(observation, config)
        return built_in, built_in.output_size
    encoder = ENCODERS.find(config.encoder)(observation, action, config)
    width = getattr(encoder, "output_size", None)
    if not isinstance(encoder, nn.Module):
        raise EncoderError(
            f"the factory of encoder {config.encoder!r} returned {encoder!r} ({type(encoder).__name__}): a "
            "torch.nn.Module is needed"
        )
    if not isinstance(width, int):
        raise EncoderError(
            f"encoder {config.encoder!r} ({type(encoder).__name__}) has output_size={width!r}; set it to the width of "
            "the features, an int"
        )
    encoder.register_forward_hook(partial(_check_features, config.encoder, width))
    return encoder, width


def _check_features(name: str, width: int, encoder: nn.Module, _: Any, features: Any) -> None:
    """Forward hook: check the shape here, so that the error names the user's encoder."""
    if isinstance(features, Tensor) and features.dim() == 2 and features.shape[1] == width:
        return
    shape = f"a tensor of shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
    raise EncoderError(
        f"encoder {name!r} ({type(encoder).__name__}) returned {shape} from forward: a tensor of shape [N, {width}] is "
        f"needed, because its output_size is {width}"
    )
