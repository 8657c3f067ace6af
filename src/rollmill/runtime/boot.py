"""The current boot of the machine: files written in an earlier one may be incomplete on the disk."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """An identifier that changes with each boot of the machine; empty if it is unknown."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
