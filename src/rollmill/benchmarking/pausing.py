"""Holding a run still while something else is measured on its cores.

A stopped process uses no core. It can still be killed, so the watchdog works as always. Simulators that have left its
process group are not stopped, but have nothing to do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator

__all__ = ["end", "pause", "paused_children", "resume"]


@contextlib.contextmanager
def paused_children() -> Iterator[None]:
    """Stops the processes that multiprocessing has started here, with their groups, and lets them go on again."""
    groups = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    try:
        pause(groups)
        yield
    finally:
        resume(groups)


def pause(groups: Iterable[int]) -> None:
    """Stops these processes, by number, with their groups: each process of a run leads one."""
    _signal(groups, signal.SIGSTOP)


def resume(groups: Iterable[int]) -> None:
    """Lets them go on."""
    _signal(groups, signal.SIGCONT)


def end(groups: Iterable[int]) -> None:
    """Ends them at once, for runs that nobody wants to keep: asked, a learner would save what it has learned first."""
    _signal(groups, signal.SIGKILL)


def _signal(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
