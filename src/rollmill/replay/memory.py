"""A replay's memory: an arena that processes share, or memory of one process, in large pages.

Draws are reads at random, and much of their time is the translation of addresses: with 2 MiB a page instead of 4 KiB a
sample takes a tenth less from a million transitions, and a fifth to a third less from ten. Linux gives large pages to a
process's own memory on request, and to shared memory only where
``/sys/kernel/mm/transparent_hugepage/shmem_enabled`` allows it.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rollmill.runtime import cgroups
from rollmill.runtime.arena import Arena, ArenaLayout, MemoryPart, NotEnoughMemory

_ADVICE = "Give a smaller capacity, smaller fields (uint8 frames), or path= for a file."


class PrivateMemory(dict[str, NDArray[Any]]):
    """Named arrays, as an :class:`rollmill.runtime.arena.Arena`'s, of this process alone.

    Raises:
        NotEnoughMemory: The machine has less memory available.
    """

    def __init__(self, layout: ArenaLayout) -> None:
        self.nbytes = layout.nbytes
        if self.nbytes > (available := cgroups.available_memory()):
            raise NotEnoughMemory(self.nbytes, available, _ADVICE, (MemoryPart("the replay", self.nbytes),))
        memory = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for name, field in layout.fields.items():
            self[name] = np.ndarray(field.shape, field.dtype, buffer=memory, offset=field.offset)
        prefer_large_pages(self)

    def __reduce__(self) -> NoReturn:
        raise ValueError("this replay was made with shared=False; leave that out to send it to other processes")


Memory = Arena | PrivateMemory


def shared_memory(layout: ArenaLayout) -> Arena:
    """Memory that child processes can attach to.

    Raises:
        NotEnoughMemory: The machine has less memory available.
    """
    arena = Arena.create(layout, advice=_ADVICE)
    prefer_large_pages(arena)
    return arena


def map_of(memory: Memory) -> mmap.mmap:
    """The map that the arrays are views of."""
    base: Any = memory["settings"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)
    return base


def prefer_large_pages(memory: Memory) -> None:
    """Requests large pages, where the kernel has them."""
    with contextlib.suppress(OSError):
        map_of(memory).madvise(mmap.MADV_HUGEPAGE)
