"""How long the environments of each task have been stepped, and equal time for all of them."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.views import Array

# A task may be ahead of the last one by so much, and then pauses before each of its steps.
_TOLERANCE_S, _PAUSE_S = 0.05, 0.25


class TaskClock:
    """The time of the steps of each task, which all rollout workers share.

    With ``equal``, tasks that are ahead of the one with the least time pause. The operating system gives workers equal
    time only while none waits for something else, such as the learner, who takes trajectories in the order in which
    they end. A task is not waited for before its first step, nor while all of its groups wait for slots: a cheap one
    among many may never get the slots for its share of the time. A pause is short, because tasks that wait for actions
    may not be able to go on either.

    Args:
        seconds: float64 ``[workers, tasks]`` in shared memory; each worker writes its row.
        worker: Index of this worker.
        equal: Whether tasks get equal time.
        parked: bool ``[groups]`` in shared memory: which groups wait for slots; group g has task g modulo ``tasks``.
            None if none ever does.
    """

    def __init__(self, seconds: Array, worker: int, *, equal: bool, parked: NDArray[np.bool_] | None = None) -> None:
        self._seconds = seconds
        self._own = seconds[worker]
        self._equal = equal
        self._parked = None if parked is None else parked.reshape(-1, seconds.shape[1])

    def add(self, task: int, elapsed: float) -> None:
        """Add the time of a step."""
        self._own[task] += elapsed

    def pause(self, task: int) -> None:
        """Wait for a moment if the task is ahead."""
        if not self._equal:
            return
        of_tasks = self._seconds.sum(axis=0)
        waited_for = of_tasks > 0.0
        if self._parked is not None:
            waited_for &= ~self._parked.all(axis=0)
        # Not of the mean: one of many tasks could fall far behind it before the others are ahead.
        ahead = float(of_tasks[task] - of_tasks.min(where=waited_for, initial=of_tasks[task]))
        if ahead > _TOLERANCE_S:
            time.sleep(min(ahead, _PAUSE_S))
