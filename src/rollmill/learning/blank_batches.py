"""Batches of zeros in the format of an off-policy learner, for timing it before the replay has data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rollmill.algorithms.batches import SequenceBatch, TransitionBatch
from rollmill.specs import EnvSpec
from rollmill.storage.replay_config import ReplayConfig

_DISCOUNT = 0.99


def blank_batch(
    spec: EnvSpec, replay: ReplayConfig, rows: int, state_size: int, device: torch.device
) -> TransitionBatch | SequenceBatch:
    """Build a batch for one SGD step.

    Args:
        spec: The environment.
        replay: Whether to draw transitions or sequences, and their length.
        rows: Number of transitions or sequences.
        state_size: Width of the algorithm's recurrent state; 0 without one.
        device: The learner's device.
    """
    if replay.has_sequences:
        return _sequences(spec, replay, rows, state_size, device)
    observation, mask = blank_observation(spec, rows, device), _mask(spec, rows, device)
    return TransitionBatch(
        observation,
        *_actions(spec, rows, device),
        torch.zeros(rows, device=device),
        torch.full((rows,), _DISCOUNT, device=device),
        observation,
        mask,
        mask,
        torch.ones(rows, device=device),
    )


def blank_observation(spec: EnvSpec, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Build an observation, name -> ``[rows, ...]``."""
    return {
        name: torch.from_numpy(np.zeros((rows, *item.shape), item.dtype)).to(device)
        for name, item in spec.observation.items()
    }


def _sequences(spec: EnvSpec, replay: ReplayConfig, rows: int, state_size: int, device: torch.device) -> SequenceBatch:
    """Build sequences without the end of an episode."""
    window, length = replay.window, replay.sequence_length

    def in_time(array: Tensor, steps: int) -> Tensor:
        return array.reshape(steps, rows, *array.shape[1:])

    discrete, continuous = _actions(spec, window * rows, device)
    observation = blank_observation(spec, (window + 1) * rows, device)
    mask = _mask(spec, (window + 1) * rows, device)
    steps = torch.arange(replay.burn_in, replay.burn_in + length, device=device)
    return SequenceBatch(
        burn_in=replay.burn_in,
        observation={name: in_time(array, window + 1) for name, array in observation.items()},
        discrete=None if discrete is None else in_time(discrete, window),
        continuous=None if continuous is None else in_time(continuous, window),
        reward=torch.zeros(length, rows, device=device),
        discount=torch.full((length, rows), _DISCOUNT, device=device),
        then=(steps + replay.n_step)[:, None].expand(length, rows),
        valid=torch.ones(length, rows, dtype=torch.bool, device=device),
        reset=torch.zeros(window + 1, rows, dtype=torch.bool, device=device),
        reset_steps=(),
        rnn_state=torch.zeros(rows, state_size, device=device),
        action_mask=None if mask is None else in_time(mask, window + 1),
        weight=torch.ones(rows, device=device),
    )


def _actions(spec: EnvSpec, rows: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Build discrete and continuous actions."""
    action = spec.action
    return (
        torch.zeros((rows, action.num_discrete), dtype=torch.int32, device=device) if action.num_discrete else None,
        torch.zeros((rows, action.num_continuous), device=device) if action.num_continuous else None,
    )


def _mask(spec: EnvSpec, rows: int, device: torch.device) -> Tensor | None:
    """Build a mask that allows everything."""
    if not spec.has_action_mask:
        return None
    return torch.ones((rows, spec.action.mask_size), dtype=torch.bool, device=device)
