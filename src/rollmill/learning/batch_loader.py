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


class BatchLoader(Generic[Item]):
    """Loads one batch ahead of the learner.

    Args:
        source: The source of batches.
        arrived: Set whenever a batch is ready, for a learner that waits for several loaders.
    """

    def __init__(self, source: Source[Item], arrived: threading.Event | None = None) -> None:
        """Start the thread."""
        self._source = source
        self._arrived = arrived
        self._ready: Queue[Item | BaseException] = Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._load, name="batch loader", daemon=True)
        self._thread.start()

    def next(self, *, timeout_s: float = POLL_S) -> Item | None:
        """Return the next batch, or None after the timeout; re-raises exceptions of the thread."""
        try:
            item = self._ready.get(timeout=timeout_s)
        except Empty:
            return None
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
                self._ready.put(item, timeout=POLL_S)
            except Full:
                self._source.while_full()
                continue
            if self._arrived is not None:
                self._arrived.set()
            return True
        return False
