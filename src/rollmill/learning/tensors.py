"""Conversion of a replay's batches to tensors on the learner's device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.algorithms.batches import SequenceBatch, TransitionBatch
from rollmill.learning.optimisers import NonFiniteGradientError
from rollmill.storage.replay_sampler import Drawn, ReplayBatch
from rollmill.storage.sequence_sampler import ReplaySequences


def empty_for(device: torch.device) -> Callable[[Any, Any], Any]:
    """Return what allocates a batch's arrays, as ``np.empty`` does; page-locked for a GPU, which copies directly."""
    return _pinned if device.type == "cuda" else np.empty


def to_tensors(drawn: Drawn, device: torch.device) -> TransitionBatch | SequenceBatch:
    """Convert a batch to tensors on the learner's device; on a CPU without a copy."""
    if isinstance(drawn, ReplaySequences):
        return _of_sequences(drawn, device)
    assert isinstance(drawn, ReplayBatch)
    at_step = drawn.at_step
    return TransitionBatch(
        _tensors(drawn.observation, device),
        _optional(at_step.get("action_discrete"), device),
        _optional(at_step.get("action_continuous"), device),
        _tensor(drawn.reward, device),
        _tensor(drawn.discount, device),
        _tensors(drawn.next_observation, device),
        _optional(drawn.action_mask, device),
        _optional(drawn.next_action_mask, device),
        _tensor(drawn.weight, device),
    )


def errors_of(td_error: Tensor, sgd_steps: int, samples: int) -> NDArray[np.float32]:
    """Return an SGD step's absolute temporal differences, for priorities; waits for the device.

    Args:
        td_error: ``[N]``; the sign does not matter.
        sgd_steps: Number of the step, for the message.
        samples: N.

    Raises:
        NonFiniteGradientError: A value is infinite or NaN.
        ValueError: It has another shape.
    """
    if td_error.shape != (samples,):
        raise ValueError(
            f"a loss gave td_error of shape {tuple(td_error.shape)}; replay.priorities='proportional' takes one number "
            f"for each of the batch's samples, shape ({samples},)"
        )
    errors: NDArray[np.float32] = td_error.detach().float().abs().cpu().numpy()
    is_finite = np.isfinite(errors)
    if not is_finite.all():
        raise NonFiniteGradientError(
            f"SGD step {sgd_steps}: {int((~is_finite).sum())} of {errors.size} temporal differences are not finite "
            f"(first: {errors[~is_finite].flat[0]}); no priority was changed. {NonFiniteGradientError.ADVICE}"
        )
    return errors


def _pinned(shape: Any, dtype: Any) -> Any:
    like = torch.from_numpy(np.empty(0, dtype))
    return torch.empty(shape, dtype=like.dtype, pin_memory=True).numpy()


def _of_sequences(drawn: ReplaySequences, device: torch.device) -> SequenceBatch:
    at_step = drawn.at_step
    return SequenceBatch(
        drawn.burn_in,
        _tensors(drawn.observation, device),
        _optional(at_step.get("action_discrete"), device),
        _optional(at_step.get("action_continuous"), device),
        _tensor(drawn.reward, device),
        _tensor(drawn.discount, device),
        _tensor(drawn.then, device),
        _tensor(drawn.valid, device),
        _tensor(drawn.reset, device),
        np.flatnonzero(drawn.reset.any(1)).tolist(),
        _tensor(drawn.rnn_state, device),
        _optional(drawn.action_mask, device),
        _tensor(drawn.weight, device),
    )


def _tensor(array: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _optional(array: Any, device: torch.device) -> Tensor | None:
    return None if array is None else _tensor(array, device)


def _tensors(arrays: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    return {name: _tensor(array, device) for name, array in arrays.items()}
