"""Replays in files: a mapped file that holds a replay, and copies to restore.

A mapped file begins with the replay's settings, so that its path suffices to open it. Processes that are killed leave
it whole. A machine that goes down leaves what had reached the disk, which is trusted only if nothing changed after a
flush; therefore the file records in which boot it was opened, and its ring whether it is flushed.

A copy is a zip archive of arrays (``numpy.load`` reads it): ``settings.npy``, JSON; ``given.npy``, the number of rows
ever given out; ``maximum.npy``; ``priorities.npy``, float32, by row; ``records.npy``, uint8 ``[rows, bytes]``.
"""

from __future__ import annotations

import fcntl
import io
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rollmill.native import ReplayRing
from rollmill.replay.memory import Memory, map_of
from rollmill.replay.settings import Settings
from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.runtime.boot import boot_id

_SETTINGS_BYTES = 65_536
_MAGIC = b"rollmill replay 1\n"
_CHUNK_BYTES = 1 << 24
_LARGEST = 2.0**64  # priority

# What zipfile, zlib and NumPy, which parses a header as Python, raise of damaged files.
_DAMAGES = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def layout_of(settings: Settings) -> ArenaLayout:
    """The layout of a replay's memory."""
    layout = ArenaLayout()
    layout.add("settings", _SETTINGS_BYTES, "uint8")
    layout.add("boot", 64, "uint8")
    layout.add("ring", settings.shape().nbytes, "uint8", page_aligned=True)
    return layout


def header_of(settings: Settings) -> NDArray[np.uint8]:
    """The start of the memory, which identifies it and holds the settings.

    Raises:
        ValueError: There are too many fields.
    """
    text = _MAGIC + settings.to_json().encode()
    if len(text) >= _SETTINGS_BYTES:
        raise ValueError(f"the settings take {len(text)} bytes, and there are {_SETTINGS_BYTES}; have fewer fields")
    return np.frombuffer(text, np.uint8)


def create_file(layout: ArenaLayout, path: Path) -> Arena:
    """Memory in a new file.

    Raises:
        FileExistsError: The file exists.
        FileNotFoundError: Its folder does not exist.
        rollmill.runtime.arena.NotEnoughDisk: The disk has too little room.
    """
    _check_folder(path)
    try:
        arena = Arena.create_file(layout, path)
    except FileExistsError:
        raise FileExistsError(
            f"there is a file {path}; open it with PrioritizedReplay.open, delete it, or name another"
        ) from None
    _write_boot(arena)
    return arena


def open_file(path: Path) -> tuple[Arena, Settings]:
    """Memory that :func:`create_file` made, and its settings.

    Raises:
        OSError: There is no such file, or it has another size than its settings say.
        ValueError: It does not hold a replay, or not all of it may have reached the disk.
    """
    if not _begins_with_magic(path):
        raise ValueError(f"{path} does not hold a replay; to read a copy made by save, call load")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # one of those who open it is the first in this boot
        try:
            settings = Settings.from_json(file.read(_SETTINGS_BYTES)[len(_MAGIC) :].rstrip(b"\0").decode())
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); load a copy made by save, or start a new one") from error
        arena = Arena.open_file(layout_of(settings), path)
        if arena["boot"].tobytes().rstrip(b"\0") != boot_id().encode():
            ring = ReplayRing(arena["ring"], settings.shape(), num_envs=1, seed=0, shared=True, create=False)
            if not ring.is_flushed:
                arena.close()
                raise ValueError(
                    f"{path} was changed and not flushed before the machine went down, so not all of it may have "
                    "reached the disk; start a new one"
                )
            ring.reset_locks()
            _write_boot(arena)
    return arena, settings


def _begins_with_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for the file {path.name}; make it, or name another")


def flush(arena: Memory, ring: ReplayRing) -> None:
    """Writes a mapped file to the disk; has no effect on memory."""
    map_of(arena).flush()  # most of it without a lock
    ring.flush()


def _write_boot(arena: Memory) -> None:
    boot = boot_id().encode()
    arena["boot"][:] = 0
    arena["boot"][: len(boot)] = np.frombuffer(boot, np.uint8)


def _records(arena: Memory, ring: ReplayRing, capacity: int) -> NDArray[np.uint8]:
    """uint8 ``[capacity, bytes]``: the rows as they lie there."""
    return arena["ring"][ring.records_at :][: capacity * ring.stride].reshape(capacity, ring.stride)


def save(path: Path, settings: Settings, arena: Memory, ring: ReplayRing) -> None:
    """Writes a copy, first to a temporary file beside it.

    No other operation waits: first priorities are copied, then rows, and rows that were given out again in between get
    priority zero. The other rows that a row needs were written before its priority and are younger, so they exist as
    long as the row.

    Raises:
        OSError: It cannot be written.
        ValueError: The file holds a replay that is mapped.
    """
    _check_folder(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    if path.is_file() and _begins_with_magic(path):
        raise ValueError(
            f"{path} is a file that a replay keeps everything in, which a copy would destroy; name another"
        )
    capacity = settings.capacity
    priorities = np.empty(capacity, np.float32)
    with _written_aside(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        given_before, given, maximum = ring.priorities(priorities)
        _write(archive, "settings", np.frombuffer(settings.to_json().encode(), np.uint8))
        _write(archive, "records", _records(arena, ring, capacity)[: min(given, capacity)])
        gone = min(ring.given - given_before, capacity)
        priorities[np.arange(given_before, given_before + gone) % capacity] = 0
        _write(archive, "priorities", priorities)
        _write(archive, "given", np.array(given))
        _write(archive, "maximum", np.array(maximum))


@contextmanager
def _written_aside(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which replaces another when it is whole.

    It has one name, so that killed writers leave no more than one behind, and a lock, so that several writers wait for
    each other.
    """
    aside = path.with_name(f".{path.name}.part")
    while True:
        file = os.fdopen(os.open(aside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        if _is_named(file, aside):
            break
        file.close()  # another writer's, and whole by now
    try:
        file.truncate(0)
        yield file
        file.flush()
        os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # before children that were forked meanwhile close theirs
        file.close()


def _is_named(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
        file.write(header.getvalue())
        flat = array.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), _CHUNK_BYTES):
            file.write(flat[start : start + _CHUNK_BYTES].tobytes())


def load(path: Path, settings: Settings, arena: Memory, ring: ReplayRing) -> None:
    """Reads a copy into a replay like the one that it is of.

    Raises:
        OSError: There is no such file.
        ValueError: It is no copy, or of a replay that differs in what the data depend on. The replay is as it was, or
            empty if it is the rows that are damaged.
    """
    with path.open("rb") as file:
        with _refused_if_damaged(path):
            archive = zipfile.ZipFile(file)
            found = Settings.from_json(_read(archive, "settings").tobytes().decode())
        if difference := settings.describe_difference(found):
            raise ValueError(f"{path} is of a replay with other {difference}; make one like it")
        with _refused_if_damaged(path):
            given, priorities, maximum = _counts(archive, settings)
            rows = _records(arena, ring, settings.capacity)[: min(given, settings.capacity)]
            records = archive.open("records.npy")
            if _header(records) != (rows.shape, rows.dtype):
                raise ValueError(f"its records are not {rows.dtype} {rows.shape}")
        # Nothing is drawn of what is half read, should reading fail.
        ring.restore(0, np.zeros(settings.capacity, np.float32), 1.0)
        with _refused_if_damaged(path, "; the replay is empty now"), records:
            _read_into(rows, records)
        ring.restore(given, priorities, maximum)


@contextmanager
def _refused_if_damaged(path: Path, consequence: str = "") -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        raise ValueError(f"{path} is not a saved replay ({str(error) or 'it ends too early'}){consequence}") from error


def _counts(archive: zipfile.ZipFile, settings: Settings) -> tuple[int, NDArray[np.float32], float]:
    """Rows ever given out, priorities, and the highest so far."""
    given, maximum, priorities = (_read(archive, name) for name in ("given", "maximum", "priorities"))
    is_count = given.shape == () and given.dtype == np.int64 and given >= 0
    is_priority = priorities.shape == (settings.capacity,) and priorities.dtype == np.float32
    is_maximum = maximum.shape == () and maximum.dtype == np.float64 and 0 < maximum <= _LARGEST
    if not (is_count and is_maximum and is_priority and ((priorities >= 0) & (priorities <= _LARGEST)).all()):
        raise ValueError("its priorities are damaged")
    if settings.uniform:
        # Equally likely, whatever they were where they were saved.
        return int(given), (priorities > 0).astype(np.float32), 1.0
    return int(given), priorities, float(maximum)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype


def _read(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        shape, dtype = _header(file)
        return np.frombuffer(file.read(), dtype).reshape(shape)


def _read_into(rows: NDArray[np.uint8], file: IO[bytes]) -> None:
    flat = rows.reshape(-1)
    for start in range(0, len(flat), _CHUNK_BYTES):
        part = flat[start : start + _CHUNK_BYTES]
        chunk = file.read(len(part))
        if len(chunk) < len(part):
            raise EOFError
        part[:] = np.frombuffer(chunk, np.uint8)
