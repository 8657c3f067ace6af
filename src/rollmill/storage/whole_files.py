"""Files that are written atomically, also if a process is killed or the machine crashes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes | memoryview, aside: Path) -> None:
    """Writes a file, or leaves the old one unchanged.

    Args:
        path: The file.
        content: Its content.
        aside: A temporary file in the same folder.

    Raises:
        OSError: The file cannot be written.
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
        os.fsync(folder)  # otherwise a power cut may undo the rename
    finally:
        os.close(folder)
