"""How long a run has trained, in all its sessions together."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["TrainingClock"]


class TrainingClock:
    """Seconds of training: from the learner's first report on, without the time between two sessions.

    Args:
        limit_s: Seconds after which the run ends; None for no such limit.
        now: Gives seconds.
    """

    def __init__(self, limit_s: float | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._now = now
        self._before_s = 0.0
        self._started_at: float | None = None

    def restore(self, seconds: float) -> None:
        """Takes over what earlier sessions have trained; before :meth:`start`."""
        self._before_s = seconds

    def start(self) -> None:
        """Begins to count, the first time."""
        if self._started_at is None:
            self._started_at = self._now()

    @property
    def seconds(self) -> float:
        """Of all sessions so far."""
        return self._before_s + (0.0 if self._started_at is None else self._now() - self._started_at)

    def share(self) -> float:
        """Of the limit, from 0 to 1; 0 without a limit."""
        return 0.0 if self._limit_s is None else min(1.0, self.seconds / self._limit_s)
