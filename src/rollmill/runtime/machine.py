"""What machine this is, and sizes of memory, in words."""

from __future__ import annotations

import platform
from pathlib import Path

from rollmill.runtime.affinity import usable_cores
from rollmill.runtime.cgroups import available_memory


def describe_machine(root: Path = Path("/")) -> str:
    """Describe the cores and the memory that this process may use.

    Args:
        root: Where ``proc`` and ``sys`` are found.
    """
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    name = next(filter(None, names), platform.processor() or platform.machine())
    return f"{usable_cores()} core(s) of {name}, {available_memory(root) / 2**30:.1f} GiB of memory free"


def readable(nbytes: int) -> str:
    """Formats bytes in binary units."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
