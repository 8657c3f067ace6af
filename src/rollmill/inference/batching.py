"""Batching of a policy worker's requests: all groups that are ready, or always the same groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollmill.inference.config import InferenceConfig
from rollmill.runtime.child import StopFlag
from rollmill.storage.slots import SlotStore

_POLL_S = 0.2
# A worker that waits for several groups wakes up after ``max_wait_us`` at the latest.
_WORTH_SLEEPING_S = 0.005
# On a CPU the cost per row of a forward pass hardly falls beyond this many rows.
ENOUGH_ROWS = 32


class Batching(Protocol):
    """Groups the requests of a policy worker into batches.

    Attributes:
        min_groups: Groups in a typical batch, used for the measurement at the start.
        max_groups: Maximum number of groups in a batch.
    """

    min_groups: int
    max_groups: int

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Wait briefly for requests; yields int64 ``[n]`` group indices, each valid until the next."""
        ...


class ReadyGroups:
    """Batches of all ready groups, after waiting for more while that delays no process (the async regime).

    Args:
        store: The slots.
        index: Index of this policy worker.
        config: Time to wait, and number of groups to wait for.
        stop: Interrupts a wait.
        on_cpu: Whether the worker computes on a CPU, where larger batches cost less per row.
    """

    def __init__(self, store: SlotStore, index: int, config: InferenceConfig, stop: StopFlag, *, on_cpu: bool) -> None:
        topology = store.topology
        self._store = store
        self._stop = stop
        self._rows = topology.group_rows
        self._on_cpu = on_cpu
        self._worker_of_group = np.asarray(topology.worker_of_group, np.int64)
        self._requests = store.requests[index]
        self._groups = np.asarray(topology.groups_of_policy_worker(index), np.int64)
        self._pending: NDArray[np.int64] = np.empty(topology.num_groups, np.int64)
        limit = config.max_batch_rows
        self.max_groups = len(self._groups) if limit == "auto" else max(1, limit // self._rows)
        worth = self._groups_worth_waiting_for(config)
        self.min_groups = max(1, min(worth, len(self._groups), self.max_groups))
        self._max_wait_s = config.max_wait_us * 1e-6
        self._may_sleep_for_more = self._may_always_wait()

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """See :class:`Batching`."""
        waiting = self._collect()
        for first in range(0, waiting, self.max_groups):
            yield self._pending[first : min(first + self.max_groups, waiting)]

    def _groups_worth_waiting_for(self, config: InferenceConfig) -> int:
        if config.min_batch_groups != "auto":
            return config.min_batch_groups
        return 2 if self._on_cpu and self._rows < ENOUGH_ROWS else 1

    def _collect(self) -> int:
        """Wait briefly for requests; returns their number, with their groups in ``_pending``."""
        if not self._may_sleep_for_more or self._store.group_is_parked.any():
            waiting = self._requests.get_many(self._pending, _POLL_S)
            return self._wait_for_more(waiting, time.monotonic() + self._max_wait_s)
        deadline = time.monotonic() + self._max_wait_s
        # Any first groups allow waiting for the rest, so this process is woken once for all of them.
        waiting = self._requests.get_many(self._pending, min(self._max_wait_s, _POLL_S), self.min_groups)
        return self._wait_for_more(waiting, deadline)

    def _may_always_wait(self) -> bool:
        """Whether any ``min_groups`` - 1 groups may be delayed, provided that each has a slot.

        True if each rollout worker has another group to step and they are less than half of all groups.
        """
        others = self.min_groups - 1
        _, groups_of_worker = np.unique(self._worker_of_group[self._groups], return_counts=True)
        if others == 0 or 2 * others >= len(self._groups) or self._max_wait_s < _WORTH_SLEEPING_S:
            return False
        return bool((groups_of_worker > others).all())

    def _wait_for_more(self, waiting: int, deadline: float) -> int:
        """Wait for enough groups for a batch while that delays no process; returns their number."""
        if not waiting:
            return waiting
        while waiting < self.min_groups and not self._stop.is_set():
            left = deadline - time.monotonic()
            if left <= 0 or not self._may_wait(self._pending[:waiting]):
                break
            # Each group that arrives, or waits for a slot, may leave its rollout worker without work.
            waiting += self._requests.get_many(self._pending[waiting:], min(left, _POLL_S))
        return waiting

    def _may_wait(self, pending: NDArray[np.int64]) -> bool:
        """Whether the rollout workers of these groups, int64 ``[n]``, have other groups to step.

        The groups must also be less than half of this worker's groups in flight, so that simulation and inference
        overlap. A group that waits for another policy worker counts as stepped.
        """
        store, worker_of_group = self._store, self._worker_of_group
        stepping = ~store.group_is_parked
        if 2 * len(pending) >= int(np.count_nonzero(stepping[self._groups])):
            return False
        stepping[pending] = False
        busy = np.zeros(store.topology.num_workers, np.bool_)
        busy[worker_of_group[stepping]] = True
        return bool(busy[worker_of_group[pending]].all())


class FixedGroups:
    """Fixed batches, each processed when its last group is ready (the lockstep regime).

    Floating-point results depend on the shape of a batch and on a row's position, so neither may depend on timing.

    Args:
        store: The slots; their topology determines the groups.
        index: Index of this policy worker.
    """

    def __init__(self, store: SlotStore, index: int) -> None:
        topology = store.topology
        self._requests = store.requests[index]
        self._pending: NDArray[np.int64] = np.empty(topology.num_groups, np.int64)
        self.min_groups = self.max_groups = topology.groups_per_batch
        self._missing = np.full(topology.num_groups // topology.groups_per_batch, topology.groups_per_batch)

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """See :class:`Batching`."""
        # Sleeps until enough groups for some batch are ready.
        waiting = self._requests.get_many(self._pending, _POLL_S, int(self._missing.min()))
        for group in self._pending[:waiting].tolist():
            batch = group // self.max_groups
            self._missing[batch] -= 1
            if self._missing[batch] == 0:
                self._missing[batch] = self.max_groups
                yield np.arange(batch * self.max_groups, (batch + 1) * self.max_groups)
