"""What ``run.log`` tells about a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_LOG = "run.log"
_LOGGER = "rollmill.run: "
_START = "start"
_LONGEST_LINE = 2000


def last_lines(run_dir: Path, names: Sequence[str]) -> dict[str, str]:
    """Return what follows ``NAME: `` in the last line that begins so, for each name that occurs since the last start.

    Args:
        run_dir: The run's directory; without a log the result is empty.
        names: For example ``"command"`` and ``"end"``.
    """
    found: dict[str, str] = {}
    for line in _lines(run_dir):
        name, mark, text = line.partition(": ")
        if name == _START:
            found.clear()
        if mark and name in names:
            found[name] = text
    return found


def every_line(run_dir: Path, name: str) -> list[str]:
    """Return what follows ``NAME: `` in the lines of the main process that begin so; a resumed run has several.

    Args:
        run_dir: The run's directory; without a log the result is empty.
        name: For example ``"command"``.
    """
    parts = [line.partition(": ") for line in _lines(run_dir)]
    return [text for found, mark, text in parts if mark and found == name]


def _lines(run_dir: Path) -> list[str]:
    """What the main process tells about the run, line by line."""
    try:
        lines = (run_dir / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    parts = [line.partition(_LOGGER) for line in lines]
    return [text[:_LONGEST_LINE] for _, mark, text in parts if mark]
