"""Cores that jobs of two priorities share, in the simulation's own time.

A processor-sharing queue: everything that runs in a class of priority runs at the same speed, so one virtual clock for
each class and a heap of finishing times on it are exact, and an event costs O(log n).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["NICE", "URGENT", "SharedCores"]

URGENT, NICE, _WAITING = 0, 1, 2
# Of a core, for each rollout worker, when the others could use all: Linux's weight of niceness 10 against that of 0.
_NICE_WEIGHT = 110 / 1024


class SharedCores:
    """M cores, shared by jobs of two priorities.

    Args:
        cores: M.
        contention: As in :class:`rollmill.tuning.model.StageCosts`.
    """

    def __init__(self, cores: float, contention: float) -> None:
        self.now = 0.0
        self._cores = cores
        self._contention = contention
        self._heaps: tuple[list[tuple[float, int, float, Callable[[], None]]], ...] = ([], [], [])
        self._clocks = [0.0, 0.0, 0.0]
        self._weights = [0.0, 0.0, 0.0]
        self._speeds = [1.0, 1.0, 1.0]
        self._number = 0

    def run(self, priority: int, seconds: float, then: Callable[[], None], *, width: float = 1.0) -> None:
        """Begins a job of so many seconds on ``width`` cores."""
        self._number += 1
        heapq.heappush(self._heaps[priority], (self._clocks[priority] + seconds, self._number, width, then))
        self._weights[priority] += width
        self._share()

    def wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Lets so many seconds pass, without a core."""
        self.run(_WAITING, seconds, then, width=0.0)

    def advance(self) -> bool:
        """Goes on to the next job that ends; False if there is none."""
        waits = [
            (heap[0][0] - clock) / speed if heap else float("inf")
            for heap, clock, speed in zip(self._heaps, self._clocks, self._speeds, strict=True)
        ]
        wait = min(waits)
        if wait == float("inf"):
            return False
        wait = max(0.0, wait)
        first = waits.index(min(waits))
        self.now += wait
        for priority in (URGENT, NICE, _WAITING):
            self._clocks[priority] += wait * self._speeds[priority]
        _, _, width, then = heapq.heappop(self._heaps[first])
        self._weights[first] -= width
        self._share()
        then()
        return True

    def _share(self) -> None:
        urgent, nice, _ = self._weights
        left_for_nice = (
            max(self._cores - urgent, self._cores * nice * _NICE_WEIGHT / (nice * _NICE_WEIGHT + urgent))
            if nice
            else 0.0
        )
        nice_gets = min(nice, left_for_nice)
        urgent_gets = min(urgent, self._cores - nice_gets)
        slow = 1 + (self._contention - 1) * min(1.0, (nice_gets + urgent_gets) / self._cores)
        self._speeds[URGENT] = max(1e-12, urgent_gets / urgent / slow if urgent else 1.0)
        self._speeds[NICE] = max(1e-12, nice_gets / nice / slow if nice else 1.0)
