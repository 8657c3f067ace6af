"""Which completed slot is written over."""

import importlib.util
import sys
from collections import Counter, deque

import numpy as np
import pytest

from rollmill.storage.removers import UnknownRemoverError, make_remover, pop_evicted, register_remover


def chosen(name, slots, priorities=None, seed=0, times=400):
    priority = (priorities or dict.fromkeys(slots, 1.0)).__getitem__
    remover = make_remover(name, np.random.default_rng(seed), priority)
    counts = Counter()
    for _ in range(times):
        completed = deque(slots)
        slot = pop_evicted(remover, completed)
        assert sorted([*completed, slot]) == sorted(slots)
        counts[slot] += 1
    return counts


def test_the_oldest():
    assert chosen("fifo", [5, 3, 9]) == {5: 400}


def test_uniform():
    counts = chosen("uniform", [5, 3, 9], times=3000)
    assert set(counts) == {5, 3, 9}
    assert all(abs(count - 1000) < 4 * np.sqrt(1000 * 2 / 3) for count in counts.values())


def test_the_one_with_the_smallest_priorities():
    counts = chosen("lowest_priority", [5, 3, 9], {5: 2.0, 3: 0.5, 9: 1.0})
    # Sixteen draws of three slots all but surely meet each of them.
    assert counts[3] > 395


@pytest.mark.parametrize("name", ["fifo", "uniform", "lowest_priority"])
def test_a_single_slot(name):
    assert chosen(name, [7]) == {7: 400}


class Choosing:
    def __init__(self, place):
        self.place = place

    def choose(self, completed):
        return self.place


def test_a_rule_of_ones_own_is_found_by_its_name():
    def make(random, priority):
        return Choosing(1)

    for _ in range(2):  # as often as its module is imported
        register_remover("the second", make)
    assert chosen("the second", [5, 3, 9]) == {3: 400}
    with pytest.raises(ValueError, match="remover 'fifo' exists already"):
        register_remover("fifo", make)


def test_unknown_names_raise():
    with pytest.raises(
        UnknownRemoverError,
        match=r"replay\.remover='lifo': this remover is not known; did you mean 'fifo'\? known: fifo, lowest_prio",
    ):
        make_remover("lifo", np.random.default_rng(0), float)


@pytest.mark.parametrize("place", [-1, 3, 1.0, None, True])
def test_a_place_that_there_is_not_is_refused(place):
    completed = deque([5, 3, 9])
    with pytest.raises(ValueError, match=rf"Choosing.choose returned {place}; there are 3 completed slots"):
        pop_evicted(Choosing(place), completed)
    assert list(completed) == [5, 3, 9]


def test_one_module_may_be_imported_under_two_names(tmp_path, monkeypatch):
    file = tmp_path / "my_rules.py"
    file.write_text(
        "from rollmill.storage.removers import register_remover\n"
        "register_remover('mine', lambda random, priority: None)\n"
        "register_remover('another', lambda random, priority: None)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_rules", "my_other_name"):
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="remover 'mine' exists already"):
        register_remover("mine", lambda random, priority: None)
