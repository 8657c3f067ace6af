"""Limits of the machine and the container (control groups, version 1 or 2): memory and CPU time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Version 1 says "unlimited" with a number near 2**63.
_UNLIMITED = 1 << 60


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can still be used: the smaller of the machine's ``MemAvailable`` and each enclosing group's rest.

    Args:
        root: Where ``proc`` and ``sys`` are found.
    """
    available = _UNLIMITED
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for folder, version in _folders("memory", root):
        limit = _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        usage = _number(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if limit is None or usage is None or limit >= _UNLIMITED:
            continue
        # Unused file cache is freed on demand, so it counts as available.
        cache = _field(folder / "memory.stat", "inactive_file" if version == 2 else "total_inactive_file")
        available = min(available, max(0, limit - max(0, usage - cache)))
    return available


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the enclosing groups allow altogether: the smallest of their limits, or None if they set none.

    Args:
        root: Where ``proc`` and ``sys`` are found.
    """
    limits = [
        _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        for folder, version in _folders("memory", root)
    ]
    return min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of CPU time that the enclosing groups allow, for example 1.5, or None if they set no limit.

    Args:
        root: Where ``proc`` and ``sys`` are found.
    """
    quota: float | None = None
    for folder, version in _folders("cpu", root):
        if version == 2:
            parts = _read(folder / "cpu.max").split()
        else:
            parts = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
        if len(parts) == 2 and parts[0].isdigit() and parts[1].isdigit() and int(parts[1]) > 0:
            cores = int(parts[0]) / int(parts[1])
            quota = cores if quota is None else min(quota, cores)
    return quota


def oom_kills(root: Path = Path("/")) -> int:
    """How many processes of this process's memory group the out-of-memory killer has killed; 0 if unknown."""
    for folder, version in _folders("memory", root):
        # In a hybrid hierarchy, the second version's folders have no such file.
        if (path := folder / ("memory.events" if version == 2 else "memory.oom_control")).is_file():
            return _field(path, "oom_kill")
    return 0


def _folders(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """This process's group folder for a controller and the folders around it, innermost first, with the version."""
    groups: dict[int, str] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            groups[2] = path
        elif controller in controllers.split(","):
            groups[1] = path
    for line in _read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        version = {"cgroup": 1, "cgroup2": 2}.get(kind)
        if version not in groups or (version == 1 and controller not in options.split(",")):
            continue
        mounted, mount_point = left.split()[3:5]
        path = groups[version]
        # A container without a namespace of its own sees the host's path, of which only the end is mounted.
        if mounted != "/" and path.startswith(mounted):
            path = path[len(mounted) :]
        top = root / mount_point.lstrip("/")
        folder = top / path.strip("/")
        while True:
            if folder.is_dir():
                yield folder, version
            if folder in (top, folder.parent):
                break
            folder = folder.parent


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _field(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0
