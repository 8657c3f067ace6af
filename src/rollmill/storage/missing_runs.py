"""Why a directory cannot be used as a run's, in words for the user."""

from __future__ import annotations

import difflib
from pathlib import Path

_CONFIG_FILE, _LOG_FILE, _METRICS_FILE = "config.json", "run.log", "metrics.jsonl"
_SHOWN = 3


def has_only_begun(directory: Path | str) -> bool:
    """Whether a run has begun in a directory, but has reported nothing: it is starting, or failed at its start."""
    path = Path(directory)
    metrics = path / _METRICS_FILE
    # The file is there before its first row.
    has_reported = (path / _CONFIG_FILE).exists() and metrics.exists() and metrics.stat().st_size > 0
    return (path / _LOG_FILE).is_file() and not has_reported


def why_no_run(directory: Path | str) -> str:
    """Say why a directory without ``config.json`` holds no run, and what to do."""
    path = Path(directory)
    if (path / _LOG_FILE).is_file():
        return (
            f"{path} is a run that ended before it learned anything, so that there is nothing to continue or to play: "
            f"{path / _LOG_FILE} has the reason"
        )
    if path.is_dir():
        return f"{path} is not a run: there is no {_CONFIG_FILE} in it; give the directory that train printed"
    if path.parts[:1] == ("hf:",):
        name = "/".join(path.parts[1:3]).partition("@")[0]
        return (
            f"hf://{name} is an address on the Hugging Face Hub, which only rollmill.load takes: fetch its folder with "
            f"huggingface_hub.snapshot_download({name!r}), and give that"
        )
    near = _similar_runs(path)
    hint = f"did you mean {' or '.join(map(str, near))}?" if near else "give the directory that train printed"
    return f"{path} is not a run: there is no such directory; {hint}"


def _similar_runs(path: Path) -> list[Path]:
    """Return runs with similar names in the same parent directory."""
    try:
        beside = [each.name for each in path.parent.iterdir() if (each / _CONFIG_FILE).is_file()]
    except OSError:
        return []
    return [path.parent / name for name in difflib.get_close_matches(path.name, beside, n=_SHOWN)]
