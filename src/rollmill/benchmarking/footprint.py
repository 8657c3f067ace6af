"""Memory and number of the processes that this one has started."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class Footprint(NamedTuple):
    """What processes occupy.

    Attributes:
        nbytes: Their memory; what several share is divided among them.
        processes: How many they are.
    """

    nbytes: int
    processes: int


def footprint_of_children() -> Footprint:
    """Return what all descendants of this process occupy now."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    found.remove(os.getpid())
    return Footprint(sum(map(_proportional_set, found)), len(found))


def _proportional_set(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
