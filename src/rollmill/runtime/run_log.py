"""What ``run.log`` tells about a run's last session."""

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
    try:
        lines = (run_dir / _LOG).read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        _, mark, text = line.partition(_LOGGER)
        for name in names:
            if mark and text.startswith(f"{name}: "):
                found[name] = text[len(name) + 2 :][:_LONGEST_LINE]
    return {name: found[name] for name in names if name in found}
