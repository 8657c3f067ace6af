"""What the tests of whole runs look for when all should have ended: processes, and names in /dev/shm."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmill.runtime.fork_server import ensure_fork_server


@contextlib.contextmanager
def nothing_is_left() -> Iterator[None]:
    """Whatever the block starts, directly or not, must be gone with it, and it must leave nothing in /dev/shm."""
    ensure_fork_server()  # It and its resource tracker serve all of pytest.
    token, shared = uuid.uuid4().hex, set(os.listdir("/dev/shm"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        # Runs started from a process of a run keep its mark, so one of ours marks all that the block starts.
        monkeypatch.setenv("ROLLMILL_RUN_ID", token)
        yield
        assert not (left := _processes_with(token)), f"processes are left: {left}"
    left = _unused_memory() - shared
    deadline = time.monotonic() + 5.0
    # Tests run in parallel: memory that another test has not mapped yet is mapped or gone a moment later.
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= _unused_memory()
    assert not left


def _processes_with(token: str) -> dict[int, str]:
    """Living processes whose environment carries the token: their commands by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
    return found


def _unused_memory() -> set[str]:
    """Names in /dev/shm that no living process maps. Those of VizDoom are removed some time after a run."""
    names = {name for name in os.listdir("/dev/shm") if not name.startswith("ViZDoom")}
    for maps in Path("/proc").glob("[0-9]*/maps") if names else ():
        with contextlib.suppress(OSError):
            lines = maps.read_text(errors="replace").splitlines()
            names -= {line.rpartition("/dev/shm/")[2].rstrip() for line in lines}
    return names
