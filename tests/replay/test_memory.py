"""A replay's memory: arrays at their places, refused where there is too little, and only shared memory is sent."""

import mmap
import multiprocessing
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from rollmill.replay import PrioritizedReplay
from rollmill.replay.memory import PrivateMemory, map_of, shared_memory
from rollmill.runtime.arena import Arena, ArenaLayout, NotEnoughMemory


def layout():
    return ArenaLayout().add("settings", 4, "int64").add("rows", (3, 5), "float32", page_aligned=True)


@pytest.mark.parametrize("make", [PrivateMemory, shared_memory])
def test_arrays_are_zero_and_apart(make):
    memory = make(layout())
    assert list(memory) == ["settings", "rows"]
    assert memory.nbytes == layout().nbytes
    for name, field in layout().fields.items():
        assert (memory[name].shape, memory[name].dtype) == (field.shape, field.dtype)
        assert not memory[name].any()
    memory["settings"][:] = -1
    assert not memory["rows"].any()
    memory["rows"][:] = 2.5
    assert (memory["settings"] == -1).all()


@pytest.mark.parametrize("make", [PrivateMemory, shared_memory])
def test_all_arrays_are_views_of_one_map(make):
    memory = make(layout())
    found = map_of(memory)
    assert isinstance(found, mmap.mmap)
    assert len(found) == layout().nbytes
    memory["rows"][0, 0] = 7.0
    offset = layout().fields["rows"].offset
    assert np.frombuffer(found[offset : offset + 4], np.float32)[0] == 7.0


def huge_pages(address):
    """Whether the kernel was asked for large pages at an address: the flags of its range in /proc."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            here = int(found[1], 16) <= address < int(found[2], 16)
        elif here and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError(f"no range holds {address:#x}")


@pytest.mark.parametrize("make", [PrivateMemory, shared_memory])
def test_large_pages_are_asked_for(make):
    memory = make(layout())
    try:
        map_of(memory).madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        pytest.skip(f"the kernel has none: {error}")
    del memory
    memory = make(layout())
    assert huge_pages(memory["rows"].ctypes.data)


@pytest.mark.parametrize("make", [PrivateMemory, shared_memory])
def test_more_than_there_is_memory_raises_before_anything_is_taken(make):
    too_much = ArenaLayout().add("settings", 2**50, "int64")
    with pytest.raises(NotEnoughMemory, match=r"are available .*Give a smaller capacity, smaller fields") as caught:
        make(too_much)
    assert caught.value.needed == 2**53
    assert caught.value.available < caught.value.needed


def test_only_shared_memory_is_called_so():
    too_much = ArenaLayout().add("settings", 2**50, "int64")
    with pytest.raises(NotEnoughMemory, match=r"8192\.0 TiB of memory are needed .*: 8192\.0 TiB for the replay"):
        PrivateMemory(too_much)
    with pytest.raises(NotEnoughMemory, match=r"8192\.0 TiB of shared memory are needed"):
        shared_memory(too_much)


@pytest.mark.parametrize("shared", [False, True])
def test_a_replay_of_more_than_there_is_memory_is_refused(shared):
    with pytest.raises(MemoryError, match="Give a smaller capacity, smaller fields"):
        PrioritizedReplay(2**40, {"x": ((1000,), "float64")}, shared=shared)


def test_private_memory_is_not_sent():
    with pytest.raises(ValueError, match="this replay was made with shared=False; leave that out to send it"):
        pickle.dumps(PrivateMemory(layout()))
    assert isinstance(shared_memory(layout()), Arena)


def write(memory):
    memory["rows"][1] = 4.0


def test_a_child_process_writes_into_shared_memory_alone():
    shared, private = shared_memory(layout()), PrivateMemory(layout())
    for memory in (shared, private):
        child = multiprocessing.get_context("fork").Process(target=write, args=(memory,))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert shared["rows"][1].tolist() == [4.0] * 5
    assert not private["rows"].any()
