"""Holding a run still while something else is measured on its cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator

__all__ = ["paused_children"]


@contextlib.contextmanager
def paused_children() -> Iterator[None]:
    """Stops the processes that multiprocessing has started here, simulators of their own included, and continues them.

    A stopped process uses no core. It can still be killed, so the watchdog works as always.
    """
    groups = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    try:
        _signal(groups, signal.SIGSTOP)
        yield
    finally:
        _signal(groups, signal.SIGCONT)


def _signal(groups: list[int], number: signal.Signals) -> None:
    # Every process of a run leads a group, in which its simulators are.
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
