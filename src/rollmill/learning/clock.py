"""The training time of a run, over all its sessions."""

from __future__ import annotations

import time
from collections.abc import Callable


class TrainingClock:
    """Seconds of training, from the learner's first report, without the time between sessions.

    Args:
        limit_s: Seconds after which the run ends; None for no limit.
        now: Returns seconds.
    """

    def __init__(self, limit_s: float | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._now = now
        self._before_s = 0.0
        self._started_at: float | None = None

    def restore(self, seconds: float) -> None:
        """Restore the seconds of earlier sessions; called before :meth:`start`."""
        self._before_s = seconds

    def start(self) -> None:
        """Start the clock; later calls do nothing."""
        if self._started_at is None:
            self._started_at = self._now()

    @property
    def seconds(self) -> float:
        """Seconds of training in all sessions so far."""
        return self._before_s + (0.0 if self._started_at is None else self._now() - self._started_at)

    def share(self) -> float:
        """Share of the limit, from 0 to 1; 0 without a limit."""
        return 0.0 if self._limit_s is None else min(1.0, self.seconds / self._limit_s)
