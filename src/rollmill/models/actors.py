"""Policies of off-policy algorithms: deterministic, squashed Gaussian, categorical."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rollmill.models.config import ModelConfig
from rollmill.models.convolutions import set_channels_last
from rollmill.models.mlp import MLP

_LOG_2 = math.log(2.0)
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class SampledAction(NamedTuple):
    """``action`` float32 ``[N, C]`` in [-1, 1] and ``log_prob`` float32 ``[N]``, the log-density."""

    action: Tensor
    log_prob: Tensor


def squashed_gaussian(params: Tensor, normal: Tensor, log_std_bounds: tuple[float, float]) -> SampledAction:
    """Sample tanh(u), u = mean + std * normal, and its log-density (Haarnoja et al. 2018, arXiv:1812.05905, eq. 26).

    ``log pi(tanh u) = log N(u; mean, std) - sum log(1 - tanh(u)^2)``, where
    ``log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))`` avoids cancellation for large |u|. The gradient is written
    out too: that of the correction is ``2 tanh(u)``.

    Args:
        params: ``[N, 2 C]``: means, before squashing, and log standard deviations.
        normal: ``[N, C]``, standard normal; the sample is a differentiable function of the params.
        log_std_bounds: Range to which log standard deviations are clamped.
    """
    if torch.is_grad_enabled():
        # torch does not annotate Function.apply.
        return SampledAction(*_SquashedGaussian.apply(params, normal, *log_std_bounds))  # type: ignore[no-untyped-call]
    return SampledAction(*_sample(params, normal, *log_std_bounds)[:2])


def _sample(params: Tensor, normal: Tensor, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Action, its log-probability, and std * normal."""
    mean, log_std = params.chunk(2, -1)
    log_std = log_std.clamp(low, high)
    scaled = log_std.exp().mul_(normal)
    u = mean + scaled
    # -log N - log(1 - tanh(u)^2), without their constants.
    terms = functional.softplus(-2.0 * u).add_(u).mul_(2.0).sub_(log_std).addcmul_(normal, normal, value=-0.5)
    constant = normal.shape[-1] * (_HALF_LOG_TAU + 2.0 * _LOG_2)
    return u.tanh_(), terms.sum(-1).sub_(constant), scaled


class _SquashedGaussian(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, params: Tensor, normal: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
        action, log_prob, scaled = _sample(params, normal, low, high)
        ctx.save_for_backward(params, action, scaled)
        ctx.bounds = low, high
        return action, log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_action: Tensor, of_log_prob: Tensor) -> tuple[Tensor, None, None, None]:
        params, action, scaled = ctx.saved_tensors
        low, high = ctx.bounds
        of_log_prob = of_log_prob.unsqueeze(-1)
        # du: 1 - a^2 through tanh, 2a through the correction.
        of_mean = torch.addcmul(of_action, of_action * action, action, value=-1.0)
        of_mean.addcmul_(of_log_prob, action, value=2.0)
        of_log_std = torch.addcmul(-of_log_prob, of_mean, scaled)
        log_std = params[..., action.shape[-1] :]
        of_log_std.mul_((log_std >= low) & (log_std <= high))
        return torch.cat([of_mean, of_log_std], -1), None, None, None


class ActorNetwork(nn.Module):
    """Encoder, hidden layers ``mlp_sizes``, one linear layer.

    The encoder and the hidden layers respect autocast; the last layer computes in float32.

    Args:
        encoder: Encoder of the observation; may be a critic's, see ``is_shared``.
        width: Width of its features.
        outputs: Width of the result.
        config: Result of :func:`rollmill.models.off_policy.off_policy_model`.
        is_shared: Whether the encoder is trained elsewhere and gets no gradient here.
    """

    def __init__(
        self, encoder: nn.Module, width: int, outputs: int, config: ModelConfig, *, is_shared: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.is_shared = is_shared
        self.mlp = MLP(width, outputs, config, gain=0.01)
        set_channels_last(self, True)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Map name -> ``[N, ...]`` to float32 ``[N, outputs]``."""
        result: Tensor = self.mlp(self.encode(observation))
        return result

    def encode(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Map name -> ``[N, ...]`` to the features ``[N, F]`` that ``mlp`` takes."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.is_shared):
            features: Tensor = self.encoder(observation)
        return features

    def own_parameters(self) -> list[nn.Parameter]:
        """Parameters trained by the actor's loss: all but those of a shared encoder."""
        return list((self.mlp if self.is_shared else self).parameters())
