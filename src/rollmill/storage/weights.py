"""Weight publication: a ring of whole versions in shared memory, never read torn.

The learner writes each version into the next of ``R`` places and then stores, in one word, the newest version and its
place; readers copy it and check afterwards that it was not overwritten meanwhile (a seqlock). With ``R >= 2`` the
writer never touches the version that it published last, so a reader has to start again only when two publications
overtake it. Unlike with pinning, a reader that is killed while it reads leaves nothing behind that could stop the
writer.

The store handles bytes; :mod:`rollmill.models.flat_state` defines their meaning.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.native import atomic_load, atomic_store, snapshot_read, snapshot_write
from rollmill.runtime.arena import ArenaLayout

NOT_PUBLISHED = -1
FIRST_RING = "acting/0"


def acting_ring(policy: int) -> str:
    """Return the name of the ring in which a policy's learner publishes, and from which policy workers read."""
    return f"acting/{policy}"


def add_to_layout(layout: ArenaLayout, *, nbytes: int, num_versions: int = 2, ring: str = FIRST_RING) -> None:
    """Reserves a ring of versions (``nbytes`` for each of ``num_versions`` >= 2 versions)."""
    if num_versions < 2:
        raise ValueError(
            f"num_versions={num_versions}: a ring of at least 2 versions is needed, so that the writer "
            "never overwrites the version that readers read."
        )
    layout.add(f"weights/{ring}/header", (num_versions, 2), "int64")
    layout.add(f"weights/{ring}/newest", (1,), "int64")
    layout.add(f"weights/{ring}/data", (num_versions, -(-nbytes // 64) * 64), "uint8")


class WeightStore:
    """A ring of published weights, seen from any process; see :func:`acting_ring`."""

    def __init__(self, arena: Mapping[str, NDArray[Any]], *, ring: str = FIRST_RING, create: bool = False) -> None:
        """Attaches; ``create`` (in one process, before the others start) marks every version as not published."""
        self._header = arena[f"weights/{ring}/header"]
        self._newest = arena[f"weights/{ring}/newest"]
        self._data = arena[f"weights/{ring}/data"]
        if create:
            self._header[:, 0] = 0
            self._header[:, 1] = NOT_PUBLISHED
            self._newest[0] = NOT_PUBLISHED

    @property
    def nbytes(self) -> int:
        """Bytes of one version."""
        return int(self._data.shape[1])

    @property
    def newest(self) -> int:
        """The newest version that can be read, or ``NOT_PUBLISHED``."""
        return self._newest_and_place()[0]

    def publish(self, version: int, weights: NDArray[np.uint8]) -> None:
        """Makes ``weights`` readable as ``version``. One writer; versions must grow."""
        # By turns, not by version: versions may grow by any step, and the newest one is never written into.
        place = (self._newest_and_place()[1] + 1) % len(self._header)
        snapshot_write(self._header[place], self._data[place, : weights.nbytes], weights, version)
        atomic_store(self._newest, 0, version * len(self._header) + place)

    def read_newest(self, into: NDArray[np.uint8], *, unless: int = NOT_PUBLISHED) -> int:
        """Copies the newest version into ``into`` unless the caller has it already.

        Returns:
            The version that is now in ``into``: ``unless`` if there is none that is newer (``into`` is unchanged then).
        """
        while True:
            version, place = self._newest_and_place()
            if version in (unless, NOT_PUBLISHED):
                return unless
            if snapshot_read(self._header[place], into, self._data[place, : into.nbytes]) == version:
                return version

    def read(self, version: int, into: NDArray[np.uint8]) -> None:
        """Copies exactly this version into ``into``.

        Raises:
            LookupError: It is not in the ring: not published yet, or overwritten.
        """
        for place in range(len(self._header)):
            # Checking the header first only saves a copy; the result of the whole read counts.
            header = self._header[place]
            if header[1] == version and snapshot_read(header, into, self._data[place, : into.nbytes]) == version:
                return
        raise LookupError(f"version {version} of the weights is not in the ring, whose newest is {self.newest}")

    def _newest_and_place(self) -> tuple[int, int]:
        """The newest version and its place; before the first publication ``NOT_PUBLISHED`` and the last place."""
        return divmod(atomic_load(self._newest, 0), len(self._header))

    def wait_for(self, version: int, *, timeout_s: float) -> bool:
        """Waits until this version, or a newer one, is published; False when that takes longer than ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.newest < version:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True
