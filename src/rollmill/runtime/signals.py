"""SIGINT (Ctrl-C), SIGTERM and SIGHUP as a flag that the main loop checks, or as an exception without such a loop.

The last one comes when a terminal or an ssh connection is closed. Under ``nohup`` it is ignored, and stays so.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

# ``timeout`` signals its child and then the child's group, and a terminal's Ctrl-C may be passed on by a wrapper: one
# wish to stop arrives as two signals.
_ONE_WISH_S = 1.0
# Maximum delay between processes that receive the same signal.
_TO_ALL_WITHIN_S = 0.5


def _endings() -> list[signal.Signals]:
    """The signals that end a program, apart from Ctrl-C."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGHUP]


def comes_here_too(is_received: Callable[[], bool]) -> bool:
    """Whether a signal that another process got reaches this one, too, as those do that Slurm and systemd send to all.

    Args:
        is_received: Whether it has come; asked again for half a second.
    """
    deadline = time.monotonic() + _TO_ALL_WITHIN_S
    while not is_received() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_received()


class StopSignals:
    """While its context lasts, the first of these signals sets a flag, and a second one interrupts at once.

    Signals within a second of the first count as the same signal, delivered twice.

    ``with StopSignals() as signals: while not signals.received: ...``. The handlers from before are put back at the
    end. Outside the main thread Python allows no handlers: then nothing is changed and the flag stays unset.

    Attributes:
        received: The first signal, or None.
    """

    def __init__(self) -> None:
        """Changes nothing before the context is entered."""
        self.received: signal.Signals | None = None
        self._received_at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *_endings()):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python, which Python cannot put back either.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is not None:
            # A terminal that is closed while a run ends does not mean that it shall end at once.
            if now - self._received_at < _ONE_WISH_S or number == signal.SIGHUP:
                return
            # KeyboardInterrupt for SIGTERM too: it passes through `except Exception` and runs every `finally`.
            raise KeyboardInterrupt(f"a second signal ({signal.Signals(number).name}): stopping at once")
        self.received, self._received_at = signal.Signals(number), now


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """While its context lasts, SIGTERM and SIGHUP interrupt as Ctrl-C does, once: every ``finally`` runs to its end.

    Outside the main thread nothing is changed, as with :class:`StopSignals`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in _endings()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
