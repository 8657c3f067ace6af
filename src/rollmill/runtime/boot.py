"""Which boot of the machine this is: of what was written in an earlier one, not all need have reached the disk."""

from __future__ import annotations

from pathlib import Path

__all__ = ["boot_id"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The same until the machine starts anew; empty where it does not say."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
