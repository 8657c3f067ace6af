"""The bank of past selves in shared memory."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rollmill.runtime.arena import Arena, ArenaLayout
from rollmill.storage.bank import BankTable, SnapshotBank, add_to_layout
from rollmill.storage.population_config import PopulationConfig

PLACES, NBYTES = 3, 1000


@pytest.fixture
def arena() -> Arena:
    layout = ArenaLayout()
    add_to_layout(layout, places=PLACES, nbytes=NBYTES, num_versions=2)
    return Arena.create(layout, poison=True)


@pytest.fixture
def bank(arena: Arena) -> SnapshotBank:
    return SnapshotBank(arena, create=True)


def table(*generations: int) -> BankTable:
    present = np.array([generation > 0 for generation in generations], np.float64)
    return BankTable(np.array(generations, np.int64), present / max(1.0, present.sum()))


def test_weights_are_read_once_for_each_snapshot(bank: SnapshotBank, arena: Arena) -> None:
    other, into = SnapshotBank(arena), np.zeros(NBYTES, np.uint8)
    bank.write(1, 7, np.full(NBYTES, 5, np.uint8))
    assert other.read(1, into, unless=-1) == 7
    assert (into == 5).all()
    into[:] = 0
    assert other.read(1, into, unless=7) == 7
    assert not into.any()


def test_tables_are_read_by_version_or_newest(bank: SnapshotBank, arena: Arena) -> None:
    other = SnapshotBank(arena)
    assert not other.newest_table().probability.any()
    bank.publish(4, table(1, 0, 0))
    bank.publish(5, table(1, 2, 0))
    assert other.newest_table().generation.tolist() == [1, 2, 0]
    assert other.table(4).probability.tolist() == [1, 0, 0]
    assert other.table(5).probability.tolist() == [0.5, 0.5, 0]
    bank.publish(6, table(0, 2, 3))
    with pytest.raises(LookupError):
        other.table(4)


def test_a_closed_place_takes_no_new_matches_and_is_unused_when_the_last_one_ends(bank: SnapshotBank) -> None:
    bank.publish(0, table(1, 2, 0))
    assert bank.begin(0, 1)
    assert not bank.begin(0, 9), "it holds another snapshot"
    assert not bank.is_unused(0)
    bank.publish(1, table(0, 2, 0))
    assert not bank.begin(0, 1)
    assert not bank.is_unused(0)
    bank.end(0)
    assert bank.is_unused(0)


def test_nobody_plays_a_place_while_it_is_overwritten(bank: SnapshotBank, arena: Arena) -> None:
    """Workers begin and end matches while the learner closes, overwrites and opens a place."""
    stop, wrong, matches = threading.Event(), [], [0]

    def worker() -> None:
        own, into = SnapshotBank(arena), np.zeros(NBYTES, np.uint8)
        while not stop.is_set():
            generation = int(own.newest_table().generation[0])
            if generation == 0 or not own.begin(0, generation):
                continue
            matches[0] += 1
            for _ in range(3):
                if own.read(0, into, unless=-1) != generation or (into != generation % 251).any():
                    wrong.append(generation)
            own.end(0)

    bank.write(0, 1, np.full(NBYTES, 1, np.uint8))
    bank.publish(0, table(1, 0, 0))
    threads = [threading.Thread(target=worker) for _ in range(3)]
    for thread in threads:
        thread.start()
    for generation in range(2, 20):
        bank.publish(2 * generation, table(0, 0, 0))
        while not bank.is_unused(0):
            pass
        bank.write(0, generation, np.full(NBYTES, generation % 251, np.uint8))
        bank.publish(2 * generation + 1, table(generation, 0, 0))
        seen = matches[0]
        while matches[0] < seen + 3:
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("setting", "value"), [("snapshots", -1), ("snapshot_every", 0), ("past", 1.1), ("rating", "glicko")]
)
def test_wrong_settings_are_refused(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"population\.{setting}={value!r}"):
        PopulationConfig(**{setting: value})
