"""Random delays, which show what depends on the speed of a process."""

from __future__ import annotations

import random
import time

# Mean number of calls for each delay. A delay at every call would only make the run slower.
_CALLS = 20


class DelayInjector:
    """Sleeps in one of 20 calls on average. Its random numbers are independent of the run's seed.

    Args:
        longest_s: Seconds of the longest delay; 0 never sleeps.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._random = random.Random()  # seeded by the operating system: differently in each process and run

    def __call__(self) -> None:
        """Sleeps at random."""
        if self._longest_s and self._random.random() * _CALLS < 1.0:
            time.sleep(self._random.random() * self._longest_s)
