"""Checks that an algorithm's actions are in the action space."""

from __future__ import annotations

import numpy as np

from rollmill.algorithms.base import Action, Algorithm
from rollmill.specs import ActionSpec


def check_action(algorithm: Algorithm, action: Action, spec: ActionSpec, rows: int) -> None:
    """Check the actions of an off-policy algorithm, because replay and environment must agree.

    Args:
        algorithm: The algorithm, for the message.
        action: Its actions.
        spec: The action spec, with continuous heads in [-1, 1].
        rows: Number of requested rows.

    Raises:
        ValueError: The actions have another shape, or are not in the action space.
    """
    name = type(algorithm).__name__
    widths = {"discrete": spec.num_discrete, "continuous": spec.num_continuous}
    for (kind, width), given in zip(widths.items(), (action.discrete, action.continuous), strict=True):
        shape = None if given is None else tuple(given.shape)
        if shape != ((rows, width) if width else None):
            raise ValueError(
                f"{name}.act gave {kind} actions of shape {shape}, but {(rows, width) if width else None} is needed: a "
                "row for each environment's agent, a column for each of its numbers, None where the action space has "
                "no such numbers"
            )
    wrong = ""
    if action.discrete is not None:
        discrete = action.discrete.cpu().numpy()
        most = np.array(spec.categorical_sizes, np.int64)
        if (bad := (discrete < 0) | (discrete >= most)).any():
            row, column = np.argwhere(bad)[0]
            choices = most[column]
            wrong = f"the choice {discrete[row, column]} in column {column}, which has the choices 0 to {choices - 1}"
    if action.continuous is not None and not wrong:
        continuous = action.continuous.float().cpu().numpy()
        if (bad := ~(np.abs(continuous) <= 1.0)).any():  # also catches NaN
            row, column = np.argwhere(bad)[0]
            wrong = f"the number {continuous[row, column]} in column {column}; all must be in [-1, 1]"
    if wrong:
        raise ValueError(f"{name}.act gave {wrong}")
