"""Doom's engines as processes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


def is_alive(pid: int) -> bool:
    """Return whether a process runs or is stopped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children() -> set[int]:
    """Return the processes that threads of this process have started."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            found |= {int(pid) for pid in file.read().split()}
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let processes that are started in the block write their output nowhere."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)
