"""Pauses a run while something else is measured on its cores.

A stopped process uses no core. It can still be killed, so the watchdog works as always. Simulators that have left its
process group are not stopped, but have nothing to do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def paused_children() -> Iterator[None]:
    """Stop the processes that multiprocessing started here, with their groups, and continue them on exit."""
    groups = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    try:
        pause(groups)
        yield
    finally:
        resume(groups)


def pause(groups: Iterable[int]) -> None:
    """Stop these processes and their process groups; each process of a run leads one."""
    _signal(groups, signal.SIGSTOP)


def resume(groups: Iterable[int]) -> None:
    """Continue them."""
    _signal(groups, signal.SIGCONT)


def _signal(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
