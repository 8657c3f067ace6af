"""LaneRing from Python: the contract of every method, between threads and between processes."""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.native import LaneRing


def make_ring(num_lanes: int = 1, capacity: int = 4) -> LaneRing:
    return LaneRing(mmap.mmap(-1, LaneRing.nbytes(num_lanes, capacity)), num_lanes, capacity, create=True)


def take(ring: LaneRing, most: int = 100) -> list[int]:
    out = np.empty(most, np.int64)
    return [int(value) for value in out[: ring.get_many(out, 0.0)]]


Operation = tuple[str, int, int]


@settings(max_examples=100, deadline=None)
@given(
    capacity=st.integers(1, 9),
    operations=st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(0, 2), st.integers(0, 12))),
)
def test_behaves_like_a_list_for_each_lane(capacity: int, operations: list[Operation]) -> None:
    ring = make_ring(3, capacity)
    model: list[list[int]] = [[], [], []]
    turn = 0
    value = -3
    for kind, lane, n in operations:
        if kind == "get":
            expected: list[int] = []
            for _ in range(3):
                if len(expected) == n + 1:
                    break
                count = min(n + 1 - len(expected), len(model[turn]))
                expected += model[turn][:count]
                del model[turn][:count]
                turn = (turn + 1) % 3
            assert take(ring, n + 1) == expected
        else:
            value += 1
            fits = len(model[lane]) < capacity
            assert ring.put(lane, value) is fits
            model[lane] += [value] * fits
        assert len(ring) == sum(map(len, model))


def test_carries_the_whole_range_of_int64() -> None:
    ring = make_ring()
    for value in (-(2**63), -1, 0, 2**63 - 1):
        assert ring.put(0, value)
    assert take(ring) == [-(2**63), -1, 0, 2**63 - 1]


def test_get_many_waits_for_min_items_and_delivers_what_is_there_at_the_timeout() -> None:
    ring = make_ring(2, 8)
    out = np.zeros(8, np.int64)
    assert ring.get_many(out, 0.01) == 0
    ring.put(0, 5)
    assert ring.get_many(out, 0.01, 3) == 1
    assert out[0] == 5

    def produce() -> None:
        for value in range(3):
            time.sleep(0.01)
            ring.put(value % 2, value)

    thread = threading.Thread(target=produce)
    thread.start()
    assert ring.get_many(out, 30.0, min_items=3) == 3
    thread.join()
    assert sorted(out[:3].tolist()) == [0, 1, 2]


def test_wake_ends_a_wait_once() -> None:
    ring = make_ring()
    out = np.empty(4, np.int64)
    ring.wake()
    assert ring.get_many(out, 30.0) == 0
    thread = threading.Timer(0.05, ring.wake)
    thread.start()
    assert ring.get_many(out, 30.0) == 0
    thread.join()
    ring.put(0, 1)
    assert ring.get_many(out, 30.0) == 1


def produce_in_child(ring: LaneRing, lane: int, count: int) -> None:
    for value in range(count):
        while not ring.put(lane, lane * count + value):
            time.sleep(0.001)


def test_many_processes_lose_nothing() -> None:
    ring = make_ring(4, 16)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=produce_in_child, args=(ring, lane, 2000)) for lane in range(4)]
    for child in children:
        child.start()
    out = np.empty(64, np.int64)
    received: list[list[int]] = [[], [], [], []]
    while sum(map(len, received)) < 8000:
        count = ring.get_many(out, 60.0)
        assert count > 0
        for value in out[:count].tolist():
            received[value // 2000].append(value % 2000)
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert received == [list(range(2000))] * 4


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring_bell(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, ring_bell)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("alarm")
def test_a_waiting_get_lets_python_handle_its_signals() -> None:
    with pytest.raises(KeyboardInterrupt):
        make_ring().get_many(np.empty(1, np.int64), math.inf)


def test_a_killed_producer_blocks_no_other() -> None:
    ring = make_ring(2, 8)
    out = np.empty(16, np.int64)

    def flood() -> None:
        while True:
            ring.put(0, 1)

    for _ in range(10):
        child = multiprocessing.get_context("fork").Process(target=flood)
        child.start()
        assert ring.get_many(out, 30.0) > 0
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        take(ring)
        assert ring.put(1, 7)
        assert take(ring)[-1:] == [7]


def test_attaching_checks_what_is_there() -> None:
    size = LaneRing.nbytes(2, 4)
    memory = mmap.mmap(-1, size)
    with pytest.raises(ValueError, match="no ring in this memory"):
        LaneRing(memory, 2, 4, create=False)
    LaneRing(memory, 2, 4, create=True).put(1, 9)
    assert take(LaneRing(memory, 2, 4, create=False)) == [9]
    with pytest.raises(ValueError, match="created with 2 lanes of 4 values, not 2 of 5"):
        LaneRing(mmap_copy(memory, LaneRing.nbytes(2, 8)), 2, 5, create=False)
    memory[8:12] = (99).to_bytes(4, "little")
    with pytest.raises(ValueError, match="layout version 99"):
        LaneRing(memory, 2, 4, create=False)
    with pytest.raises(ValueError, match=f"has {size} bytes; 3 lanes"):
        LaneRing(memory, 3, 4, create=True)
    with pytest.raises(ValueError, match="multiple of 64"):
        LaneRing(np.frombuffer(mmap.mmap(-1, size + 64), np.uint8)[8:], 2, 4, create=True)
    with pytest.raises(TypeError, match="memory must be"):
        LaneRing(bytes(size), 2, 4, create=True)


def mmap_copy(memory: mmap.mmap, size: int) -> mmap.mmap:
    copy = mmap.mmap(-1, size)
    copy[: len(memory)] = memory[:]
    return copy


@pytest.mark.parametrize(("lanes", "capacity"), [(0, 4), (-1, 4), (2, 0), (2**30, 4), (1, 2**50)])
def test_nbytes_refuses_impossible_geometries(lanes: int, capacity: int) -> None:
    with pytest.raises(ValueError, match="it must be 1 to"):
        LaneRing.nbytes(lanes, capacity)


def test_wrong_arguments_are_named() -> None:
    ring = make_ring(2, 4)
    out = np.empty(4, np.int64)
    for lane in (-1, 2):
        with pytest.raises(IndexError, match=f"lane is {lane}; this ring has lanes 0 to 1"):
            ring.put(lane, 0)
    for timeout in (-1.0, math.nan):
        with pytest.raises(ValueError, match="timeout_s"):
            ring.get_many(out, timeout)
    for min_items in (0, 5):
        with pytest.raises(ValueError, match=f"min_items is {min_items}; it must be 1 to 4"):
            ring.get_many(out, 0.0, min_items)
    with pytest.raises(TypeError, match="one-dimensional int64"):
        ring.get_many(np.empty(4, np.int32), 0.0)
    with pytest.raises(TypeError, match="C-contiguous"):
        ring.get_many(np.empty(8, np.int64)[::2], 0.0)
    with pytest.raises(TypeError, match="put takes a lane and a value"):
        ring.put(0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ring.put(0, "x")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        ring.put(0, 2**63)
    with pytest.raises(TypeError, match="not initialised"):
        LaneRing.__new__(LaneRing).put(0, 1)
    assert (ring.num_lanes, ring.capacity, len(ring)) == (2, 4, 0)
