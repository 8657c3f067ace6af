"""``rollmill bench ring``: messages a second through ``rollmill.ring.Queue`` and the alternatives.

Every producer is a process that calls ``put`` once for each message, as a rollout worker does; one consumer, this
process, takes them in batches where the queue supports it. The queues take turns, so that changes of the machine's
speed affect all of them, and each figure is the median of its rounds.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import queue
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.ring import Queue
from rollmill.runtime.fork_server import die_with_parent

_ROUNDS = 3
_WARM_UP_S = 0.1
_CHUNK = 200
_BATCH = 65_536
_CAPACITY = 8192
_STOP_CHECK_S = 0.05

Put = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class _Contender:
    """One queue: how to create it, and how to receive messages.

    Attributes:
        make: Creates the queue.
        drain: Receives all available messages, waiting briefly for the first one; returns their number.
    """

    make: Callable[[], Any]
    drain: Callable[[Any], int]


def _rollmill() -> _Contender:
    out = np.empty(_BATCH, np.int64)

    def drain(messages: Queue) -> int:
        return messages.get_many_into(out, True, _STOP_CHECK_S)

    return _Contender(make=Queue, drain=drain)


def _multiprocessing() -> _Contender:
    def drain(messages: Any) -> int:
        # This queue has no batched get. Empty it without reading the clock.
        count = 0
        try:
            for count in range(1, 1001):  # noqa: B007
                messages.get(timeout=_STOP_CHECK_S)
        except queue.Empty:
            count -= 1
        return count

    # Bounded like ours: without a bound its feeder threads fall behind, and the throughput is lower.
    return _Contender(make=lambda: multiprocessing.get_context("fork").Queue(_CAPACITY), drain=drain)


def _faster_fifo() -> _Contender | None:
    try:
        module = importlib.import_module("faster_fifo")
    except ImportError:
        return None

    def drain(messages: Any) -> int:
        try:
            return len(messages.get_many(block=True, timeout=_STOP_CHECK_S, max_messages_to_get=_BATCH))
        except queue.Empty:
            return 0

    return _Contender(make=module.Queue, drain=drain)


def _produce(messages: Any, parent: int) -> None:
    """Put integers, with one call each, until killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent as well, which then kills this process.
    die_with_parent(parent)
    put: Put = messages.put
    while True:
        for value in range(_CHUNK):
            put(value)


def _measure(contender: _Contender, producers: int, seconds: float) -> float:
    """Messages a second that arrive during ``seconds``."""
    context = multiprocessing.get_context("fork")  # what faster-fifo's locks are made for
    messages = contender.make()
    children = [context.Process(target=_produce, args=(messages, os.getpid()), daemon=True) for _ in range(producers)]
    try:
        for child in children:
            child.start()
        warm = time.perf_counter() + _WARM_UP_S
        while time.perf_counter() < warm:
            contender.drain(messages)
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            count += contender.drain(messages)
    finally:
        started = [child for child in children if child.pid is not None]
        for child in started:
            child.kill()
        for child in started:
            child.join()
            child.close()
    if hasattr(messages, "close"):
        messages.close()
    return count / elapsed


def run(seconds: float, producers: Sequence[int] = (1, 4, 20)) -> dict[str, dict[str, dict[str, float]]]:
    """Measure every installed queue with every number of producers.

    Args:
        seconds: Time of all measurements together, without starting processes.
        producers: Numbers of producer processes.

    Returns:
        ``{"producers": {"4": {"rollmill": messages_per_second, "multiprocessing": ..., "faster_fifo": ...}, ...}}``;
        ``faster_fifo`` only where it can be imported.

    Raises:
        ValueError: ``seconds`` is not positive, or ``producers`` is empty or contains a number below 1.
    """
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; give a positive number of seconds")
    if not producers or min(producers) < 1:
        raise ValueError(f"producers is {tuple(producers)}; give numbers of processes, each at least 1")
    found = {"rollmill": _rollmill(), "multiprocessing": _multiprocessing(), "faster_fifo": _faster_fifo()}
    contenders = {name: contender for name, contender in found.items() if contender is not None}
    window = seconds / (_ROUNDS * len(contenders) * len(producers))
    rates: dict[tuple[int, str], list[float]] = {(n, name): [] for n in producers for name in contenders}
    for _ in range(_ROUNDS):
        for n, name in rates:
            rates[n, name].append(_measure(contenders[name], n, window))
    return {
        "producers": {
            str(n): {name: statistics.median(rates[n, name]) for name in contenders} for n in dict.fromkeys(producers)
        }
    }
