"""How many of a policy's real-valued actions end at a bound of the action space: a sign that it uses extremes only."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollmill.specs import ActionSpec, BoxHead

__all__ = ["ActionBounds"]

# What counts as a bound of (-1, 1) where actions are squashed and never reach it.
_NEAR = math.atanh(0.99)


class ActionBounds:
    """The bounds of an action's real numbers, as slots hold them.

    Args:
        action: The action spec.
        squash: Whether slots hold numbers from before tanh.
    """

    def __init__(self, action: ActionSpec, *, squash: bool) -> None:
        boxes = [head for head in action.heads if isinstance(head, BoxHead)]
        self._low = np.array([low for box in boxes for low in box.low], np.float32)
        self._high = np.array([high for box in boxes for high in box.high], np.float32)
        if squash:
            self._low[:], self._high[:] = -_NEAR, _NEAR

    def share_at(self, actions: NDArray[np.float32], keep: NDArray[np.bool_]) -> float | None:
        """Share of the numbers that are at a bound or beyond it; None of none.

        Args:
            actions: float32 ``[T, N, C]``.
            keep: bool ``[T, N]``: which count.
        """
        kept = actions[: len(keep)][keep]
        if not kept.size:
            return None
        return float(((kept <= self._low) | (kept >= self._high)).mean())
