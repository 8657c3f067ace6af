"""Players that do not learn: networks of other runs, and functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.inference.acting_weights import ActingAlgorithm

When = tuple[int, int, int]
"""A batch's first group, its iteration and its step, for random numbers that do not depend on timing."""

Actions = tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]
"""int32 ``[m, Kd]`` and float32 ``[m, Kc]``; None without such heads."""


class ScriptedGuest(NamedTuple):
    """Chooses actions without a network.

    Attributes:
        choose: ``choose(observation, mask, count, when)`` returns the actions of ``count`` = m rows. ``observation`` is
            name -> ``[m, ...]``, ``mask`` is bool ``[m, mask_size]`` or None.
    """

    choose: Callable[[Mapping[str, NDArray[Any]], NDArray[np.bool_] | None, int, When], Actions]


Guest = ActingAlgorithm | ScriptedGuest
