"""Weights stored in autocast's dtype, for a network that runs only under autocast.

Without a gradient, autocast casts every weight in every pass, which for a few rows costs as much as the products. A
policy worker runs many passes for each change of the weights, so it casts them when they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from rollmill.models.actor_critic import ActorCritic
from rollmill.models.cores import GRUCore, LSTMCore
from rollmill.models.encoders import (
    AsImageEncoder,
    BoardEncoder,
    ConvEncoder,
    DenseEncoder,
    GridEncoder,
    ImageInput,
)
from rollmill.models.impala import ImpalaEncoder
from rollmill.models.linear import Dense
from rollmill.models.observation import ObservationEncoder
from rollmill.models.sound import SoundEncoder

# Exact classes: a subclass may use its weights in other ways.
_ENCODERS = (BoardEncoder, ConvEncoder, DenseEncoder, GridEncoder, ImpalaEncoder, SoundEncoder)
_LAYERS = (Dense, nn.Linear, nn.Conv2d)
_CORES = (GRUCore, LSTMCore)


def can_be_lowered(model: nn.Module) -> bool:
    """Whether :func:`lower_weights` would change anything."""
    return any(True for _ in _cast_by_autocast(model))


def lower_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast to ``dtype``, in place, the weights that autocast would cast; outputs are identical bit for bit.

    Layers that scale their weights before the cast (pixels), heads (float32) and users' own models, including
    subclasses of ours, are left unchanged.

    Args:
        model: Must run under autocast to ``dtype`` from now on.
        dtype: Autocast's dtype.
    """
    for parameter in _cast_by_autocast(model):
        parameter.data = parameter.data.to(dtype)


def fold_pixels(model: nn.Module, dtype: torch.dtype) -> None:
    """Prepare the layers that read pixels for passes under autocast to ``dtype``; outputs are identical bit for bit.

    Call it again when weights have changed.
    """
    for layer in model.modules():
        if type(layer) is ImageInput:
            layer.fold(dtype)


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
