"""A replay in a file: whether what an earlier process left there can be gone on with.

``replay/slots`` holds the slots, the tree and the counters, mapped by all processes; ``replay/record.json`` says what
that is. A process that is killed leaves the file as whole as memory would be: steps that were not committed have
priority zero, and the tree's lock is mended by its next holder. A machine that goes down leaves whatever had reached
the disk, so the record also says in which boot the file was opened, and whether it was closed since.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.boot import boot_id

__all__ = ["OpenedReplay", "close_replay", "open_replay"]

_FOLDER, _SLOTS, _RECORD = "replay", "slots", "record.json"


class OpenedReplay(NamedTuple):
    """A replay's memory.

    Attributes:
        arena: It.
        is_kept: Whether it holds what an earlier run left.
        note: Why it does not, where one was asked for; else empty.
    """

    arena: Arena
    is_kept: bool
    note: str


def open_replay(run_dir: Path, layout: ArenaLayout, *, resume: bool, poison: bool = False) -> OpenedReplay:
    """Opens the replay of a run, or makes it.

    Args:
        run_dir: The run's directory.
        layout: What is to be in it.
        resume: Whether to go on with what is there.
        poison: See :meth:`rollmill.runtime.arena.Arena.create`.

    Raises:
        NotEnoughDisk: There is no room for it.
    """
    path, record = run_dir / _FOLDER / _SLOTS, run_dir / _FOLDER / _RECORD
    note = _why_not(record, layout) if resume else ""
    if resume and not note:
        try:
            arena = Arena.open_file(layout, path)
        except OSError as error:
            note = str(error)
        else:
            _write(record, layout, closed=False)
            return OpenedReplay(arena, True, "")
    # No record while the file is made: it would be taken for what it is not yet.
    record.unlink(missing_ok=True)
    arena = Arena.create_file(layout, path, poison=poison)
    _write(record, layout, closed=False)
    return OpenedReplay(arena, False, note)


def close_replay(run_dir: Path) -> None:
    """All processes have ended: what they wrote is brought to the disk, and the record says so."""
    record, path = run_dir / _FOLDER / _RECORD, run_dir / _FOLDER / _SLOTS
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _replace(record, json.loads(record.read_text()) | {"closed": True})


def _why_not(record: Path, layout: ArenaLayout) -> str:
    """What keeps a run from going on with its replay; empty for nothing."""
    try:
        found = json.loads(record.read_text())
        digest, boot, closed = found["layout"], found["boot"], found["closed"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{record} cannot be read ({error})"
    if digest != layout.digest():
        return "its slots are of another shape: settings, the number of workers or Rollmill's version changed"
    if not closed and boot != boot_id():
        return "the machine went down while it was written, so not all of it may have reached the disk"
    return ""


def _write(record: Path, layout: ArenaLayout, *, closed: bool) -> None:
    _replace(record, {"layout": layout.digest(), "boot": boot_id(), "closed": closed})


def _replace(record: Path, content: object) -> None:
    aside = record.with_suffix(".new")
    with aside.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, record)
