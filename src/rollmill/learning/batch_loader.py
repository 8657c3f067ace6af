"""A thread that has the learner's next batch ready while the learner is busy with the present one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from queue import Empty, Full, Queue
from typing import Generic, Protocol, TypeVar

__all__ = ["POLL_S", "BatchLoader", "Source"]

POLL_S = 0.2

Item = TypeVar("Item")
Produced = TypeVar("Produced", covariant=True)


class Source(Protocol[Produced]):
    """Where batches come from. Only the loader's thread calls it, except for :meth:`wake`."""

    def collect(self) -> Iterable[Produced]:
        """The batches that are ready, made one by one; waits for the first one, ``POLL_S`` at most."""
        ...

    def while_full(self) -> None:
        """Called each ``POLL_S`` while a batch waits for the learner."""
        ...

    def wake(self) -> None:
        """Cuts short what :meth:`collect` waits for; called from another thread."""
        ...


class BatchLoader(Generic[Item]):
    """One batch ahead of the learner.

    Args:
        source: Where batches come from.
    """

    def __init__(self, source: Source[Item]) -> None:
        """Starts the thread."""
        self._source = source
        self._ready: Queue[Item | BaseException] = Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._load, name="batch loader", daemon=True)
        self._thread.start()

    def next(self, *, timeout_s: float = POLL_S) -> Item | None:
        """The next batch, or None when none came in time; raises what went wrong in the thread."""
        try:
            item = self._ready.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._source.wake()
        self._thread.join(timeout=5.0)

    def _load(self) -> None:
        try:
            while not self._stop.is_set():
                for item in self._source.collect():
                    if not self._put(item):
                        return
        except BaseException as error:  # The learner's thread is the one that may end the process.
            self._put(error)

    def _put(self, item: Item | BaseException) -> bool:
        """Waits until the learner has taken the last batch; False when it takes no more."""
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=POLL_S)
            except Full:
                self._source.while_full()
                continue
            return True
        return False
