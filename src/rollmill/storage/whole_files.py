"""Files that are there whole or not at all, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, content: bytes | bytearray, aside: Path) -> None:
    """Puts a file in its place, or leaves what was there.

    Args:
        path: Where it is to be.
        content: All of it.
        aside: In the same folder, where it is written first.

    Raises:
        OSError: The disk did not take it.
    """
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # else a power cut may forget the rename
    finally:
        os.close(folder)
