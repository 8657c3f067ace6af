"""Weight publication: whole versions, newest first, never torn."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.storage.weights import NOT_PUBLISHED, WeightStore, add_to_layout


def make_store(nbytes: int, num_versions: int = 2) -> WeightStore:
    layout = ArenaLayout()
    add_to_layout(layout, nbytes=nbytes, num_versions=num_versions)
    return WeightStore(Arena.create(layout), create=True)


def test_nothing_is_read_before_the_first_publication() -> None:
    store = make_store(100)
    into = np.full(100, 7, np.uint8)
    assert store.newest == NOT_PUBLISHED
    assert store.read_newest(into) == NOT_PUBLISHED
    assert (into == 7).all()
    assert not store.wait_for(0, timeout_s=0.01)


def test_readers_get_the_newest_version_once() -> None:
    store = make_store(100)
    into = np.zeros(100, np.uint8)
    for version in (0, 1, 2, 5, 6):
        store.publish(version, np.full(100, version + 1, np.uint8))
        assert store.read_newest(into, unless=version - 1) == version
        assert (into == version + 1).all()
        into[:] = 0
        assert store.read_newest(into, unless=version) == version
        assert (into == 0).all()


def test_versions_are_never_torn() -> None:
    size = 300_000
    store = make_store(size)
    store.publish(0, np.zeros(size, np.uint8))
    stop = threading.Event()

    def write() -> None:
        version = 0
        while not stop.is_set():
            version += 1
            store.publish(version, np.full(size, version % 251, np.uint8))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        into, last = np.zeros(size, np.uint8), 0
        while last < 200:
            version = store.read_newest(into, unless=last)
            assert version >= last
            if version != last:
                assert (into == version % 251).all()
            last = version
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("num_versions", [2, 3])
def test_the_newest_version_is_never_written_into(num_versions: int) -> None:
    """Whatever step versions grow by: a writer that dies in the middle of the next one leaves it whole."""
    store = make_store(100, num_versions)
    before = NOT_PUBLISHED
    into = np.zeros(100, np.uint8)
    for version in (0, 2, 4, 7, 8, 14, 20):
        headers = store._header.copy()
        store.publish(version, np.full(100, version + 1, np.uint8))
        written = np.flatnonzero((store._header != headers).any(axis=1))
        assert len(written) == 1
        assert before == NOT_PUBLISHED or headers[written[0], 1] != before
        assert store.newest == version
        before = version
        assert store.read_newest(into) == version
        assert (into == version + 1).all()


def test_a_ring_of_one_version_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        add_to_layout(ArenaLayout(), nbytes=10, num_versions=1)
