"""Progress for people who watch a command, on standard error."""

from __future__ import annotations

import contextlib
import os
import sys


def say(text: str) -> None:
    """Print a line. Once its reader has gone (``2>&1 | head -1``) nothing more is shown, and the work goes on."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        # What could not be written would fail again at the end of the program.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
