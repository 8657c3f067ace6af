"""Where displays are drawn: a console whose reader may go away without ending what is displayed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console


class DisplayConsole(Console):
    """Falls silent where its reader has gone (``2>&1 | tee log``); rich's would end the program and the training."""

    def on_broken_pipe(self) -> None:
        """Show nothing from now on."""
        self.quiet = True


@contextlib.contextmanager
def silent_once_gone(console: Console) -> Iterator[None]:
    """A terminal that was closed, or a log on a full disk, ends the display and not what is displayed.

    Args:
        console: What the block writes to; it shows nothing more once that has failed.
    """
    try:
        yield
    except OSError:
        console.quiet = True
