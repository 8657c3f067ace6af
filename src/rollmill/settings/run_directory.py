"""Run directories: their names, how they are created, and the lock that admits one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_LOCK_FILE = ".lock"
# Index of the start time (ticks since boot) among the fields of /proc/<pid>/stat after the command's name.
_START_TIME = 19


class RunDirectoryError(ValueError):
    """The run directory does not contain what the call needs, is in use, or cannot be created."""


_LONGEST_NAME = 120


def directory_of_launcher(preset: str) -> Path:
    """``runs/<preset>/<date and time>``, with the start time of the launcher: the same after a restart by it."""
    launcher = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    began = int(booted.split()[1]) + int(launcher[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return _runs_of(preset) / time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(began))


def _runs_of(preset: str) -> Path:
    name = preset.replace("/", "_").replace(":", "_")
    # File names have at most 255 bytes, and a list of tasks may be longer.
    return Path("runs") / name[:_LONGEST_NAME]


def new_directory(preset: str) -> Path:
    """Create ``runs/<preset>/<date and time>``, with a suffix if that exists."""
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    base = _runs_of(preset)
    for suffix in ("", *(f"_{i}" for i in range(2, 1000))):
        directory = base / f"{stamp}{suffix}"
        if make_directory(directory, is_new=True):
            return directory
    raise RunDirectoryError(f"{base} has no free name left for {stamp}: set run_dir.")


def make_directory(directory: Path, *, is_new: bool) -> bool:
    """Create a run directory and its parents.

    Args:
        directory: Its path.
        is_new: Whether it must not exist yet. If two runs start at the same time, only one of them creates it.

    Returns:
        False if it must not exist and does.

    Raises:
        RunDirectoryError: It cannot be created.
    """
    try:
        directory.mkdir(parents=True, exist_ok=not is_new)
    except OSError as error:
        is_taken = isinstance(error, FileExistsError)
        if is_taken and is_new:
            return False
        reason = "a file with this name exists" if is_taken else error.strerror
        raise RunDirectoryError(
            f"the run directory {directory} cannot be created ({reason}): choose another one (--run-dir, run_dir), in "
            "a place where you may write."
        ) from error
    return True


@contextlib.contextmanager
def for_this_run_alone(directory: Path, option: str = "--run-dir, run_dir") -> Iterator[None]:
    """Lock the directory, because two runs in it would overwrite each other's checkpoints and metrics.

    The kernel releases the lock however this process ends, because child processes do not inherit Python's
    descriptors. The file is not deleted: another run may have opened it already and be about to lock it.

    Args:
        directory: The directory.
        option: How the user chooses it, for messages.

    Raises:
        RunDirectoryError: Another run holds the lock, or the directory is not writable.
    """
    path = directory / _LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise RunDirectoryError(
            f"{path} cannot be written ({error.strerror}): change the permissions of {directory}, or choose another "
            f"run directory ({option})."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirectoryError(
                f"another process is training in {directory}: wait for it or stop it, or choose another run directory "
                f"({option})."
            ) from None
        except OSError:
            pass  # Some network file systems have no locks. Train without one there.
        yield
    finally:
        os.close(descriptor)
