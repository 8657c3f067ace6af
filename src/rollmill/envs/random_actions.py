"""Uniformly random actions in a slot's format, for decorrelation and for benchmarks without a policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.actions import MOST_SQUASHED
from rollmill.specs import ActionSpec, BoxActions, CategoricalHead


def random_actions(
    spec: ActionSpec,
    mask: NDArray[np.bool_] | None,
    rows: int,
    random: np.random.Generator,
    box: BoxActions = "clip",
) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
    """Draw one action for each row.

    Args:
        spec: The heads, as the environment has them.
        mask: bool ``[rows, mask_size]``, True where a choice is allowed; a head without an allowed choice is treated as
            unconstrained.
        rows: Number of actions.
        random: Random generator.
        box: Conversion of stored numbers to the environment's.

    Returns:
        (discrete int32 ``[rows, num_discrete]``, continuous float32 ``[rows, num_continuous]``), None if the spec
        has no such columns. What the environment gets of bounded numbers is uniform between their bounds; others are
        standard normal.
    """
    discrete: list[NDArray[np.int32]] = []
    continuous: list[NDArray[np.float32]] = []
    first_choice = 0
    for head in spec.heads:
        if isinstance(head, CategoricalHead):
            scores = random.random((rows, head.n))
            if mask is not None:
                scores += mask[:, first_choice : first_choice + head.n]
            discrete.append(scores.argmax(axis=1).astype(np.int32))
            first_choice += head.n
        elif box != "clip":
            numbers = random.uniform(-1.0, 1.0, (rows, head.size))
            if box == "tanh":
                numbers = np.arctanh(np.clip(numbers, -MOST_SQUASHED, MOST_SQUASHED))
            continuous.append(numbers.astype(np.float32))
        elif head.is_bounded:
            continuous.append(random.uniform(head.low, head.high, (rows, head.size)).astype(np.float32))
        else:
            continuous.append(random.standard_normal((rows, head.size), dtype=np.float32))
    return (
        np.stack(discrete, axis=1) if discrete else None,
        np.concatenate(continuous, axis=1) if continuous else None,
    )
