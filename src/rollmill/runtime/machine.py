"""What machine this is, in words."""

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
