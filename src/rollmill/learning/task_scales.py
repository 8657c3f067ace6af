"""One scale for the advantages of all tasks of a run, so that the policy learns from all of them alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollmill.learning.collective import Collective

_EPSILON = 1e-8


def divided_by_returns(
    advantage: NDArray[np.floating[Any]], tasks: NDArray[np.int64] | None, scales: NDArray[np.float32]
) -> NDArray[np.floating[Any]]:
    """Divide advantages by the deviation of the returns of their tasks (Hessel et al. 2019, section 3.2).

    Args:
        advantage: ``[T, N]``.
        tasks: int64 ``[N]``, the task of each trajectory; None with one task.
        scales: ``[tasks]``, the deviations.
    """
    return advantage / (scales[0] if tasks is None else scales[tasks])


def normalised_in_tasks(
    advantage: NDArray[np.floating[Any]],
    keep: NDArray[np.bool_],
    tasks: NDArray[np.int64],
    num_tasks: int,
    collective: Collective,
) -> NDArray[np.floating[Any]]:
    """Give the advantages of each task in a batch the mean 0 and the deviation 1.

    Divided by the deviation of the returns, they still differ: where returns are easy to predict, advantages are small
    beside them. Early in training Pong's were 0.3 of that deviation and Boxing's 1.0, so that a normaliser of both
    together left Pong a third of the gradient that it has in a run of its own.

    Args:
        advantage: ``[T, N]``, this rank's.
        keep: bool ``[T, N]``, samples that are learned from.
        tasks: int64 ``[N]``, the task of each trajectory.
        num_tasks: How many there are.
        collective: The ranks, whose batches are normalised together.
    """
    kept = np.where(keep, advantage, 0.0).astype(np.float64)
    columns = (keep.sum(axis=0), kept.sum(axis=0), np.square(kept).sum(axis=0))
    sums = np.stack([np.bincount(tasks, weights=of_column, minlength=num_tasks) for of_column in columns])
    count, total, squares = collective.sum(torch.from_numpy(sums)).numpy()
    mean = total / np.maximum(count, 1.0)
    # As losses.ppo.normalise_advantages: the unbiased deviation.
    variance = np.maximum(squares - count * np.square(mean), 0.0) / np.maximum(count - 1.0, 1.0)
    scaled: NDArray[np.float64] = (advantage - mean[tasks]) / (np.sqrt(variance) + _EPSILON)[tasks]
    return scaled.astype(advantage.dtype)
