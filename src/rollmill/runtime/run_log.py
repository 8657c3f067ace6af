"""What ``run.log`` tells about a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_LOG = "run.log"
_LOGGER = "rollmill.run: "
_LONGEST_LINE = 2000


def last_lines(run_dir: Path, names: Sequence[str]) -> dict[str, str]:
    """Return what follows ``NAME: `` in the last line of the main process that begins so, for each name that occurs.

    Args:
        run_dir: The run's directory; without a log the result is empty.
        names: For example ``"command"`` and ``"end"``.
    """
    found = {name: every_line(run_dir, name) for name in names}
    return {name: lines[-1] for name, lines in found.items() if lines}


def every_line(run_dir: Path, name: str) -> list[str]:
    """Return what follows ``NAME: `` in the lines of the main process that begin so; a resumed run has several.

    Args:
        run_dir: The run's directory; without a log the result is empty.
        name: For example ``"command"``.
    """
    try:
        lines = (run_dir / _LOG).read_text(errors="replace").splitlines()
    except OSError:
        return []
    parts = [line.partition(f"{_LOGGER}{name}: ") for line in lines]
    return [text[:_LONGEST_LINE] for _, mark, text in parts if mark]
