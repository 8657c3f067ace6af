"""A policy's bank of past selves in shared memory: weights in places with generations, and who may be met.

The learner writes snapshots and publishes, with each version of its weights, a table of the places and of the
probability with which each is met. Rollout workers draw opponents from the table when a match begins, and policy
workers load a place's weights. A place is overwritten only while it is in no match: the learner closes it first, and a
rollout worker that begins a match counts itself as a user before it looks whether the place is still open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.native import atomic_add, atomic_load, atomic_store, snapshot_read, snapshot_write
from rollmill.runtime.arena import ArenaLayout
from rollmill.storage.weights import WeightStore
from rollmill.storage.weights import add_to_layout as add_weights_to_layout

_EMPTY = 0


class BankTable(NamedTuple):
    """Who may be met.

    Attributes:
        generation: int64 ``[S]``, the number of the snapshot in each place, from 1; 0 where none may be met.
        probability: float64 ``[S]``, with which each is met; sums to 1, or to 0 where there is none.
    """

    generation: NDArray[np.int64]
    probability: NDArray[np.float64]

    @classmethod
    def empty(cls, places: int) -> BankTable:
        """The table of an empty bank."""
        return cls(np.zeros(places, np.int64), np.zeros(places, np.float64))

    def pack(self) -> NDArray[np.uint8]:
        """As bytes."""
        return np.concatenate([self.generation.view(np.uint8), self.probability.view(np.uint8)])

    @classmethod
    def unpack(cls, packed: NDArray[np.uint8]) -> BankTable:
        """What :meth:`pack` packed."""
        half = len(packed) // 2
        return cls(packed[:half].view(np.int64), packed[half:].view(np.float64))


def add_to_layout(layout: ArenaLayout, *, places: int, nbytes: int, num_versions: int, policy: int = 0) -> None:
    """Reserve the bank of one policy.

    Args:
        layout: The arena.
        places: Places of the bank.
        nbytes: Bytes of the acting network's weights.
        num_versions: Tables that may be read at once, as versions of the weights.
        policy: Whose bank it is.
    """
    prefix = f"bank/{policy}"
    layout.add(f"{prefix}/header", (places, 2), "int64", poisoned=False)
    layout.add(f"{prefix}/data", (places, -(-nbytes // 64) * 64), "uint8", poisoned=False)
    layout.add(f"{prefix}/open", (places,), "int64", poisoned=False)
    layout.add(f"{prefix}/users", (places,), "int64", poisoned=False)
    add_weights_to_layout(layout, nbytes=16 * places, num_versions=num_versions, ring=f"{prefix}/tables")


class SnapshotBank:
    """A process's view of the bank.

    Args:
        arena: Shared memory that was laid out with :func:`add_to_layout`.
        policy: As in the layout.
        create: True in one process, before the others start: the bank is empty then.

    Attributes:
        places: Number of places.
    """

    def __init__(self, arena: Mapping[str, NDArray[Any]], *, policy: int = 0, create: bool = False) -> None:
        prefix = f"bank/{policy}"
        self._header = arena[f"{prefix}/header"]
        self._data = arena[f"{prefix}/data"]
        self._open = arena[f"{prefix}/open"]
        self._users = arena[f"{prefix}/users"]
        self.places = len(self._open)
        self._tables = WeightStore(arena, ring=f"{prefix}/tables", create=create)
        self._packed = BankTable.empty(self.places).pack()
        self._version = -1
        if create:
            self._header[:, 0] = 0
            self._header[:, 1] = _EMPTY

    # --- The learner.

    def write(self, place: int, generation: int, weights: NDArray[np.uint8]) -> None:
        """Write a snapshot into a place that is in no match."""
        snapshot_write(self._header[place], self._data[place, : weights.nbytes], weights, generation)

    def publish(self, version: int, table: BankTable) -> None:
        """Publish a table as that of a version of the weights, and open the places that it has."""
        for place, generation in enumerate(table.generation.tolist()):
            atomic_store(self._open, place, generation)
        self._tables.publish(version, table.pack())

    def is_unused(self, place: int) -> bool:
        """Whether no match with a place is being played; for good if the place is closed."""
        return atomic_load(self._users, place) == 0

    # --- Rollout workers.

    def newest_table(self) -> BankTable:
        """Return the newest table."""
        self._version = self._tables.read_newest(self._packed, unless=self._version)
        return BankTable.unpack(self._packed)

    def table(self, version: int) -> BankTable:
        """Return the table of exactly this version.

        Raises:
            LookupError: It is not published yet, or overwritten.
        """
        if version != self._version:
            self._tables.read(version, self._packed)
            self._version = version
        return BankTable.unpack(self._packed)

    def wait_for(self, version: int, *, timeout_s: float) -> bool:
        """Wait until the table of this version, or of a newer one, is published; False after the timeout."""
        return self._tables.wait_for(version, timeout_s=timeout_s)

    def begin(self, place: int, generation: int) -> bool:
        """Begin a match with a past self; False if it may no longer be met."""
        atomic_add(self._users, place, 1)
        if atomic_load(self._open, place) == generation:
            return True
        self.end(place)
        return False

    def end(self, place: int) -> None:
        """End a match."""
        atomic_add(self._users, place, -1)

    # --- Policy workers.

    def read(self, place: int, into: NDArray[np.uint8], *, unless: int) -> int:
        """Copy a place's weights into ``into`` unless the caller has this generation; returns the generation."""
        while True:
            generation = int(self._header[place, 1])
            if generation == unless:
                return unless
            if snapshot_read(self._header[place], into, self._data[place, : into.nbytes]) == generation:
                return generation
