"""Checks of the folders that Rollmill writes to."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rollmill.doctor.finding import Finding
from rollmill.envs.doom_arena import cache_folder
from rollmill.runtime.machine import readable
from rollmill.runtime.signatures import signing_key

_LITTLE = 1 << 30


def check_working_folder(folder: Path | None = None) -> Finding:
    """Whether runs can be written to the current folder.

    Args:
        folder: Another folder to check.
    """
    folder = folder or Path.cwd()
    if problem := _writing_problem(folder):
        advice = "train in another folder, or name one with --run-dir"
        return Finding("current folder", "warning", f"{folder} cannot be written to ({problem})", advice)
    free = shutil.disk_usage(folder).free
    found = f"{folder} can be written to, {readable(free)} free"
    if free < _LITTLE:
        return Finding("current folder", "warning", found, "make room for checkpoints, or name another with --run-dir")
    return Finding("current folder", "ok", found)


def check_cache() -> Finding:
    """Whether the cache folder can be written to."""
    folder = cache_folder()
    if folder is None:
        advice = "set XDG_CACHE_HOME to a folder of yours"
        return Finding("cache folder", "warning", "none, because this user has no home folder", advice)
    # It is made when it is needed, in the nearest folder that exists.
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if problem := _writing_problem(existing):
        advice = "set XDG_CACHE_HOME to a folder that you may write to"
        return Finding("cache folder", "warning", f"{folder} cannot be written to ({problem})", advice)
    return Finding("cache folder", "ok", f"{folder} can be written to")


def check_key() -> Finding:
    """Whether the key that signs this user's runs can be kept. It is made if there is none, as by every run."""
    key = signing_key()
    if key.note:
        return Finding("signing key", "warning", key.note, "set XDG_CONFIG_HOME to a folder that you may write to")
    return Finding("signing key", "ok", str(key.place))


def _writing_problem(folder: Path) -> str:
    """Why no file can be made in a folder; empty if one can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)
