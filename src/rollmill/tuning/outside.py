"""Time outside of a process's own CPU time: its wait for a core, and the work of other processes for it.

A rollout worker that is busy may compute, wait for a core that others have, wait for a simulator that is a process of
its own (VizDoom's engine), or sleep. Which of these it is decides what more workers would bring. Linux only.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

__all__ = ["Outside", "outside_of"]


class Outside(NamedTuple):
    """Of one process, which leads a group.

    Attributes:
        delay_s: Seconds in which its main thread could have run, and had no core; helpers' included.
        helpers_s: CPU seconds of the other processes of its group.
    """

    delay_s: float = 0.0
    helpers_s: float = 0.0

    def since(self, before: Outside) -> Outside:
        """What came in between. A helper that has ended took its seconds along."""
        return Outside(max(0.0, self.delay_s - before.delay_s), max(0.0, self.helpers_s - before.helpers_s))


def outside_of(leaders: Collection[int]) -> dict[int, Outside]:
    """Of each of these processes, all that there was so far."""
    found = dict.fromkeys(leaders, Outside())
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            group = int(fields[2])
            if group not in found:
                continue
            delay_s = int(Path(entry.path, "schedstat").read_bytes().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # it has ended, or the kernel does not count
            continue
        ticks = int(fields[11]) + int(fields[12])
        helper_s = 0.0 if int(entry.name) == group else ticks / os.sysconf("SC_CLK_TCK")
        found[group] = Outside(found[group].delay_s + delay_s, found[group].helpers_s + helper_s)
    return found
