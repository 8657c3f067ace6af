"""Writes files in a thread, so that the caller does not wait for the disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class BackgroundWrites:
    """Writes files in a thread of its own, one after another; for one thread that submits them.

    What is to be written waits in memory. Ask :attr:`is_busy` first, so that there is one such file at a time.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="background writes")
        self._last: Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the last file that was submitted is not written yet."""
        return self._last is not None and not self._last.done()

    def submit(self, write: Callable[[], Result]) -> Future[Result]:
        """Call a function in the thread; its result, or its exception, is the future's."""
        self._last = future = self._pool.submit(write)
        return future
