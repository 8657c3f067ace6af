"""Share of continuous actions at a bound of the action space: high for a policy that uses only extremes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollmill.specs import ActionSpec, BoxHead

# Squashed actions never reach a bound of (-1, 1); beyond this value they count as at the bound.
_NEAR = math.atanh(0.99)


class ActionBounds:
    """The bounds of continuous actions, in the format of slots.

    Args:
        action: The action spec.
        squash: Whether slots store numbers before tanh.
    """

    def __init__(self, action: ActionSpec, *, squash: bool) -> None:
        boxes = [head for head in action.heads if isinstance(head, BoxHead)]
        self._low = np.array([low for box in boxes for low in box.low], np.float32)
        self._high = np.array([high for box in boxes for high in box.high], np.float32)
        if squash:
            self._low[:], self._high[:] = -_NEAR, _NEAR

    def share_at(self, actions: NDArray[np.float32], keep: NDArray[np.bool_]) -> float | None:
        """Return the share of numbers at or beyond a bound; None if there are no numbers.

        Args:
            actions: float32 ``[T, N, C]``.
            keep: bool ``[T, N]``, samples to include.
        """
        kept = actions[: len(keep)][keep]
        if not kept.size:
            return None
        return float(((kept <= self._low) | (kept >= self._high)).mean())
