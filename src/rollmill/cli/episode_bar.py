"""How many episodes have been played: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from rollmill.runtime.standard_error import say

_PLAIN_INTERVAL_S: Final = 30.0


@contextlib.contextmanager
def episode_bar(
    doing: str, *, quiet: bool = False, interval_s: float = _PLAIN_INTERVAL_S
) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error while the context lasts.

    Args:
        doing: What is being done, such as ``"recording"``.
        quiet: Whether to show nothing.
        interval_s: Seconds between two lines where standard error is not a terminal; no line comes before that.

    Yields:
        A function of the number of episodes that have been played, and of how many there are in all.
    """
    if quiet:
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from rollmill.reporting.console import DisplayConsole

    console = DisplayConsole(stderr=True)
    if not console.is_interactive:
        yield _Lines(doing, interval_s).show
        return
    columns = (
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """Prints a line at intervals."""

    def __init__(self, doing: str, interval_s: float) -> None:
        self._doing = doing
        self._interval_s = interval_s
        self._began = self._shown_at = time.monotonic()

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._shown_at < self._interval_s:
            return
        self._shown_at = now
        elapsed = now - self._began
        eta = f"{elapsed * (total - done) / done:,.0f} s" if done else "-"
        say(f"{self._doing}: {done:,} of {total:,} episodes  {elapsed:,.0f} s  ETA {eta}")
