"""Weights kept in the precision that autocast computes in, for a network that is only ever run under autocast.

Autocast casts every weight at every pass where no gradient is wanted: for a few rows, as much work as the products
themselves. A policy worker's weights change once for many passes, so they are cast when they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from rollmill.models.actor_critic import ActorCritic
from rollmill.models.linear import Dense
from rollmill.models.observation import ObservationEncoder

__all__ = ["lower_weights"]

_CAST_LAYERS = (Dense, nn.Linear, nn.Conv2d)


def lower_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts to ``dtype``, in place, what autocast to it would cast at every pass: outputs stay the same, bit for bit.

    Left as they are: layers that scale their weights before the cast (pixels), heads, which compute in float32, and
    whatever users wrote, which may look at its weights outside of autocast.

    Args:
        model: From now on to be run under autocast to ``dtype`` only.
        dtype: Autocast's.
    """
    if isinstance(model, ActorCritic):
        for parameter in _cast_by_autocast(model):
            parameter.data = parameter.data.to(dtype)


def _cast_by_autocast(model: ActorCritic) -> Iterator[nn.Parameter]:
    for encoder in (model.encoder, model.critic_encoder):
        if isinstance(encoder, ObservationEncoder):
            for layer in encoder.modules():
                if type(layer) in _CAST_LAYERS:
                    yield from layer.parameters(recurse=False)
    if model.core is not None:
        yield from model.core.cast_by_autocast()
