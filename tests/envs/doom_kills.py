"""Kills Doom's engines while they start, and sees what they leave behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollmill.envs.doom_processes import children

QUEUE = "ViZDoomMQCtr"


def in_a_process(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a process of its own, which a defect would end with SIGSEGV."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join(100)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0


class Kill:
    """What a killer has done and seen.

    Attributes:
        pids: The engines in the order of their start.
        at: When one was killed; None if the start was over before.
        names: What the engines' shared memory is called, as suffixes.
    """

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.at: float | None = None
        self.names: set[str] = set()

    def assert_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 5
        while (left := set(self.pids) & children()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left
        assert self.names
        assert not [name for name in os.listdir("/dev/shm") if name.endswith(tuple(self.names))]


@contextlib.contextmanager
def kill_engine(number: int, after: float) -> Iterator[Kill]:
    """Kill an engine that starts in the block.

    Args:
        number: Which one, in the order of their start.
        after: Seconds after its process appears.
    """
    before, kill, is_over = children(), Kill(), threading.Event()

    def watch() -> None:
        until = None
        while not is_over.wait(0.002):
            kill.pids += sorted(children() - before - set(kill.pids))
            # An engine's queue is older than the engine, and goes soon after its kill: look in between.
            for line in Path("/proc/self/maps").read_text().splitlines():
                if QUEUE in line:
                    kill.names.add(line.partition(QUEUE)[2].split()[0])
            if until is None and len(kill.pids) > number:
                until = time.monotonic() + after
            if kill.at is None and until is not None and time.monotonic() >= until:
                kill.at = time.monotonic()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(kill.pids[number], signal.SIGKILL)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield kill
    finally:
        is_over.set()
        thread.join()
