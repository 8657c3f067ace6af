"""Policies of off-policy algorithms: deterministic, squashed Gaussian, categorical."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.models.config import ModelConfig
from rollmill.models.initialisation import initialise_dense
from rollmill.models.memory_format import set_channels_last
from rollmill.models.off_policy import dense_layers
from rollmill.models.precision import in_full_precision

__all__ = ["ActorNetwork", "SampledAction", "squash_sample"]

_LOG_2 = math.log(2.0)
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class SampledAction(NamedTuple):
    """``action`` float32 ``[N, C]`` in (-1, 1) and ``log_prob`` float32 ``[N]``, its density's logarithm."""

    action: Tensor
    log_prob: Tensor


def squash_sample(mean: Tensor, log_std: Tensor, normal: Tensor) -> SampledAction:
    """tanh(u) of u = mean + std * normal, and its density (Haarnoja et al. 2018, arXiv:1812.05905, equation 26).

    ``log pi(tanh u) = log N(u; mean, std) - sum log(1 - tanh(u)^2)``, where
    ``log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))``, which does not cancel for large |u|.

    Args:
        mean: ``[N, C]``, before squashing.
        log_std: ``[N, C]``.
        normal: ``[N, C]``, standard normal; the sample is a differentiable function of the others.
    """
    u = torch.addcmul(mean, log_std.exp(), normal)
    correction = 2.0 * (_LOG_2 - u - functional.softplus(-2.0 * u))
    log_prob = (-0.5 * normal.square() - log_std - correction - _HALF_LOG_TAU).sum(-1)
    return SampledAction(u.tanh(), log_prob)


class ActorNetwork(nn.Module):
    """Encoder, hidden layers ``mlp_sizes``, one linear layer.

    Autocast is respected by the encoder and the hidden layers; the last layer computes in float32.

    Args:
        encoder: Of the observation; it may be a critic's, see ``is_shared``.
        width: Of its features.
        outputs: Width of the result.
        config: As :func:`rollmill.models.off_policy.off_policy_model` gives it.
        is_shared: Whether the encoder is trained elsewhere, so that no gradient goes into it.
    """

    def __init__(
        self, encoder: nn.Module, width: int, outputs: int, config: ModelConfig, *, is_shared: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.is_shared = is_shared
        self.hidden, width = dense_layers(width, config.mlp_sizes, config)
        self.output = initialise_dense(nn.Linear(width, outputs), config.init, gain=0.01)
        set_channels_last(self, True)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Name -> ``[N, ...]`` to float32 ``[N, outputs]``."""
        if self.is_shared:
            with torch.no_grad():
                features = self.encoder(observation)
        else:
            features = self.encoder(observation)
        result: Tensor = in_full_precision(self.output, self.hidden(features.to(self.output.weight.dtype)))
        return result
