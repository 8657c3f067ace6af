"""Messages from a child to the main process: length-prefixed pickles through a pipe, at a low rate.

Not ``multiprocessing.Connection``, whose ``recv`` blocks on a message that its writer was killed in the middle of.
"""

from __future__ import annotations

import os
import pickle
import struct
import threading
from multiprocessing import reduction
from typing import Any

_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 16


class SentDescriptor:
    """A file descriptor that is sent to a child; after loading, ``number`` is its number in the child."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.number),)


def _received(duplicate: Any) -> SentDescriptor:
    return SentDescriptor(duplicate.detach())


class Sender:
    """The child's end. Any thread may send; a killed process leaves no partial message behind for the reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Sends a picklable object. Waits while the pipe is full, that is until the main process polls."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        rest = memoryview(_HEADER.pack(len(body)) + body)
        with self._lock:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


class Receiver:
    """The main process's end; never blocks.

    Attributes:
        descriptor: The pipe's end to wait on.
        open: False once the writer has closed its end.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.open = True
        self._buffer = bytearray()

    def receive(self) -> list[object]:
        """All complete messages; a partial one stays until its rest arrives."""
        while self.open:
            try:
                data = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                break
            self.open = bool(data)
            self._buffer += data
        messages: list[object] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer, start)
            end = start + _HEADER.size + size
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(self._buffer[start + _HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return messages

    def close(self) -> None:
        """Closes the pipe's end."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1
        self.open = False
