"""A thread that has the next item ready while its owner is busy with the present one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

POLL_S = 0.2

Item = TypeVar("Item")


class Ahead(Generic[Item]):
    """One item ahead of its owner, made in a thread of its own.

    Args:
        turn: Called in the thread over and over, and hands over what it has made with :meth:`put`. It returns after
            ``POLL_S`` at most when there is nothing to make, so that :meth:`close` is heard.
        name: The thread's.
        while_full: Called in the thread, each ``POLL_S``, while an item waits for the owner.
    """

    def __init__(
        self, turn: Callable[[], object], *, name: str, while_full: Callable[[], object] | None = None
    ) -> None:
        """Nothing is made before :meth:`start`."""
        self._turn = turn
        self._while_full = while_full
        self._ready: Queue[Item | BaseException] = Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._make, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def next(self, *, timeout_s: float = POLL_S) -> Item | None:
        """The next item, or None when none came in time; re-raises what went wrong in the thread."""
        try:
            item = self._ready.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        return item

    def put(self, item: Item | BaseException) -> bool:
        """Hands an item over, in the thread, when the owner has taken the last one; False when it takes no more."""
        while not self._stop.is_set():
            try:
                self._ready.put(item, timeout=POLL_S)
            except Full:
                if self._while_full is not None:
                    self._while_full()
                continue
            return True
        return False

    @property
    def is_closing(self) -> bool:
        """Whether the owner takes no more."""
        return self._stop.is_set()

    def close(self, wake: Callable[[], object]) -> None:
        """Ends the thread; ``wake`` cuts short what its turn may be waiting for."""
        self._stop.set()
        wake()
        self._thread.join(timeout=5.0)

    def _make(self) -> None:
        try:
            while not self._stop.is_set():
                self._turn()
        except BaseException as error:  # The owner's thread is the one that may end the process.
            self.put(error)
