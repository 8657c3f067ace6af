"""A thread that loads the learner's next batch while the learner processes the current one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import Empty, Full, Queue
from typing import Generic, Protocol, TypeVar

POLL_S = 0.2

Item = TypeVar("Item")
Produced = TypeVar("Produced", covariant=True)


class Source(Protocol[Produced]):
    """A source of batches. Only the loader's thread calls it, except for :meth:`wake`."""

    def collect(self) -> Iterable[Produced]:
        """Yield the batches that are ready; waits for the first one, at most ``POLL_S``."""
        ...

    def while_full(self) -> None:
        """Called each ``POLL_S`` while a batch waits for the learner."""
        ...

    def wake(self) -> None:
        """Interrupt the wait of :meth:`collect`; called from another thread."""
        ...


class ReadyBatches:
    """The batches that the loaders of a process have ready for its learners.

    Attributes:
        arrived: Set whenever a batch becomes ready, for a thread that waits for several loaders.
    """

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self._lock = threading.Lock()
        self._count = 0

    @property
    def count(self) -> int:
        """How many batches wait for a learner, of each policy at most one."""
        return max(0, self._count)  # One may be taken before it is counted.

    def add(self, change: int) -> None:
        """Count a batch that has become ready (1), or was taken (-1)."""
        with self._lock:
            self._count += change
        if change > 0:
            self.arrived.set()


class BatchLoader(Generic[Item]):
    """Loads one batch ahead of the learner.

    Args:
        source: The source of batches.
        ready: Counts the batches of all loaders of the process.
    """

    def __init__(self, source: Source[Item], ready: ReadyBatches | None = None) -> None:
        """Start the thread."""
        self._source = source
        self._ready = ready or ReadyBatches()
        self._next: Queue[Item | BaseException] = Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._load, name="batch loader", daemon=True)
        self._thread.start()

    def next(self, *, timeout_s: float = POLL_S) -> Item | None:
        """Return the next batch, or None after the timeout; re-raises exceptions of the thread."""
        try:
            item = self._next.get(timeout=timeout_s)
        except Empty:
            return None
        self._ready.add(-1)
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._source.wake()
        self._thread.join(timeout=5.0)

    def _load(self) -> None:
        try:
            while not self._stop.is_set():
                for item in self._source.collect():
                    if not self._put(item):
                        return
        except BaseException as error:  # re-raised in the learner's thread
            self._put(error)

    def _put(self, item: Item | BaseException) -> bool:
        """Wait until the learner has taken the last batch; False if the loader is closed."""
        while not self._stop.is_set():
            try:
                self._next.put(item, timeout=POLL_S)
            except Full:
                self._source.while_full()
                continue
            self._ready.add(1)
            return True
        return False
