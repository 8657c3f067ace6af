"""Which requests a policy worker answers with one forward pass: whatever is ready, or always the same groups."""

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
# A worker that sleeps until several groups have come looks up after ``max_wait_us``, even if none has.
_WORTH_SLEEPING_S = 0.005
# On the CPU a forward pass of this many rows costs about as little a row as larger ones do.
ENOUGH_ROWS = 32


class Batching(Protocol):
    """Turns the requests of a policy worker's groups into batches.

    Attributes:
        min_groups: Groups of a usual batch; what the start's measurement computes with.
        max_groups: Groups of a batch at most.
    """

    min_groups: int
    max_groups: int

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Waits for requests, a moment at most; int64 ``[n]`` group indices, valid until the next one is asked for."""
        ...


class ReadyGroups:
    """Batches of whatever is ready, after waiting for more while that costs nobody's time (the async regime).

    Args:
        store: The slots.
        index: Which policy worker this is.
        config: How long to wait, and for how many.
        stop: Ends a wait.
        on_cpu: Whether larger batches cost less a row.
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
        """Waits for requests, a moment at most; returns how many there are, with their groups in ``_pending``."""
        if not self._may_sleep_for_more or self._store.group_is_parked.any():
            waiting = self._requests.get_many(self._pending, _POLL_S)
            return self._wait_for_more(waiting, time.monotonic() + self._max_wait_s)
        deadline = time.monotonic() + self._max_wait_s
        # Whoever the first of them are, the rest can be waited for: this process is woken once for all of them.
        waiting = self._requests.get_many(self._pending, min(self._max_wait_s, _POLL_S), self.min_groups)
        return self._wait_for_more(waiting, deadline)

    def _may_always_wait(self) -> bool:
        """Whether any ``min_groups`` - 1 groups may be waited with, as long as none is without a slot.

        They leave each rollout worker another group of this policy worker's to step, and are less than half of all.
        """
        others = self.min_groups - 1
        _, groups_of_worker = np.unique(self._worker_of_group[self._groups], return_counts=True)
        if others == 0 or 2 * others >= len(self._groups) or self._max_wait_s < _WORTH_SLEEPING_S:
            return False
        return bool((groups_of_worker > others).all())

    def _wait_for_more(self, waiting: int, deadline: float) -> int:
        """Waits for as many groups as are worth a batch, while it costs nobody's time; returns how many there are."""
        if not waiting:
            return waiting
        while waiting < self.min_groups and not self._stop.is_set():
            left = deadline - time.monotonic()
            if left <= 0 or not self._may_wait(self._pending[:waiting]):
                break
            # Each group that comes, or has to wait for a slot, may leave its rollout worker with nothing to step.
            waiting += self._requests.get_many(self._pending[waiting:], min(left, _POLL_S))
        return waiting

    def _may_wait(self, pending: NDArray[np.int64]) -> bool:
        """Whether the rollout workers of these groups, int64 ``[n]``, have others to step meanwhile.

        And whether these are less than half of this worker's groups under way, so that simulation and inference
        overlap. A group that waits for another policy worker counts as one that is stepped.
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
    """Always the same groups together, each batch as soon as its last group has come (the lockstep regime).

    Floating-point results depend on the shape of a batch and on a row's place in it, so neither may depend on who was
    faster.

    Args:
        store: The slots; their topology says which groups.
        index: Which policy worker this is.
    """

    def __init__(self, store: SlotStore, index: int) -> None:
        topology = store.topology
        self._requests = store.requests[index]
        self._pending: NDArray[np.int64] = np.empty(topology.num_groups, np.int64)
        self.min_groups = self.max_groups = topology.groups_per_batch
        self._missing = np.full(-(-topology.num_groups // topology.groups_per_batch), topology.groups_per_batch)

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """See :class:`Batching`."""
        # Fewer than are missing for any batch are not worth waking up for.
        waiting = self._requests.get_many(self._pending, _POLL_S, int(self._missing.min()))
        for group in self._pending[:waiting].tolist():
            batch = group // self.max_groups
            self._missing[batch] -= 1
            if self._missing[batch] == 0:
                self._missing[batch] = self.max_groups
                yield np.arange(batch * self.max_groups, (batch + 1) * self.max_groups)
