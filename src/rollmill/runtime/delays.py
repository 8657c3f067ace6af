"""Delays at random, to find out what depends on speed."""

from __future__ import annotations

import random
import time

__all__ = ["Dawdler"]

# So many calls pass without a delay, on average; a delay at every call would only be a slower run.
_CALLS = 20


class Dawdler:
    """Sleeps now and then; its numbers are no part of any run's randomness.

    Args:
        longest_s: Seconds of the longest delay; 0 never sleeps.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._random = random.Random()  # seeded by the operating system: differently in each process and run

    def __call__(self) -> None:
        """Maybe sleeps."""
        if self._longest_s and self._random.random() * _CALLS < 1.0:
            time.sleep(self._random.random() * self._longest_s)
