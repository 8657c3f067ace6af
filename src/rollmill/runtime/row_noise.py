"""Random numbers that depend only on the row and the step that draw them.

A generator's numbers depend on how many were drawn before, and so on which process serves whom. Here row r's numbers at
step t are those of a generator of its own, SplitMix64 (Steele, Lea & Flood 2014), entered at position t: any process
can draw any of them in any order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollmill.runtime.seeds import sequence

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_FLOAT_BITS = 24


class RowNoise:
    """Uniform numbers keyed by (seed, role, row, step).

    Args:
        seed: The run's seed, any integer >= 0.
        role: What the numbers are for.
        width: How many each row draws at each step.
    """

    def __init__(self, seed: int, role: str, *, width: int) -> None:
        self._key = np.uint64(sequence(seed, role).generate_state(1, np.uint64)[0])
        self._width = width
        self._places = np.arange(width, dtype=np.uint64)

    def uniform(self, rows: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 ``[n, width]`` in [0, 1), multiples of 2^-24.

        Args:
            rows: int64 ``[n]``, >= 0, each at its own step.
            steps: int64 ``[n]``, >= 0.
        """
        # Rows start at places of their own in the generator's cycle of 2^64, mixed, so that they do not overlap.
        start = _mixed(self._key + _GAMMA * (rows.astype(np.uint64) + np.uint64(1)))
        count = steps.astype(np.uint64)[:, None] * np.uint64(self._width) + self._places
        bits = _mixed(start[:, None] + _GAMMA * (count + np.uint64(1)))
        return (bits >> np.uint64(64 - _FLOAT_BITS)).astype(np.float32) * np.float32(2.0**-_FLOAT_BITS)


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function, a bijection of 64 bits; arithmetic is modulo 2^64."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
