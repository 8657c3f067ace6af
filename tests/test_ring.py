"""Queue: what multiprocessing.Queue promises, and what happens when processes are killed."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.ring import Queue

Message = int | bytes
FORK = multiprocessing.get_context("fork")


def start(work: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
    child = FORK.Process(target=work, args=arguments, daemon=True)
    child.start()
    return child


def kill(child: multiprocessing.process.BaseProcess) -> None:
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()


@settings(max_examples=80, deadline=None)
@given(
    messages=st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40))),
    takes=st.lists(st.integers(1, 5), min_size=1),
)
def test_delivers_what_was_put_in_order(messages: Sequence[Message], takes: Sequence[int]) -> None:
    messages_queue = Queue(capacity=64, max_producers=2)
    received: list[Message] = []
    waiting = 0
    for i, message in enumerate(messages):
        messages_queue.put(message)
        waiting += 1
        assert messages_queue.qsize() == waiting
        if waiting >= takes[i % len(takes)]:
            received += messages_queue.get_many(takes[i % len(takes)])
            waiting = len(messages[: i + 1]) - len(received)
    if waiting:
        received += messages_queue.get_many()
    assert received == list(messages)
    assert messages_queue.empty()


def test_is_a_bounded_queue_for_one_producer() -> None:
    messages = Queue(2)
    assert messages.empty()
    assert not messages.full()
    messages.put(1)
    messages.put_nowait(np.int32(2))
    assert messages.full()
    attempts: tuple[Callable[[], object], ...] = (
        lambda: messages.put_nowait(3),
        lambda: messages.put(3, False),
        lambda: messages.put(3, timeout=0.01),
        lambda: messages.put(3, True, 0.01),
        lambda: messages.put(3, block=True, timeout=-1),
    )
    for attempt in attempts:
        with pytest.raises(queue.Full):
            attempt()
    assert messages.put_many([3, 4], timeout=0.01) == 0
    assert (messages.get(), messages.get_nowait()) == (1, 2)
    for get in (
        lambda: messages.get_nowait(),
        lambda: messages.get(False),
        lambda: messages.get(timeout=0.01),
        lambda: messages.get_many(timeout=0.01),
        lambda: messages.get_many(block=False),
    ):
        with pytest.raises(queue.Empty):
            get()


def test_batches() -> None:
    messages = Queue(100)
    assert messages.put_many(np.arange(5)) == 5
    assert messages.put_many([5, b"six", 7]) == 3
    out = np.empty(10, np.int64)
    assert messages.get_many_into(out[:2]) == 2
    assert messages.get_many_into(out[2:]) == 4
    assert out[:6].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(TypeError, match="the next message is bytes"):
        messages.get_many_into(out)
    assert messages.get_many(1) == [b"six"]
    assert messages.get_many_into(out) == 1
    assert messages.get_many_into(out, timeout=0.01) == 0
    assert messages.get_many_into(out, block=False) == 0
    assert messages.put_many(np.arange(200), block=False) == 100


def test_refuses_what_it_cannot_carry() -> None:
    messages = Queue(8)
    for message in (1.5, "text", None, [1]):
        with pytest.raises(TypeError, match="a Queue carries int and bytes, not"):
            messages.put(message)  # type: ignore[arg-type]
    with pytest.raises(OverflowError, match="64 bits"):
        messages.put(2**63)
    with pytest.raises(ValueError, match="72 bytes does not fit a lane of 64"):
        messages.put(bytes(64))
    messages.put(bytes(56))
    assert messages.get() == bytes(56)
    wrong: tuple[tuple[tuple[object, ...], dict[str, object]], ...] = (
        ((), {}),
        ((1, True, 1, 1), {}),
        ((1,), {"x": 1}),
        ((1,), {"obj": 1}),
    )
    put: Callable[..., None] = messages.put
    for arguments, named in wrong:
        with pytest.raises(TypeError, match="obj, block and timeout"):
            put(*arguments, **named)
    with pytest.raises(ValueError, match="truth value"):
        messages.put(1, block=np.arange(2))  # type: ignore[arg-type]  # which is neither true nor false
    with pytest.raises(ValueError, match="NaN"):
        messages.get(timeout=math.nan)
    with pytest.raises(TypeError):
        messages.put(1, timeout="soon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_items is 0"):
        messages.get_many(0)
    with pytest.raises(ValueError, match="out is empty"):
        messages.get_many_into(np.empty(0, np.int64))
    with pytest.raises(ValueError, match="capacity is 0"):
        Queue(0)
    with pytest.raises(TypeError, match="not initialised"):
        Queue.__new__(Queue).put(1)


def test_is_closed_for_this_process_only() -> None:
    messages = Queue()
    messages.put(1)
    child = start(messages.put, 2)
    child.join()
    messages.close()
    messages.join_thread()
    messages.cancel_join_thread()
    for use in (
        lambda: messages.put(1),
        lambda: messages.put_many(np.arange(2)),
        lambda: messages.get(),
        lambda: messages.get_many(),
        lambda: messages.get_many_into(np.empty(1, np.int64)),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert messages.qsize() == 2


def put_range(messages: Queue, first: int, count: int) -> None:
    for value in range(first, first + count):
        messages.put(value)
    messages.put(b"end")


def test_between_processes() -> None:
    messages = Queue(capacity=32)
    children = [start(put_range, messages, 1000 * i, 1000) for i in range(2)]
    received: list[Message] = []
    while received.count(b"end") < 2:
        received += messages.get_many(timeout=60)
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert [m for m in received if isinstance(m, int) and m < 1000] == list(range(1000))
    assert [m for m in received if isinstance(m, int) and m >= 1000] == list(range(1000, 2000))


def test_reaches_spawned_children() -> None:
    messages = Queue()
    context = multiprocessing.get_context("spawn")
    for target, arguments in ((messages.put, (1,)), (messages.put, (b"two",)), (messages.get_nowait, ())):
        child = context.Process(target=target, args=arguments)
        child.start()
        child.join()
        assert child.exitcode == 0
    assert messages.get_many() == [b"two"]


def test_cannot_be_pickled_by_the_way() -> None:
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(Queue())


def test_threads_share_a_lane() -> None:
    messages = Queue(capacity=8, max_producers=1)
    threads = [threading.Thread(target=put_range, args=(messages, 1000 * i, 500)) for i in range(4)]
    for thread in threads:
        thread.start()
    received = [messages.get(timeout=60) for _ in range(4 * 501)]
    for thread in threads:
        thread.join()
    for i in range(4):
        mine = [m for m in received if isinstance(m, int) and m // 1000 == i]
        assert mine == list(range(1000 * i, 1000 * i + 500))


def consume(messages: Queue, results: Queue) -> None:
    while True:
        for message in messages.get_many(5):
            results.put(message)


def test_consumers_share_the_messages() -> None:
    messages, results = Queue(capacity=16), Queue()
    children = [start(consume, messages, results) for _ in range(3)]
    for value in range(2000):
        messages.put(value)
    received = [results.get(timeout=60) for _ in range(2000)]
    for child in children:
        kill(child)
    assert sorted(received) == list(range(2000))


def test_lanes_of_the_dead_are_used_again() -> None:
    messages = Queue(max_producers=2)
    messages.put(-1)
    for value in range(20):
        child = start(put_range, messages, value, 1)
        child.join()
        assert child.exitcode == 0
    assert messages.qsize() == 41
    received = messages.get_many()
    assert sorted(m for m in received if isinstance(m, int)) == list(range(-1, 20))


def test_a_lane_is_given_back_by_closing_and_by_forgetting() -> None:
    messages = Queue(max_producers=1)
    messages.put(1)
    child = start(put_and_report, messages)
    child.join()
    assert child.exitcode == 3
    messages.close()
    child = start(reopen_and_put, messages)
    child.join()
    assert child.exitcode == 0


def put_and_report(messages: Queue) -> None:
    try:
        messages.put(2)
    except RuntimeError as error:
        assert "larger max_producers" in str(error)  # noqa: PT017 - in a child
        os._exit(3)


def reopen_and_put(messages: Queue) -> None:
    again = Queue.__new__(Queue)
    again._attach(os.dup(messages._descriptor), messages._capacity, messages._max_producers, create=False)
    again.put(3)
    assert [again.get(), again.get()] == [1, 3]


def flood(messages: Queue) -> None:
    while True:
        messages.put(7)
        messages.put(b"seven" * 3)


def swallow(messages: Queue) -> None:
    while True:
        messages.get_many(3)


@pytest.mark.slow
def test_killed_producers_and_consumers_stop_nobody() -> None:
    messages = Queue(capacity=16, max_producers=3)
    random = np.random.default_rng(0)
    for round_number in range(20):
        producers = [start(flood, messages) for _ in range(2)]
        consumer = start(swallow, messages)
        time.sleep(float(random.uniform(0, 0.01)))
        kill(consumer if round_number % 2 else producers[0])
        for _ in range(50):  # one way or the other it flows on
            assert messages.get(timeout=30) in (7, b"seven" * 3)
        for child in (*producers, consumer):
            if child.is_alive():
                kill(child)


def test_a_consumer_killed_while_it_waits_is_replaced() -> None:
    messages = Queue()
    for _ in range(5):
        consumer = start(swallow, messages)
        time.sleep(0.02)
        kill(consumer)
        messages.put(1)
        assert messages.get(timeout=30) == 1


@pytest.mark.parametrize("blocked", ["get", "put", "behind another consumer"])
def test_a_wait_lets_python_handle_its_signals(blocked: str) -> None:
    messages = Queue(1)

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    other = start(swallow, messages) if blocked.startswith("behind") else None
    if blocked == "put":
        messages.put(1)
    time.sleep(0.02)
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            messages.put(2) if blocked == "put" else messages.get()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if other is not None:
            kill(other)
    if blocked != "put":
        messages.put(3)
        assert messages.get(timeout=30) == 3


def test_leaves_nothing_behind() -> None:
    gc.collect()
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        messages = Queue()
        messages.put(1)
        assert Path(f"/proc/self/fd/{messages._descriptor}").readlink().name.startswith("memfd:")
    del messages
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


def test_imports_no_torch() -> None:
    code = "import sys, rollmill.ring, rollmill.native; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
