"""Players that do not learn: networks of other runs, and functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rollmill.inference.acting_weights import ActingAlgorithm


@runtime_checkable
class ScriptedGuest(Protocol):
    """Chooses actions without a network."""

    def choose(
        self,
        observation: Mapping[str, NDArray[Any]],
        mask: NDArray[np.bool_] | None,
        count: int,
        when: tuple[int, int, int],
    ) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
        """Choose actions for some rows.

        Args:
            observation: Name -> ``[m, ...]``.
            mask: bool ``[m, mask_size]``, or None.
            count: m.
            when: The batch's first group, its iteration and its step, for random numbers that do not depend on timing.

        Returns:
            int32 ``[m, Kd]`` and float32 ``[m, Kc]``; None without such heads.
        """
        ...


Guest = ActingAlgorithm | ScriptedGuest
