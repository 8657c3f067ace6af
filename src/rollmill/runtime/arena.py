"""Arrays in shared memory: anonymous, or a file's.

Anonymous memory has no name: it is a memfd, passed to child processes by descriptor, and the kernel frees it when the
last process that maps it has ended, however it ended. Nothing can remain in ``/dev/shm``, whose size does not limit it
either. Memory that outlives the processes is mapped from a file, which must be opened with the same layout again.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import hashlib
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import reduction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rollmill.runtime import cgroups
from rollmill.runtime.machine import readable

CACHE_LINE = 64


class NotEnoughMemory(MemoryError):  # noqa: N818  named for what it says
    """The requested memory is not available.

    Attributes:
        needed: Bytes asked for.
        available: Bytes that the machine or the container still has.
    """

    def __init__(self, needed: int, available: int, advice: str, parts: Sequence[MemoryPart] = ()) -> None:
        kind = "memory" if parts else "shared memory"
        super().__init__(
            f"{readable(needed)} of {kind} are needed and {readable(available)} are available "
            f"(the machine's free memory or the container's limit, whichever is less)"
            f"{f': {describe_parts(parts)}' if parts else ''}. {advice}"
        )
        self.needed = needed
        self.available = available
        self._advice = advice
        self._parts = tuple(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return NotEnoughMemory, (self.needed, self.available, self._advice, self._parts)


class MemoryPart(NamedTuple):
    """A part of the memory that a run needs.

    Attributes:
        what: For messages, with its size in the user's terms.
        nbytes: Bytes.
    """

    what: str
    nbytes: int


def describe_parts(parts: Sequence[MemoryPart]) -> str:
    """Lists the parts and their sizes, the largest first."""
    ordered = sorted((part for part in parts if part.nbytes), key=lambda part: -part.nbytes)
    return "; ".join(f"{readable(part.nbytes)} for {part.what}" for part in ordered)


class NotEnoughDisk(OSError):  # noqa: N818  named for what it says
    """The requested file does not fit on its disk."""


class ArenaField(NamedTuple):
    """The position of an array in an arena."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    poisoned: bool


class ArenaLayout:
    """Collects named arrays and their positions; an arena is created from it."""

    def __init__(self) -> None:
        self._fields: dict[str, ArenaField] = {}
        self._end = 0

    def add(
        self,
        name: str,
        shape: int | tuple[int, ...],
        dtype: DTypeLike,
        *,
        page_aligned: bool = False,
        poisoned: bool = True,
    ) -> ArenaLayout:
        """Adds an array and returns the layout, so that calls can be chained.

        Args:
            name: Unique name.
            shape: Shape; an integer stands for one axis.
            dtype: Any dtype without Python objects.
            page_aligned: Start on a memory page instead of a cache line (64 bytes).
            poisoned: Whether ``Arena.create(poison=True)`` fills it; False for memory that must start at zero.

        Raises:
            ValueError: The name is taken, an axis is negative, or the dtype holds Python objects.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(int(axis) for axis in shape)
        dtype = np.dtype(dtype)
        if name in self._fields:
            raise ValueError(f"The arena layout already has an array {name!r}; give this one another name.")
        if any(axis < 0 for axis in shape):
            raise ValueError(f"Array {name!r} was given shape {shape}; every axis must be >= 0.")
        if dtype.hasobject:
            raise ValueError(f"Array {name!r} was given dtype {dtype}: Python objects cannot live in shared memory.")
        alignment = mmap.PAGESIZE if page_aligned else CACHE_LINE
        offset = -(-self._end // alignment) * alignment
        self._fields[name] = ArenaField(shape, dtype, offset, poisoned)
        self._end = offset + math.prod(shape) * dtype.itemsize
        return self

    @property
    def fields(self) -> Mapping[str, ArenaField]:
        """Name -> position, in the order in which they were added."""
        return dict(self._fields)

    def digest(self) -> str:
        """A digest of the arrays and their positions."""
        text = repr([(name, f.shape, f.dtype.str, f.offset) for name, f in self._fields.items()])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes that an arena of this layout takes, whole pages."""
        return max(1, -(-self._end // mmap.PAGESIZE)) * mmap.PAGESIZE


class Arena(Mapping[str, NDArray[Any]]):
    """Named arrays over one piece of shared memory.

    ``arena["name"]`` is a view; writing into it is seen by every process that has the arena. It is sent to a child
    process as an argument of ``Supervisor.start`` (or of a spawned ``multiprocessing.Process``) and maps the same
    memory there. Fresh memory is zero; its size is sealed.
    """

    def __init__(
        self, descriptor: int, fields: Mapping[str, ArenaField], nbytes: int, *, is_allocated: bool = False
    ) -> None:
        """Maps a descriptor and takes ownership of it; use `Arena.create`."""
        self._descriptor = descriptor
        self._is_allocated = is_allocated
        self._close_descriptor = weakref.finalize(self, os.close, descriptor)
        self._layout = dict(fields)
        # All pages at once take a fifth of the time of faults for each of them.
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if is_allocated else 0)
        memory = mmap.mmap(descriptor, nbytes, flags)
        self.nbytes = nbytes
        self._views: dict[str, NDArray[Any]] = {
            name: np.ndarray(field.shape, field.dtype, buffer=memory, offset=field.offset)
            for name, field in self._layout.items()
        }

    @classmethod
    def create(
        cls,
        layout: ArenaLayout,
        *,
        poison: bool = False,
        advice: str | None = None,
        parts: Sequence[MemoryPart] = (),
        available: int | None = None,
        allocate: bool = False,
    ) -> Arena:
        """Makes a new arena.

        Args:
            layout: The arrays.
            poison: Debugging: fill every array with values that stand out (see `poison_value`), so that what is read
                before it was written shows. Touches all of the memory.
            advice: Last sentence of the error when memory does not suffice: what the user can change.
            parts: What the arena needs, and what else the program will need, all of which must be available.
            available: Bytes that are; by default those at this moment.
            allocate: Whether to take all of the memory now, and to map it whole in each process, where all of it is
                needed soon. Otherwise each page is taken when it is first used.

        Raises:
            NotEnoughMemory: The machine or the container has less memory left than the layout takes. Checked before
                any of it is touched: too late would be a SIGBUS or the out-of-memory killer.
        """
        needed = max(layout.nbytes, sum(part.nbytes for part in parts))
        available = cgroups.available_memory() if available is None else available
        advice = advice or "Ask for less, or give the container more memory."
        if needed > available:
            raise NotEnoughMemory(needed, available, advice, parts)
        needed = layout.nbytes
        descriptor = os.memfd_create("rollmill", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, needed)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            if allocate:
                os.posix_fallocate(descriptor, 0, needed)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise NotEnoughMemory(needed, cgroups.available_memory(), advice, parts) from error
            raise
        arena = cls(descriptor, layout.fields, needed, is_allocated=allocate)
        if poison:
            arena._poison()
        return arena

    @classmethod
    def create_file(cls, layout: ArenaLayout, path: Path, *, poison: bool = False) -> Arena:
        """Makes a new arena in a new file.

        Raises:
            FileExistsError: There is one.
            NotEnoughDisk: The disk has no room for all of it, which is taken at once.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _take_from_disk(descriptor, path, layout.nbytes)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        arena = cls(descriptor, layout.fields, layout.nbytes)
        if poison:
            arena._poison()
        return arena

    @classmethod
    def open_file(cls, layout: ArenaLayout, path: Path) -> Arena:
        """The arena that :meth:`create_file` made with this layout.

        Raises:
            OSError: There is no such file, or it has another size.
            NotEnoughDisk: It was copied without what was zero in it, and the disk has no room for that.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if (size := os.fstat(descriptor).st_size) != layout.nbytes:
                raise OSError(f"{path} has {size} bytes, and this layout takes {layout.nbytes}")
            _take_from_disk(descriptor, path, size)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, layout.fields, layout.nbytes)

    def _poison(self) -> None:
        for name, field in self._layout.items():
            if field.poisoned:
                self[name][...] = poison_value(field.dtype)

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self._views[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._views, n=3)
            known = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {sorted(self._views)}."
            raise KeyError(f"The arena has no array {name!r}; {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._close_descriptor.alive:
            raise ValueError("This arena is closed: send it to a process before.")
        return _attach, (reduction.DupFd(self._descriptor), self._layout, self.nbytes, self._is_allocated)

    def close(self) -> None:
        """Releases this process's reference. The memory is freed with the last process and the last view."""
        # The reference is dropped instead of closing the mapping, because closing would invalidate NumPy's views.
        self._views = {}
        self._close_descriptor()


def poison_value(dtype: DTypeLike) -> Any:
    """The value that fills a poisoned array of this dtype.

    NaN for floats, the smallest value plus 90 for signed integers, the byte 0xA5 repeated for unsigned ones, True for
    booleans.

    Raises:
        ValueError: The dtype is none of these.
    """
    dtype = np.dtype(dtype)
    match dtype.kind:
        case "f" | "c":
            return np.full((), np.nan, dtype)[()]
        case "i":
            return dtype.type(np.iinfo(dtype).min + 90)
        case "u":
            return dtype.type(int.from_bytes(b"\xa5" * dtype.itemsize, "little"))
        case "b":
            return dtype.type(True)
    raise ValueError(f"No poison for dtype {dtype}; add the array with poisoned=False.")


def _take_from_disk(descriptor: int, path: Path, nbytes: int) -> None:
    """Allocates all blocks of a file now: a full disk would later cause a SIGBUS."""
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        raise NotEnoughDisk(
            f"{path} needs {readable(nbytes)}, and the disk does not give them ({error.strerror}): make room, or ask "
            "for less"
        ) from error


def _attach(descriptor: Any, fields: dict[str, ArenaField], nbytes: int, is_allocated: bool) -> Arena:
    return Arena(descriptor.detach(), fields, nbytes, is_allocated=is_allocated)
