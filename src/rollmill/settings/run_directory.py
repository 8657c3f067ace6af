"""Run directories: their names, making them, and keeping them to one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["RunDirectoryError", "directory_of_launcher", "for_this_run_alone", "make_directory", "new_directory"]

_LOCK_FILE = ".lock"
# Of /proc/<pid>/stat, among the fields behind the command's name: when the process began, in ticks since booting.
_START_TIME = 19


class RunDirectoryError(ValueError):
    """The run directory holds something else than the call needs, is in use, or cannot be made."""


def directory_of_launcher(preset: str) -> Path:
    """``runs/<preset>/<date and time>`` at which the launcher was started that starts this program, maybe again."""
    launcher = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    began = int(booted.split()[1]) + int(launcher[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return _runs_of(preset) / time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(began))


def _runs_of(preset: str) -> Path:
    return Path("runs") / preset.replace("/", "_").replace(":", "_")


def new_directory(preset: str) -> Path:
    """``runs/<preset>/<date and time>``, free."""
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    base = _runs_of(preset)
    for suffix in ("", *(f"_{i}" for i in range(2, 1000))):
        directory = base / f"{stamp}{suffix}"
        if make_directory(directory, is_new=True):
            return directory
    raise RunDirectoryError(f"{base} has no free name left for {stamp}: give run_dir.")


def make_directory(directory: Path, *, is_new: bool) -> bool:
    """Makes a run directory, with those above it.

    Args:
        directory: Where.
        is_new: Whether it must not exist yet: of two runs that start at once, only one makes it.

    Returns:
        False if it must not exist and does.

    Raises:
        RunDirectoryError: It cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=not is_new)
    except OSError as error:
        is_taken = isinstance(error, FileExistsError)
        if is_taken and is_new:
            return False
        reason = "something that is no directory has this name" if is_taken else error.strerror
        raise RunDirectoryError(
            f"the run directory {directory} cannot be made ({reason}): give another one (--run-dir, run_dir), in a "
            "place where you may write."
        ) from error
    return True


@contextlib.contextmanager
def for_this_run_alone(directory: Path) -> Iterator[None]:
    """Keeps other runs out of the directory, in which two would take away each other's checkpoints and metrics.

    The kernel gives the lock back however this process ends: Python's descriptors do not pass to processes that it
    starts. The file stays, because a run that is about to lock it may have opened it already.

    Raises:
        RunDirectoryError: A run has it, or nothing can be written there.
    """
    path = directory / _LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise RunDirectoryError(
            f"{path} cannot be written ({error.strerror}): mend the permissions of {directory}, or give another run "
            "directory (--run-dir, run_dir)."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirectoryError(
                f"another process is training in {directory}: wait for it or end it, or give another run directory "
                "(--run-dir, run_dir)."
            ) from None
        except OSError:
            pass  # Some network file systems have no locks; that is no reason not to train there.
        yield
    finally:
        os.close(descriptor)
