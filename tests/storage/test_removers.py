"""Which completed slot is written over."""

from collections import Counter, deque

import numpy as np
import pytest

from rollmill.storage.removers import make_remover


def chosen(name, slots, priorities=None, seed=0, times=400):
    priority = (priorities or dict.fromkeys(slots, 1.0)).__getitem__
    remover = make_remover(name, np.random.default_rng(seed), priority)
    counts = Counter()
    for _ in range(times):
        completed = deque(slots)
        slot = remover.choose(completed)
        assert sorted([*completed, slot]) == sorted(slots)
        counts[slot] += 1
    return counts


def test_the_oldest():
    assert chosen("fifo", [5, 3, 9]) == {5: 400}


def test_any_but_the_newest_which_its_group_goes_on_from():
    counts = chosen("uniform", [5, 3, 9, 4], times=3000)
    assert set(counts) == {5, 3, 9}
    assert all(abs(count - 1000) < 4 * np.sqrt(1000 * 2 / 3) for count in counts.values())


def test_the_one_with_the_smallest_priorities():
    counts = chosen("lowest_priority", [5, 3, 9, 4], {5: 2.0, 3: 0.5, 9: 1.0, 4: 0.1})
    # Sixteen draws of three slots all but surely meet each of them.
    assert counts[3] > 395
    assert 4 not in counts


@pytest.mark.parametrize("name", ["fifo", "uniform", "lowest_priority"])
def test_a_single_slot(name):
    assert chosen(name, [7]) == {7: 400}
