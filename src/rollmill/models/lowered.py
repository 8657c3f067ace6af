"""Weights stored in autocast's dtype, for a network that runs only under autocast or in that dtype.

Without a gradient, autocast casts every weight in every pass, which for a few rows costs as much as the products. A
policy worker runs many passes for each change of the weights, so it casts them when they are loaded. Where nothing is
left to cast, the network runs without autocast, whose checks of each operation take a tenth of a pass for 16 rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from rollmill.models.activations import ELU, ReLU
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
# Not normalisation, for which autocast has rules of its own.
_PLAIN_LAYERS = (*_LAYERS, ELU, ReLU, nn.GELU, nn.SiLU, nn.Tanh)


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


def needs_autocast(model: nn.Module) -> bool:
    """Whether a network prepared by :func:`lower_weights` and :func:`fold_pixels` must run under autocast.

    False promises the same outputs without it, bit for bit. This is known of the built-in model without a recurrent
    core and without normalised observations, whose layers all take the dtype of their weights.
    """
    if type(model) is not ActorCritic or model.core is not None or model.normaliser is not None:
        return True
    for encoder in (model.encoder, model.critic_encoder):
        if encoder is not None and not (type(encoder) is ObservationEncoder and all(map(_is_plain, encoder.encoders))):
            return True
    return False


def _is_plain(encoder: nn.Module) -> bool:
    if type(encoder) is AsImageEncoder:
        return _is_plain(encoder.encoder)
    if type(encoder) not in _ENCODERS:
        return False
    return all(map(_takes_dtype_of_weights, _layers(encoder)))


def _takes_dtype_of_weights(layer: nn.Module) -> bool:
    return layer.can_be_folded if type(layer) is ImageInput else type(layer) in _PLAIN_LAYERS


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Modules without parts. The moments of the layer that reads pixels belong to what it folds."""
    parts = [] if type(module) is ImageInput else list(module.children())
    if not parts:
        yield module
    for part in parts:
        yield from _layers(part)


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
