"""A fast queue between processes for integers and bytes: there, a drop-in for ``multiprocessing.Queue``.

Each producer has a lane of its own in anonymous shared memory (see :class:`rollmill.native.LaneRing`), so ``put`` takes
no lock and makes no system call unless a consumer sleeps, and a producer that is killed at any instruction blocks and
corrupts nothing. Consumers exclude each other with a robust mutex, which the kernel unlocks when its holder is killed.

Where it differs from ``multiprocessing.Queue``:

* Messages are ``int`` (64 bits) and ``bytes``; anything else is a TypeError.
* There is no feeder thread: after ``put`` returns, the message is in the queue and survives its producer.
* Messages of one producer arrive in order; those of several take turns by lane and not by time.
* ``capacity`` bounds each producer separately. A producer whose lane is full waits for consumers.
* It has no name: the memory is a memfd, inherited by fork and passed by descriptor to spawned children, and is freed
  with the last process that has it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from multiprocessing import context, reduction
from typing import Any, SupportsIndex

from rollmill.native import MessageLanes


class Queue(MessageLanes):
    """A queue of integers and bytes for any number of producers and consumers, in one process or several.

    Create it before the children and pass it to them as an argument, or let them inherit it by fork.

    Args:
        capacity: Words of 8 bytes that each producer can have waiting: an integer takes one (two beyond 63 bits), ``n``
            bytes take ``1 + ceil(n / 8)``.
        max_producers: Producers that can be alive at once. A process becomes one at its first ``put``; the lane of one
            that closed the queue or died is used again. Lanes cost address space, and memory once used.

    Raises:
        ValueError: ``capacity`` or ``max_producers`` is not positive.
    """

    def __init__(self, capacity: int = 8192, max_producers: int = 128) -> None:
        size = MessageLanes.nbytes(max_producers, capacity)
        descriptor = os.memfd_create("rollmill-queue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            # A process that holds the descriptor must not be able to shrink the memory.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._attach(descriptor, capacity, max_producers, create=True)
        except BaseException:
            os.close(descriptor)
            raise

    def _attach(self, descriptor: int, capacity: int, max_producers: int, *, create: bool) -> None:
        memory = mmap.mmap(descriptor, MessageLanes.nbytes(max_producers, capacity))
        MessageLanes.__init__(self, memory, max_producers, capacity, create=create)
        self._descriptor = descriptor
        self._capacity = capacity
        self._max_producers = max_producers

    def __getstate__(self) -> tuple[object, int, int]:
        """Only for a child that is being spawned: the memory goes as a descriptor.

        Raises:
            RuntimeError: No child is being spawned.
        """
        context.assert_spawning(self)
        return reduction.DupFd(self._descriptor), self._capacity, self._max_producers

    def __setstate__(self, state: tuple[Any, int, int]) -> None:
        """Attach to the memory that came along."""
        duplicate, capacity, max_producers = state
        self._attach(duplicate.detach(), capacity, max_producers, create=False)

    def __del__(self) -> None:
        """Close the descriptor; the memory goes with its last user."""
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)

    def put_nowait(self, obj: SupportsIndex | bytes) -> None:
        """``put(obj, block=False)``."""
        self.put(obj, False)

    def get_nowait(self) -> int | bytes:
        """``get(block=False)``."""
        return self.get(False)

    def join_thread(self) -> None:
        """Return at once: there is no feeder thread whose messages could be lost."""

    def cancel_join_thread(self) -> None:
        """Return at once; as ``join_thread``."""
