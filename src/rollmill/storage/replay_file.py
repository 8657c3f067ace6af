"""A replay in a file, and whether a run can resume with it.

``replay/slots`` holds the slots, the tree and the counters, mapped by all processes; ``replay/record.json`` describes
it. A process that is killed leaves the file consistent: steps that were not committed have priority zero, and the next
holder of the tree's lock repairs it. After a crash of the machine the file may be incomplete, so the record also names
the boot in which the file was opened, and whether it was closed since. The record is signed with the user's key,
because native code uses the slots without checks: each rank verifies its own.

A new file is created next to the old one and replaces it when the run starts to learn. So a run that cannot start
leaves the replay that it would have resumed with.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rollmill.runtime.arena import Arena, ArenaLayout, NotEnoughDisk
from rollmill.runtime.boot import boot_id
from rollmill.runtime.signatures import Verdict
from rollmill.runtime.signed_files import read_signed, require_trust, signed
from rollmill.storage.whole_files import write_whole

_FOLDER, _SLOTS, _RECORD = "replay", "slots", "record.json"
_PURPOSE = "record of a replay"
_NEW = "new-"


class ReplayFolderError(OSError):
    """The folder of a run's replay cannot be written."""


class OpenedReplay(NamedTuple):
    """A replay's memory.

    Attributes:
        arena: The memory.
        is_kept: Whether it holds what an earlier session left.
        note: Why it does not, if that was requested; else empty.
    """

    arena: Arena
    is_kept: bool
    note: str


def open_replay(
    run_dir: Path,
    layout: ArenaLayout,
    rules: Mapping[str, object],
    *,
    resume: bool,
    damage: Callable[[Arena], str] = lambda _: "",
    poison: bool = False,
    trust: bool = False,
) -> OpenedReplay:
    """Opens the replay of a run, or creates one, which :func:`adopt_replay` makes the run's.

    Args:
        run_dir: The run's directory.
        layout: The contents.
        rules: What the contents depend on beyond the layout, as JSON: a replay with other rules is recreated.
        resume: Whether to resume with an existing replay.
        damage: Describes damage to a replay; empty for none.
        poison: See :meth:`rollmill.runtime.arena.Arena.create`.
        trust: Whether to use the replay even if another user wrote it.

    Raises:
        UntrustedError: The replay was written by another user.
        NotEnoughDisk: There is no room for it.
        ReplayFolderError: The folder cannot be written.
    """
    try:
        return _open(run_dir, layout, rules, resume=resume, damage=damage, poison=poison, trust=trust)
    except NotEnoughDisk:
        raise
    except OSError as error:
        raise ReplayFolderError(
            f"the replay cannot be kept in {run_dir / _FOLDER} ({error}): make it a folder that can be written, or use "
            "replay.storage=memory"
        ) from error


def _open(
    run_dir: Path,
    layout: ArenaLayout,
    rules: Mapping[str, object],
    *,
    resume: bool,
    damage: Callable[[Arena], str],
    poison: bool,
    trust: bool,
) -> OpenedReplay:
    folder = run_dir / _FOLDER
    discard_new_replay(run_dir)
    note = _why_not(folder / _RECORD, layout, rules, trust=trust) if resume else ""
    if resume and not note:
        try:
            arena = Arena.open_file(layout, folder / _SLOTS)
        except NotEnoughDisk:
            raise  # There would be no room for a new one either.
        except OSError as error:
            note = str(error)
        else:
            note = damage(arena)
            if not note:
                _write(folder / _RECORD, layout, rules)
                return OpenedReplay(arena, True, "")
            arena.close()
            note = f"{folder / _SLOTS} is damaged: {note}"
    new = folder / f"{_NEW}{_SLOTS}"
    new.unlink(missing_ok=True)
    arena = Arena.create_file(layout, new, poison=poison)
    _write(folder / f"{_NEW}{_RECORD}", layout, rules)
    return OpenedReplay(arena, False, note)


def adopt_replay(run_dir: Path) -> None:
    """Replaces the run's replay by a newly created one, if there is one."""
    folder = run_dir / _FOLDER
    if not (folder / f"{_NEW}{_RECORD}").exists():
        return
    # No record meanwhile: the old one would describe the new file.
    (folder / _RECORD).unlink(missing_ok=True)
    os.replace(folder / f"{_NEW}{_SLOTS}", folder / _SLOTS)
    os.replace(folder / f"{_NEW}{_RECORD}", folder / _RECORD)


def discard_new_replay(run_dir: Path) -> None:
    """Removes a new replay that was not adopted."""
    for name in (_RECORD, _SLOTS):
        (run_dir / _FOLDER / f"{_NEW}{name}").unlink(missing_ok=True)


def has_replay(run_dir: Path) -> bool:
    """Whether the directory holds a replay."""
    return (run_dir / _FOLDER / _RECORD).exists()


def remove_replay(run_dir: Path) -> None:
    """Removes the replay of a run that continues without it: later sessions cannot resume with it."""
    for name in (_RECORD, _SLOTS):
        (run_dir / _FOLDER / name).unlink(missing_ok=True)


def close_replay(run_dir: Path) -> None:
    """Flushes the replay to the disk and marks it as closed, after all processes have ended, however they did.

    One that was left open before the machine was started again stays so: parts of it may be lost.
    """
    record, path = run_dir / _FOLDER / _RECORD, run_dir / _FOLDER / _SLOTS
    if not record.exists():
        return  # The run ended before it had a replay.
    content, verdict = read_signed(record, _PURPOSE)
    if verdict is not Verdict.VALID:
        return  # The run ended before its own replay replaced this one.
    if content.get("boot") != boot_id():
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _replace(record, content | {"closed": True})


def _why_not(record: Path, layout: ArenaLayout, rules: Mapping[str, object], *, trust: bool) -> str:
    """Why a run cannot resume with its replay; empty if it can.

    Raises:
        UntrustedError: The replay would fit, but another user wrote it.
    """
    try:
        found, verdict = read_signed(record, _PURPOSE)
    except FileNotFoundError:
        return "there is none; a run that resumes without its replay removes it"
    except (OSError, ValueError) as error:
        return f"{record} cannot be read ({error})"
    try:
        digest, old, boot, closed = found["layout"], dict(found["rules"]), found["boot"], found["closed"]
    except (ValueError, KeyError, TypeError) as error:
        return f"{record} is not the record of a replay ({error!r})"
    if digest != layout.digest():
        return "its slots have another shape: settings, the number of workers or Rollmill's version changed"
    if changed := [name for name in {**old, **rules} if old.get(name) != rules.get(name)]:
        was = ", ".join(f"{name}={old.get(name)!r} (now {rules.get(name)!r})" for name in changed)
        return f"it was written with {was}"
    if not closed and boot != boot_id():
        return "the machine crashed while it was written, so parts of it may not have reached the disk"
    require_trust(record, verdict, "native code uses the memory of a replay without checks", trust=trust)
    return ""


def _write(record: Path, layout: ArenaLayout, rules: Mapping[str, object]) -> None:
    _replace(record, {"layout": layout.digest(), "rules": dict(rules), "boot": boot_id(), "closed": False})


def _replace(record: Path, content: Mapping[str, object]) -> None:
    try:
        write_whole(record, json.dumps(signed(content, _PURPOSE)).encode(), record.with_suffix(".new"))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotEnoughDisk(f"{record} cannot be written ({error.strerror}): make room on its disk") from error
        raise
