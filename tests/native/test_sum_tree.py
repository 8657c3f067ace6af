"""SumTree from Python: the contract of every method."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from rollmill.native import SumTree


def make_tree(capacity: int, fanout: int = 16, minimum: bool = False) -> SumTree:
    memory = mmap.mmap(-1, SumTree.nbytes(capacity, fanout, minimum))
    return SumTree(memory, capacity, fanout, minimum=minimum, create=True)


def every_priority(tree: SumTree) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    out = np.empty(tree.capacity, np.float32)
    tree.priorities(out)
    return out


@pytest.mark.parametrize("fanout", [2, 4, 8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("capacity", [1, 2, 15, 16, 17, 257, 1000])
def test_a_tree_of_any_size_holds_its_sums(capacity: int, fanout: int) -> None:
    tree = make_tree(capacity, fanout, minimum=True)
    rng = np.random.default_rng(capacity * fanout)
    expected = np.zeros(capacity, np.float32)
    for n in (1, 7, 300):
        leaves = rng.integers(0, capacity, n)
        priorities = rng.random(n, np.float32)
        tree.assign(leaves, priorities)
        for leaf, priority in zip(leaves, priorities, strict=True):  # of equal leaves the last stays
            expected[leaf] = priority
        assert np.array_equal(every_priority(tree), expected)
        assert tree.verify()
        assert tree.total() == pytest.approx(expected.sum(dtype=np.float64), rel=1e-6)
        assert tree.minimum() == expected[expected > 0].min()
    drawn = np.empty(1000, np.int64)
    probabilities = np.empty(1000, np.float32)
    random = np.array([3, 0], np.uint64)
    assert tree.sample(random, drawn, probabilities) == tree.total()
    assert np.array_equal(probabilities, expected[drawn])
    assert probabilities.min() > 0
    assert random.tolist() == [3, 1000]
