"""Weights kept in the precision that autocast computes in, for a network that is only ever run under autocast.

Autocast casts every weight at every pass where no gradient is wanted: for a few rows, as much work as the products
themselves. A policy worker's weights change once for many passes, so they are cast when they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from rollmill.models.actor_critic import ActorCritic
from rollmill.models.cores import GRUCore, LSTMCore
from rollmill.models.encoders import AsImageEncoder, ConvEncoder, DenseEncoder, GridEncoder
from rollmill.models.impala import ImpalaEncoder
from rollmill.models.linear import Dense
from rollmill.models.observation import ObservationEncoder

__all__ = ["can_be_lowered", "lower_weights"]

# These very classes: what derives from them may look at its weights in other ways.
_ENCODERS = (ConvEncoder, DenseEncoder, GridEncoder, ImpalaEncoder)
_LAYERS = (Dense, nn.Linear, nn.Conv2d)
_CORES = (GRUCore, LSTMCore)


def can_be_lowered(model: nn.Module) -> bool:
    """Whether :func:`lower_weights` would change anything."""
    return any(True for _ in _cast_by_autocast(model))


def lower_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts to ``dtype``, in place, what autocast to it would cast at every pass: outputs stay the same, bit for bit.

    Left as they are: layers that scale their weights before the cast (pixels), heads, which compute in float32, and
    whatever users wrote, a model derived from ours included, which may look at its weights outside of autocast.

    Args:
        model: From now on to be run under autocast to ``dtype`` only.
        dtype: Autocast's.
    """
    for parameter in _cast_by_autocast(model):
        parameter.data = parameter.data.to(dtype)


def _cast_by_autocast(model: nn.Module) -> Iterator[nn.Parameter]:
    if type(model) is not ActorCritic:
        return
    for encoder in (model.encoder, model.critic_encoder):
        if type(encoder) is ObservationEncoder:
            for entry in encoder.encoders:
                yield from _of_entry(entry)
    if type(model.core) in _CORES:
        assert model.core is not None
        yield from model.core.cast_by_autocast()


def _of_entry(encoder: nn.Module) -> Iterator[nn.Parameter]:
    if type(encoder) is AsImageEncoder:
        yield from _of_entry(encoder.encoder)
    elif type(encoder) in _ENCODERS:
        for layer in encoder.modules():
            if type(layer) in _LAYERS:
                yield from layer.parameters(recurse=False)
