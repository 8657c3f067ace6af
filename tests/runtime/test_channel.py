"""Messages through a pipe: whole or not at all, and the reader never waits."""

from __future__ import annotations

import os
import pickle
import struct
import threading

import numpy as np

from rollmill.runtime.channel import Receiver, Sender


def _is_open(receiver: Receiver) -> bool:
    return receiver.open


def test_messages_arrive_in_order_in_whatever_pieces_they_come() -> None:
    reading, writing = os.pipe()
    receiver = Receiver(reading)
    messages: list[object] = [1, "two", {"three": [4, 5.5]}, None]
    stream = b"".join(struct.pack("<Q", len(body)) + body for body in map(pickle.dumps, messages))
    received: list[object] = []
    assert receiver.receive() == []
    for i in range(0, len(stream), 7):
        os.write(writing, stream[i : i + 7])
        received += receiver.receive()
    assert received == messages
    assert _is_open(receiver)
    os.close(writing)
    assert receiver.receive() == []
    assert not _is_open(receiver)
    receiver.close()


def test_a_writer_that_ends_inside_a_message_does_not_block_the_reader() -> None:
    reading, writing = os.pipe()
    receiver = Receiver(reading)
    Sender(writing).send("whole")
    half = pickle.dumps("never complete")
    os.write(writing, struct.pack("<Q", len(half)) + half[:4])
    assert receiver.receive() == ["whole"]
    assert _is_open(receiver)
    os.close(writing)
    assert receiver.receive() == []
    assert not _is_open(receiver)
    receiver.close()


def test_messages_larger_than_the_pipe_from_several_threads_stay_whole() -> None:
    reading, writing = os.pipe()
    receiver, sender = Receiver(reading), Sender(writing)
    threads = [threading.Thread(target=sender.send, args=(np.full(200_000, i),)) for i in range(3)]
    for thread in threads:
        thread.start()
    received: list[object] = []
    while len(received) < 3:
        received += receiver.receive()
    for thread in threads:
        thread.join()
    sums = sorted(int(np.unique(array).item()) for array in received if isinstance(array, np.ndarray))
    assert sums == [0, 1, 2]
    os.close(writing)
    receiver.close()
