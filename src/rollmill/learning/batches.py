"""Admission: completed slots become batches of trajectories, first in first out (async) or by iteration (lockstep).

Observations are not copied here. A batch refers to trajectories (slot, row) and holds a reference on their slots, and
each micro-batch gathers the observations it needs straight out of the slots. Only the small arrays are gathered for the
whole batch, in a thread of their own, so that the learner finds the next batch ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollmill.learning.ahead import POLL_S, Ahead
from rollmill.native import gather_trajectories
from rollmill.storage.episodes import EpisodeEnd
from rollmill.storage.slots import OBSERVATION_PREFIX, RNN_STATE, SlotStore

Prepared = TypeVar("Prepared")

# Behind the whole batch there is nothing that needs these per sample on the learner's device.
_NOT_GATHERED = ("episode_return", "episode_length")


@dataclass(frozen=True)
class Batch:
    """Trajectories to learn from.

    Attributes:
        arrays: Small arrays ``[T(+1), N, ...]`` by their names in a slot (see :mod:`rollmill.specs`); ``rnn_state``
            is ``[N, S]``.
        observation_index: int64 ``[T + 1, N]``: which row of the observation arrays, seen as
            ``[num_slots * (T + 1) * B, ...]``, holds x_t of each trajectory.
        slots: One entry for each reference that the batch holds.
        episodes: Episodes that ended within these trajectories.
    """

    arrays: dict[str, NDArray[Any]]
    observation_index: NDArray[np.int64]
    slots: tuple[int, ...]
    episodes: tuple[EpisodeEnd, ...]

    @property
    def num_trajectories(self) -> int:
        """N."""
        return int(self.observation_index.shape[1])

    @property
    def rollout_length(self) -> int:
        """T."""
        return int(self.observation_index.shape[0]) - 1


class Assembler(Protocol):
    """An admission rule: what makes a batch of completed slots. Not thread-safe; one thread owns it."""

    def add(self, slot: int) -> None:
        """Appends a completed slot, whose reference the assembler takes over."""
        ...

    def take(self) -> Batch | None:
        """The next batch, or None while it is not complete."""
        ...


class BatchAssembler:
    """Cuts the stream of completed slots into batches of exactly ``num_trajectories`` rows.

    A slot that reaches over the end of a batch is split: its remaining rows open the next batch, and it gets one more
    reference. See :class:`Assembler`.
    """

    def __init__(self, store: SlotStore, *, num_trajectories: int) -> None:
        """``num_trajectories`` is the batch size in samples divided by T."""
        self._store = store
        self._num_trajectories = num_trajectories
        self._segments: deque[tuple[int, int, int]] = deque()
        self._rows = 0

    def add(self, slot: int) -> None:
        """Appends a completed slot, whose reference the assembler takes over."""
        self._segments.append((slot, 0, self._store.topology.group_rows))
        self._rows += self._store.topology.group_rows

    def take(self) -> Batch | None:
        """The next batch, or None while too few rows have come."""
        if self._rows < self._num_trajectories:
            return None
        chosen: list[tuple[int, int, int, int]] = []
        column = 0
        while column < self._num_trajectories:
            slot, first_row, rows = self._segments.popleft()
            used = min(rows, self._num_trajectories - column)
            if used < rows:
                self._store.retain(slot)
                self._segments.appendleft((slot, first_row + used, rows - used))
            chosen.append((slot, first_row, used, column))
            column += used
        self._rows -= self._num_trajectories
        return gather_batch(self._store, np.array(chosen, np.int64))


class IterationAssembler:
    """Batch i is the i-th slot of every group, in the order of the groups. See :class:`Assembler`."""

    def __init__(self, store: SlotStore) -> None:
        """The store's slots belong to groups."""
        self._store = store
        self._group_of_slot = store.topology.group_of_slot()
        self._waiting: list[deque[int]] = [deque() for _ in range(store.topology.num_groups)]

    def add(self, slot: int) -> None:
        """Appends a completed slot. A group's slots come in the order of their iterations."""
        self._waiting[self._group_of_slot[slot]].append(slot)

    def take(self) -> Batch | None:
        """The next iteration's batch, or None while a group's slot is missing."""
        if not all(self._waiting):
            return None
        rows = self._store.topology.group_rows
        chosen = [(slots.popleft(), 0, rows, group * rows) for group, slots in enumerate(self._waiting)]
        return gather_batch(self._store, np.array(chosen, np.int64))


def gather_batch(store: SlotStore, segments: NDArray[np.int64]) -> Batch:
    """The trajectories of some slots as one batch.

    Args:
        store: The slots.
        segments: int64 ``[n, 4]``: slot, first row, rows, and the first trajectory of the batch that they become.
    """
    num_trajectories = int(segments[:, 2].sum())
    arrays = {}
    for name, array in store.arrays.items():
        if name.startswith(OBSERVATION_PREFIX) or name in _NOT_GATHERED:
            continue
        per_step = array if name != RNN_STATE else array[:, None]
        out = np.empty((per_step.shape[1], num_trajectories, *per_step.shape[3:]), per_step.dtype)
        gather_trajectories(out, per_step, segments, per_step.shape[1])
        arrays[name] = out if name != RNN_STATE else out[0]
    return Batch(
        arrays, _observation_index(store, segments), tuple(segments[:, 0].tolist()), _episodes(store, segments)
    )


def _observation_index(store: SlotStore, segments: NDArray[np.int64]) -> NDArray[np.int64]:
    topology = store.topology
    slot = np.repeat(segments[:, 0], segments[:, 2])
    row = np.concatenate([np.arange(first, first + rows) for _, first, rows, _ in segments])
    step = np.arange(topology.rollout_length + 1)[:, None]
    index: NDArray[np.int64] = (slot * (topology.rollout_length + 1) + step) * topology.group_rows + row
    return index


def _episodes(store: SlotStore, segments: NDArray[np.int64]) -> tuple[EpisodeEnd, ...]:
    lengths, returns = store.arrays["episode_length"], store.arrays["episode_return"]
    ends = []
    for slot, first, rows, _ in segments.tolist():
        of_segment = lengths[slot, :, first : first + rows]
        steps, columns = np.nonzero(of_segment)
        if len(steps):
            values = returns[slot, :, first : first + rows][steps, columns]
            ends += [EpisodeEnd(float(r), int(n)) for r, n in zip(values, of_segment[steps, columns], strict=True)]
    return tuple(ends)


class BatchLoader(Generic[Prepared]):
    """Collects batches in a background thread, one ahead of the learner.

    Args:
        store: The slots.
        assembler: Cuts them into batches.
        prepare: Called in the thread for every batch, to do there what can be done before the weights are known.
        learner: Which learner this is; its ring of completed slots.
    """

    def __init__(
        self, store: SlotStore, assembler: Assembler, prepare: Callable[[Batch], Prepared], *, learner: int = 0
    ) -> None:
        """Starts the thread."""
        self._store = store
        self._assembler = assembler
        self._prepare = prepare
        self._completed = store.completed[learner]
        self._messages = np.empty(store.topology.num_slots, np.int64)
        self._ahead: Ahead[Prepared] = Ahead(self._collect, name="batch loader")
        self._ahead.start()

    def next(self, *, timeout_s: float = POLL_S) -> Prepared | None:
        """The next batch, or None when none came in time; re-raises what went wrong in the thread."""
        return self._ahead.next(timeout_s=timeout_s)

    def close(self) -> None:
        """Ends the thread."""
        self._ahead.close(self._completed.wake)

    def _collect(self) -> None:
        for slot in self._messages[: self._completed.get_many(self._messages, POLL_S)].tolist():
            self._assembler.add(slot)
        while (batch := self._assembler.take()) is not None and self._ahead.put(self._prepare(batch)):
            pass
