"""Encoder of a short piece of sound: loudness by frequency, then an MLP.

Source: Hegde, Kanervisto and Petrenko 2021, "Agents that Listen" (https://arxiv.org/abs/2107.02195), whose encoder of
this kind did best: the magnitudes of the Fourier transform of each channel, their logarithms, the largest of each 8
neighbouring frequencies, and two layers of 256 units that all channels share.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.models.config import ModelConfig
from rollmill.models.encoders import EntryEncoder
from rollmill.models.errors import UnfitModelError
from rollmill.models.initialisation import activation_module, initialise_dense
from rollmill.models.linear import Dense
from rollmill.specs import ArraySpec

_SIZES = (256, 256)
_POOL = 8
# Added to a magnitude before its logarithm.
_EPSILON = 1e-5
_FULL_SCALE = 32768.0  # of int16


class SoundEncoder(EntryEncoder):
    """Logarithms of frequency magnitudes of each channel through an MLP; the channels' features are concatenated.

    Deviations from the source: an affine map of the logarithms makes silence 0 and a magnitude of 1 one, because it
    would have silence at -11.5 in all inputs; and the layers are initialised as ours.

    Args:
        spec: The entry, ``[C, S]`` or ``[S]``. int16 samples are divided by 32,768, others used as they are.
        config: Activation and initialisation.

    Attributes:
        window: Hamming window, float32 ``[S]``.

    Raises:
        UnfitModelError: The shape is another, or has fewer than 16 samples.
    """

    window: Tensor

    def __init__(self, spec: ArraySpec, config: ModelConfig) -> None:
        if len(spec.shape) not in (1, 2) or spec.shape[-1] < 2 * _POOL:
            raise UnfitModelError(
                f"encoder 'sound' needs samples of shape [S] or [channels, S] with S of at least {2 * _POOL}, but the "
                f"entry has shape {spec.shape}; use encoder='mlp'"
            )
        samples = spec.shape[-1]
        super().__init__(_SIZES[-1] * (spec.size // samples))
        self.samples = samples
        self.scale = 1.0 / _FULL_SCALE if spec.dtype == "int16" else 1.0
        # Follows from the spec, so it is in no checkpoint.
        self.register_buffer("window", torch.hamming_window(samples), persistent=False)
        layers: list[nn.Module] = []
        width = samples // 2 // _POOL
        for size in _SIZES:
            layers += [
                initialise_dense(Dense(width, size), config.init),
                activation_module(config.activation, "relu"),
            ]
            width = size
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, S]`` or ``[N, S]`` to ``[N, output_size]``."""
        first = self.layers[0].weight
        assert isinstance(first, Tensor)
        features: Tensor = self.layers(self.loudness(x).to(first.dtype))
        return features.flatten(1)

    @torch.no_grad()
    def loudness(self, x: Tensor) -> Tensor:
        """Return the MLP's input, float32 ``[N, C, S // 16]``; 0 is silence."""
        x = x.reshape(x.shape[0], -1, self.samples)
        with torch.autocast(x.device.type, enabled=False):
            magnitudes = torch.fft.rfft(x.float() * (self.window.float() * self.scale)).abs()
            # As the source: without the highest frequency, so that their number is even.
            loudest = functional.max_pool1d(magnitudes[..., : self.samples // 2], _POOL)
            # The logarithm is monotonic: taken after the maximum, it is taken of an eighth as many.
            return torch.log1p(loudest / _EPSILON) / math.log1p(1.0 / _EPSILON)
