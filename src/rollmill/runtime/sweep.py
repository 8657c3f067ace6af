"""Finds and kills every process of a run. Also the watchdog's script, which imports nothing but the standard library.

A process belongs to a run if it is in the process group of one of its workers, or if its environment carries the run's
token: children inherit it, so that a simulator's engine is found even when it has changed its group and its session and
its parent is gone. Tokens of nested runs (a run started by a worker of another run) stand side by side, separated by
colons, so that an outer run also finds what an inner one started.

As a script (``python -I -S sweep.py MAIN_PID TOKEN``) it waits until its standard input ends, which happens when the
main process closes it or dies, and then kills all members. Lines ``+PGID`` and ``-PGID`` on standard
input tell it of process groups, and ``hPID`` of the program's helpers (the resource tracker and the fork server), which
end by themselves unless a signal has stopped them: then they are continued. Last it removes the named shared memory
and the folders that a killed simulator could not remove.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterable

VARIABLE = "ROLLMILL_RUN_ID"
"""Environment variable that carries the tokens."""

LEFTOVERS = ("ViZDoom",)
"""Prefixes of the names that simulators give their shared memory in ``/dev/shm``."""

FOLDERS = "rollmill-vizdoom-"
"""Prefix of the folders for temporary files in which engines are started."""

_MEMORY = "/dev/shm"
_SETTLED_S = 1.0


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) or a debugger has stopped a process; False if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def _start_of(pid: int) -> bytes | None:
    """Start time of a process, in ticks since boot; None if it does not exist or has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19]


def members(token: str, groups: Iterable[int] = ()) -> list[int]:
    """Process ids of all living processes that carry the token or are in one of the groups; never the caller's."""
    key, wanted, in_groups = f"{VARIABLE}=".encode(), token.encode(), set(groups)
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] in (b"Z", b"X"):
                continue
            if int(fields[2]) not in in_groups:
                with open(f"/proc/{name}/environ", "rb") as file:
                    entries = file.read().split(b"\0")
                if not any(e.startswith(key) and wanted in e[len(key) :].split(b":") for e in entries):
                    continue
        except OSError:
            continue  # It has ended meanwhile, or belongs to another user.
        found.append(int(name))
    return found


def kill_all(token: str, groups: Iterable[int] = (), timeout_s: float = 10.0) -> list[int]:
    """Kills the members until none is left; returns those that remain after ``timeout_s``."""
    groups = list(groups)
    deadline = time.monotonic() + timeout_s
    began: dict[int, bytes | None] = {}
    while True:
        found = members(token, groups)
        # A process that ends loses its environment some time before its descriptors are closed.
        left = found + [pid for pid, since in began.items() if pid not in found and _start_of(pid) == since]
        if not left:
            return left
        began.update((pid, since) for pid in found if (since := _start_of(pid)) is not None)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        # A killed process may take a moment to go, and what it forked just before is seen in the next round.
        time.sleep(0.005)


def remove_leftovers(since: float) -> list[str]:
    """Removes what killed simulators have left; returns the names.

    That is: files in ``/dev/shm`` named as in `LEFTOVERS` and folders for temporary files named as in `FOLDERS`, of
    this user, made after ``since`` (``time.time()``), and held by no process. A simulator that runs holds its memory
    all the time, first by a descriptor and then by a mapping, and works in its folder, so none of another run is
    touched.
    What was made in the last second is looked at again when it is older, for a simulator that maps its memory by name
    after making it.
    """
    import shutil
    import tempfile  # The watchdog needs them here alone.

    places = [(_MEMORY, LEFTOVERS)]
    with contextlib.suppress(OSError):  # No folder is writable.
        places.append((os.path.realpath(tempfile.gettempdir()), (FOLDERS,)))  # as the folders of processes are shown
    candidates: dict[str, float] = {}
    for folder, prefixes in places:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(prefixes):
                with contextlib.suppress(OSError):
                    status = os.lstat(path := os.path.join(folder, name))
                    if status.st_uid == os.getuid() and status.st_ctime >= since:
                        candidates[path] = status.st_ctime
    held = _held_paths() if candidates else set()
    candidates = {path: made for path, made in candidates.items() if path not in held}
    if candidates:
        age = time.time() - max(candidates.values())
        time.sleep(min(_SETTLED_S, max(0.0, _SETTLED_S - age)))
        held = _held_paths()
    removed = [path for path in candidates if path not in held]
    for path in removed:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    return [os.path.basename(path) for path in removed]


def _held_paths() -> set[str]:
    """Files in ``/dev/shm`` that any process has open or maps, and the folders that processes work in.

    Descriptors are read before the mappings of the same process: a process that opens, maps and closes a file is then
    found by one of the two whenever it is looked at.
    """
    paths = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                    if target.startswith(f"{_MEMORY}/"):
                        paths.add(target)
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as file:
            for line in file:
                if (at := line.find(f"{_MEMORY}/")) >= 0:
                    paths.add(line[at:].rstrip())
        with contextlib.suppress(OSError):
            paths.add(os.readlink(f"/proc/{pid}/cwd"))
    return paths


def _wake_helper(pid: int) -> None:
    """Continues a stopped helper of multiprocessing's, unless its process id was reused."""
    with contextlib.suppress(OSError):
        if is_stopped(pid):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
                if any(name in command for name in (b"resource_tracker", b"forkserver")):
                    os.kill(pid, signal.SIGCONT)


def _watch(main_pid: int, token: str) -> None:
    began = time.time()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    helpers: set[int] = set()
    buffer = b""
    # The parent is checked too: a process forked from it may hold the pipe open after its death.
    while os.getppid() == main_pid:
        if not select.select([0], [], [], 1.0)[0]:
            continue
        data = os.read(0, 4096)
        if not data:
            break
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            if line.startswith(b"h"):
                helpers.add(int(line[1:]))
            else:
                (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    kill_all(token, groups)
    for pid in helpers:
        _wake_helper(pid)
    remove_leftovers(began)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
