"""UDP ports for Doom's network protocol. The engine's start fails with a crash if its port is taken."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 20_000, 32_000  # below the ports that Linux gives to other programs by itself
_TRIES = 200


class Port:
    """A free port, which no other process that asks here is given while this object is open.

    Attributes:
        number: The port.
    """

    def __init__(self) -> None:
        """Find one.

        Raises:
            OSError: None of many tries was free.
        """
        chosen = random.SystemRandom()
        for _ in range(_TRIES):
            number = chosen.randrange(_FIRST, _LAST)
            # A name in Linux's abstract namespace ends with the process, however it ends.
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"\0rollmill-doom-{number}")
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind(("", number))
            except OSError:
                lock.close()
                continue
            self.number, self._lock = number, lock
            return
        raise OSError(f"no free UDP port between {_FIRST} and {_LAST} in {_TRIES} tries: end what uses them")

    def close(self) -> None:
        """Give it back."""
        self._lock.close()
