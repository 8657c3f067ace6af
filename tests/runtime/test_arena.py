"""Shared arenas: layout, sharing across spawn, poison, sizes, leftovers."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import multiprocessing
import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest
import runtime_targets

from rollmill.runtime.arena import Arena, ArenaLayout, NotEnoughMemory, poison_value
from rollmill.runtime.events import Exited
from rollmill.runtime.supervisor import Supervisor


def _layout() -> ArenaLayout:
    return (
        ArenaLayout()
        .add("flags", (3,), "bool")
        .add("image", (2, 5, 7), np.uint8)
        .add("value", (2, 3), np.float32, page_aligned=True)
        .add("count", 4, np.int64)
        .add("zero", 4, np.int64, poisoned=False)
        .add("nothing", (0, 3), np.float64)
    )


def _descriptors() -> int:
    gc.collect()  # Garbage of other tests must not be collected in the middle of this one.
    return len(os.listdir("/proc/self/fd"))


def test_arrays_are_aligned_disjoint_and_zero() -> None:
    layout = _layout()
    arena = Arena.create(layout)
    assert list(arena) == ["flags", "image", "value", "count", "zero", "nothing"]
    assert arena.nbytes == layout.nbytes
    assert layout.nbytes % mmap.PAGESIZE == 0
    ends = 0
    for name, field in layout.fields.items():
        array = arena[name]
        assert (array.shape, array.dtype) == (field.shape, field.dtype)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0
        assert field.offset >= ends
        ends = field.offset + array.nbytes
        assert not array.any()
    assert arena["value"].ctypes.data % mmap.PAGESIZE == 0


def test_poison_stands_out_and_spares_what_must_start_at_zero() -> None:
    arena = Arena.create(_layout(), poison=True)
    assert np.isnan(arena["value"]).all()
    assert (arena["image"] == 0xA5).all()
    assert (arena["count"] == np.iinfo(np.int64).min + 90).all()
    assert arena["flags"].all()
    assert not arena["zero"].any()
    assert poison_value("uint16") == 0xA5A5
    assert poison_value("int8") == -38
    assert np.isnan(poison_value("float16"))
    with pytest.raises(ValueError, match="No poison for dtype datetime64"):
        poison_value("datetime64[s]")


@pytest.mark.slow
def test_a_spawned_child_writes_into_the_same_memory() -> None:
    arena = Arena.create(ArenaLayout().add("numbers", 5, np.int64))
    arena["numbers"][:] = np.arange(5)
    with Supervisor() as supervisor:
        handle = supervisor.start("doubler", runtime_targets.double_in_place, arena, arena)
        events = supervisor.poll(30)
        while Exited(handle) not in events:
            events += supervisor.poll(30)
    assert arena["numbers"].tolist() == [0, 2, 4, 6, 8]


def test_size_is_sealed() -> None:
    arena = Arena.create(_layout())
    with pytest.raises(PermissionError):
        os.ftruncate(arena._descriptor, arena.nbytes * 2)
    assert fcntl.fcntl(arena._descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK


def _sends_on(arena: Arena) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_writes, args=(arena,))
    child.start()
    child.join()


def _writes(arena: Arena) -> None:
    arena["count"][:] = 5


def test_who_was_sent_it_may_send_it_on() -> None:
    arena = Arena.create(_layout())
    child = multiprocessing.get_context("spawn").Process(target=_sends_on, args=(arena,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert arena["count"].tolist() == [5, 5, 5, 5]


def test_closing_frees_descriptors_and_a_held_view_stays_readable() -> None:
    before = _descriptors()
    arena = Arena.create(_layout())
    view = arena["count"]
    view[:] = 7
    arena.close()
    arena.close()
    assert view.tolist() == [7, 7, 7, 7]
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(arena)
    del view, arena
    dropped = Arena.create(_layout())
    del dropped
    assert _descriptors() == before


def test_too_large_an_arena_says_what_is_needed_and_leaves_nothing() -> None:
    before = _descriptors()
    layout = ArenaLayout().add("huge", (1 << 50,), np.uint8)
    with pytest.raises(NotEnoughMemory, match=r"1024\.0 TiB .* are needed and .* Use fewer environments\.") as caught:
        Arena.create(layout, advice="Use fewer environments.")
    assert caught.value.needed == 1 << 50
    assert 0 < caught.value.available < 1 << 50
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.needed, copy.available) == (str(caught.value), caught.value.needed, caught.value.available)
    assert _descriptors() == before
    small = ArenaLayout().add("small", (1 << 20,), np.uint8)
    with pytest.raises(NotEnoughMemory, match=r"1\.0 MiB .* are needed and 512\.0 KiB"):
        Arena.create(small, available=1 << 19)
    Arena.create(small, available=1 << 20).close()


def _mapped_files() -> set[str]:
    return {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}


def _count_faults(arena: Arena, allocated: bool) -> None:
    for written in (False, True):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if written:
            arena["pages"][:: mmap.PAGESIZE] = 1
        else:
            arena["pages"][:: mmap.PAGESIZE].max()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        assert (faults < 50) == (allocated or written), faults


@pytest.mark.parametrize("allocated", [True, False])
def test_memory_that_is_allocated_at_once_is_mapped_whole_in_each_process(allocated: bool) -> None:
    arena = Arena.create(ArenaLayout().add("pages", 2_000 * mmap.PAGESIZE, np.uint8), allocate=allocated)
    assert (os.fstat(arena._descriptor).st_blocks * 512 >= arena.nbytes) == allocated
    if not allocated:
        arena["pages"][:] = 0
    child = multiprocessing.get_context("spawn").Process(target=_count_faults, args=(arena, allocated))
    child.start()
    child.join()
    assert child.exitcode == 0


def test_memory_that_is_not_there_when_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _descriptors()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(NotEnoughMemory, match="are needed"):
        Arena.create(_layout(), allocate=True)
    assert _descriptors() == before


def test_the_memory_has_no_name() -> None:
    before = _mapped_files()
    arena = Arena.create(_layout(), poison=True)
    # What other tests' modules have mapped is theirs.
    assert _mapped_files() - before == {"/memfd:rollmill (deleted)"}
    arena.close()


def test_wrong_layouts_are_refused() -> None:
    layout = ArenaLayout().add("a", 1, np.int8)
    with pytest.raises(ValueError, match="already has an array 'a'"):
        layout.add("a", 2, np.int8)
    with pytest.raises(ValueError, match="every axis must be >= 0"):
        layout.add("b", (2, -1), np.int8)
    with pytest.raises(ValueError, match="Python objects"):
        layout.add("c", 2, object)


def test_an_unknown_name_suggests_the_nearest() -> None:
    arena = Arena.create(_layout())
    with pytest.raises(KeyError, match="did you mean 'value'"):
        arena["valeu"]
    with pytest.raises(KeyError, match="it has"):
        arena["xyz"]
