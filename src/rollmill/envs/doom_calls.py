"""Threads for calls of Doom's engines, some of which never return."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

_Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class EngineCalls:
    """A fixed number of threads.

    Unlike those of a ``ThreadPoolExecutor`` they are daemons: the process can exit while a call hangs.

    Args:
        threads: How many calls can be made at the same time.
    """

    def __init__(self, threads: int) -> None:
        self._waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._calls: list[Future[Any]] = []
        self._threads: list[threading.Thread] = []
        self._most = threads

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Make a call in a thread that has none."""
        if len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=_make_calls, args=(self._waiting,), name="doom", daemon=True))
            self._threads[-1].start()
        future: Future[Any] = Future()
        self._calls = [other for other in self._calls if not other.done()] + [future]
        self._waiting.put((future, call, arguments))
        return future

    def have_returned(self, within: float) -> bool:
        """Wait until all calls have returned or raised; False if it takes longer (seconds)."""
        return not wait(self._calls, timeout=within).not_done

    def end(self) -> None:
        """End the threads, each after its call."""
        for _ in self._threads:
            self._waiting.put(None)
        self._threads = []


def all_returned(calls: list[Future[Any]], within: float) -> bool:
    """Wait until all calls return or one raises, and raise that; False if it takes longer (seconds)."""
    ended, others = wait(calls, timeout=within, return_when=FIRST_EXCEPTION)
    for call in ended:
        call.result()
    return not others


def _make_calls(waiting: queue.SimpleQueue[_Call | None]) -> None:
    while (entry := waiting.get()) is not None:
        future, call, arguments = entry
        try:
            result = call(*arguments)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        del entry, future, call, arguments
