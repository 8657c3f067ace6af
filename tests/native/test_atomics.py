"""Snapshots, atomic words and the parent-death signal."""

from __future__ import annotations

import mmap
import multiprocessing
import threading

import numpy as np
import pytest

from rollmill.native import (
    atomic_add,
    atomic_compare_exchange,
    atomic_load,
    atomic_store,
    snapshot_read,
    snapshot_write,
)


def test_a_snapshot_comes_back_with_its_version() -> None:
    header = np.zeros(2, np.int64)
    block = np.zeros(3, np.float64)
    out = np.empty(3, np.float64)
    assert snapshot_read(header, out, block) == 0
    snapshot_write(header, block, np.array([1.0, 2.0, 3.0]))
    assert snapshot_read(header, out, block) == 1
    assert out.tolist() == [1.0, 2.0, 3.0]
    snapshot_write(header, block, np.zeros(24, np.uint8), 77)
    assert snapshot_read(header, out, block) == 77
    assert header.tolist() == [4, 77]
    header[0] = 5  # as a writer leaves it that dies in the middle
    assert snapshot_read(header, out, block) == -1
    snapshot_write(header, block, out)
    assert snapshot_read(header, out, block) == 78


def test_snapshots_between_threads_are_never_mixed() -> None:
    header = np.zeros(2, np.int64)
    block = np.zeros(40_003, np.uint8)

    def write() -> None:
        for version in range(1, 301):
            snapshot_write(header, block, np.full(block.size, version % 251, np.uint8), version)

    writer = threading.Thread(target=write)
    writer.start()
    out = np.empty_like(block)
    version = 0
    while version < 300:
        version = snapshot_read(header, out, block)
        if version >= 0:
            assert np.all(out == version % 251)
    writer.join()


def test_snapshots_refuse_what_does_not_match() -> None:
    header = np.zeros(2, np.int64)
    block = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="16 bytes and src 8"):
        snapshot_write(header, block, block[:8].copy())
    with pytest.raises(ValueError, match="src has 16 bytes and dst 8"):
        snapshot_read(header, block[:8].copy(), block)
    with pytest.raises(ValueError, match="multiple of 8"):
        snapshot_write(header, block[1:9], block[:8])
    with pytest.raises(ValueError, match="array of 2"):
        snapshot_write(np.zeros(3, np.int64), block, block.copy())
    with pytest.raises(ValueError, match="version is -1"):
        snapshot_write(header, block, block.copy(), -1)
    with pytest.raises(TypeError, match="header must be"):
        snapshot_write(np.zeros(2, np.int32), block, block.copy())


def add_often(memory: mmap.mmap, count: int) -> None:
    words = np.frombuffer(memory, np.int64)
    for _ in range(count):
        atomic_add(words, 1, 2)


def test_additions_of_several_processes_all_count() -> None:
    memory = mmap.mmap(-1, 16)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=add_often, args=(memory, 20_000)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert np.frombuffer(memory, np.int64).tolist() == [0, 120_000]


def test_atomic_words() -> None:
    words = np.array([5, 6], np.int64)
    assert atomic_load(words, 1) == 6
    atomic_store(words, 0, -(2**63))
    assert atomic_add(words, 0, 3) == -(2**63)
    assert not atomic_compare_exchange(words, 1, 5, 9)
    assert atomic_compare_exchange(words, 1, 6, 9)
    assert words.tolist() == [-(2**63) + 3, 9]
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"index is {index}; the array has 0 to 1"):
            atomic_load(words, index)
    with pytest.raises(TypeError, match="array must be a one-dimensional int64"):
        atomic_add(np.zeros(2, np.uint64), 0, 1)
