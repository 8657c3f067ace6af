"""SumTree from Python: the contract of every method."""

from __future__ import annotations

import mmap
import multiprocessing
import threading
import time

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


def sample(tree: SumTree, n: int = 64, seed: int = 0) -> list[int]:
    leaves, priorities = np.full(n, -1), np.empty(n, np.float32)
    total = tree.sample(np.array([seed, 0], np.uint64), leaves, priorities)
    return [int(leaf) for leaf in leaves] if total > 0 else []


def test_an_empty_tree_has_nothing_to_draw() -> None:
    tree = make_tree(100, minimum=True)
    random = np.array([1, 0], np.uint64)
    leaves, priorities, weights = np.full(3, -1), np.full(3, -1, np.float32), np.full(3, -1, np.float32)
    assert tree.sample(random, leaves, priorities, weights, beta=1.0, normalise="global") == 0
    assert random.tolist() == [1, 0]
    assert leaves.tolist() == priorities.tolist() == weights.tolist() == [-1] * 3
    assert not tree.find(np.zeros(3), leaves)
    assert tree.minimum() == tree.total() == 0
    assert sample(tree) == []


@pytest.mark.parametrize("leaf", [0, 1, 15, 16, 511, 998])
def test_the_only_live_leaf_is_always_drawn(leaf: int) -> None:
    tree = make_tree(999)
    tree.fill(leaf, 1, 0.3)
    assert set(sample(tree)) == {leaf}
    found = np.empty(4, np.int64)
    total = tree.total()
    assert tree.find(np.array([0.0, total / 2, np.nextafter(total, 1), 1e30]), found)
    assert set(found.tolist()) == {leaf}
    tree.fill(leaf, 1, 0)
    assert sample(tree) == []


def test_masses_at_the_borders_end_at_live_leaves() -> None:
    tree = make_tree(64)
    tree.assign(np.array([3, 20, 40]), np.array([1, 2, 4], np.float32))
    masses = np.array([0, np.nextafter(1, 0), 1, np.nextafter(3, 0), 3, np.nextafter(7, 0), 7, np.nextafter(7, 8)])
    found = np.empty(8, np.int64)
    tree.find(masses, found)
    assert found.tolist() == [3, 3, 20, 20, 40, 40, 40, 40]


def test_new_items_get_the_largest_priority_so_far() -> None:
    tree = make_tree(10)
    assert tree.max_priority == 1
    tree.assign(np.array([1, 2]), np.array([0.5, 3], np.float32))
    tree.fill(4, 2)
    assert tree.max_priority == tree.priority(4) == tree.priority(5) == 3
    tree.fill(0, 10, 0)
    assert tree.max_priority == 3
    tree.update(np.array([1]), np.array([2], np.float32), alpha=1, epsilon=0, decay=0.5)
    assert tree.max_priority == 2
    tree.update(np.array([1]), np.array([0], np.float32), alpha=1, epsilon=0, decay=0.5)
    assert tree.max_priority == 1
    tree.max_priority = 7
    assert tree.max_priority == 7


def test_the_largest_priority_does_not_decay_to_nothing() -> None:
    tree = make_tree(10)
    for epsilon, least in ((0.25, 0.5), (0.0, 2.0**-126)):
        for _ in range(9):
            tree.update(np.array([1]), np.array([1], np.float32), alpha=0.5, epsilon=epsilon, decay=1e-8)
        tree.update(np.empty(0, np.int64), np.empty(0, np.float32), alpha=0.5, epsilon=epsilon, decay=1e-20)
        tree.update(np.empty(0, np.int64), np.empty(0, np.float32), alpha=0.5, epsilon=epsilon, decay=1e-20)
        assert tree.max_priority == least
    tree.max_priority = 0.125
    tree.update(np.array([1]), np.array([0], np.float32), alpha=1, epsilon=0.0625, decay=0.9)
    assert tree.max_priority == np.float32(0.125 * 0.9)


def test_an_error_whose_priority_is_too_small_is_refused() -> None:
    tree = make_tree(10)
    for error, epsilon in ((1e-30, 0.0), (0.0, 1e-12)):
        with pytest.raises(
            ValueError, match=r"td_errors\[0\] is .*Nothing was updated; give a larger epsilon or a small"
        ):
            tree.update(np.array([1]), np.array([error], np.float32), alpha=4, epsilon=epsilon)
    tree.update(np.array([1]), np.array([0], np.float32), alpha=4, epsilon=0)


BAD_PRIORITIES = [np.nan, np.inf, -np.inf, -1e-30, 2.0**65]


@pytest.mark.parametrize("bad", BAD_PRIORITIES)
def test_what_is_no_priority_changes_nothing(bad: float) -> None:
    tree = make_tree(40)
    tree.fill(0, 40, 0.5)
    priorities = np.full(40, 2, np.float32)
    priorities[17] = bad
    with pytest.raises(ValueError, match=r"priorities\[17\] is .*; a priority must be 0 to 2\^64"):
        tree.assign(np.arange(40), priorities)
    with pytest.raises(ValueError, match=r"priority is .*; a priority must be 0 to 2\^64"):
        tree.fill(0, 40, bad)
    with pytest.raises(ValueError, match=r"max_priority is .*; a priority must be 0 to 2\^64"):
        tree.max_priority = bad
    for alpha in (0.0, 1.0):  # to the power of 0, even infinity would be 1
        if not np.isfinite(bad) or (abs(bad) > 2**64 and alpha > 0):
            with pytest.raises(ValueError, match=r"td_errors\[17\] is .* Nothing was updated"):
                tree.update(np.arange(40), priorities, alpha=alpha, epsilon=0)
    assert np.all(every_priority(tree) == 0.5)
    assert tree.max_priority == 1
    assert tree.verify()


def test_arguments_that_make_no_sense_are_refused() -> None:
    tree = make_tree(40)
    tree.fill(0, 40)
    three, values = np.arange(3), np.ones(3, np.float32)
    random = np.zeros(2, np.uint64)
    for leaf in (-1, 40):
        with pytest.raises(IndexError, match=rf"leaves\[1\] is {leaf}; this tree has leaves 0 to 39"):
            tree.assign(np.array([0, leaf, 1]), values)
        with pytest.raises(IndexError, match=rf"leaf is {leaf}; this tree has leaves 0 to 39"):
            tree.priority(leaf)
    for first, count in ((-1, 2), (39, 2), (0, 41), (2**62, 2**62), (0, -1)):
        with pytest.raises(IndexError, match=rf"first is {first} and count {count}; this tree has"):
            tree.fill(first, count)
    with pytest.raises(IndexError, match="first is 38 and count 3"):
        tree.priorities(values, 38)
    with pytest.raises(ValueError, match="priorities has 2 entries and leaves 3"):
        tree.assign(three, values[:2])
    with pytest.raises(TypeError, match="priorities must be a one-dimensional float32 array"):
        tree.assign(three, np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="leaves must be a one-dimensional int64 array"):
        tree.assign(three.astype(np.int32), values)
    with pytest.raises(TypeError, match="random must be a uint64 array of 2"):
        tree.sample(np.zeros(2, np.int64), three, values)
    with pytest.raises(ValueError, match="normalise is 'all'; allowed: 'batch', 'global', 'none'"):
        tree.sample(random, three, values, normalise="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a tree created with minimum=True"):
        tree.sample(random, three, values, values.copy(), normalise="global")
    with pytest.raises(ValueError, match="without minimum=True"):
        tree.minimum()
    with pytest.raises(ValueError, match="num_items is None"):
        tree.sample(random, three, values, values.copy(), normalise="none")
    with pytest.raises(ValueError, match=r"beta is -1.0; it must be finite and at least 0"):
        tree.sample(random, three, values, values.copy(), beta=-1)
    with pytest.raises(ValueError, match="alpha is nan"):
        tree.update(three, values, alpha=np.nan, epsilon=0)
    with pytest.raises(ValueError, match=r"epsilon is -0.5"):
        tree.update(three, values, alpha=1, epsilon=-0.5)
    for decay in (0.0, 1.5, np.nan):
        with pytest.raises(ValueError, match=r"decay is .*; it must be above 0 and at most 1"):
            tree.update(three, values, alpha=1, epsilon=0, decay=decay)
    with pytest.raises(ValueError, match=r"masses\[1\] is nan"):
        tree.find(np.array([0, np.nan, 1]), three)
    with pytest.raises(ValueError, match="instructions are 'mmx'"):
        tree.use_instructions("mmx")  # type: ignore[arg-type]
    assert random.tolist() == [0, 0]
    assert np.all(every_priority(tree) == 1)


def test_attaches_to_what_is_there_and_to_nothing_else() -> None:
    memory = mmap.mmap(-1, SumTree.nbytes(100, 8))
    with pytest.raises(ValueError, match="there is no sum tree in this memory"):
        SumTree(memory, 100, 8, create=False)
    first = SumTree(memory, 100, 8, create=True)
    second = SumTree(memory, 100, 8, create=False)
    first.fill(0, 100)
    assert second.total() == 100
    for capacity, fanout, minimum in ((99, 8, False), (100, 16, False), (100, 8, True)):
        with pytest.raises(ValueError, match="was created with capacity 100, fanout 8, without minimum, not with"):
            SumTree(memory, capacity, fanout, minimum=minimum, create=False)
    with pytest.raises(ValueError, match=r"the sum tree in it needs .*; map all of it"):
        SumTree(memoryview(memory)[:512], 100, 8, create=False)
    with pytest.raises(ValueError, match="there is no sum tree in this memory"):
        SumTree(memoryview(memory)[:64], 100, 8, create=False)
    np.frombuffer(memory, np.uint32)[2] += 1  # its version
    with pytest.raises(ValueError, match="all processes must run the same Rollmill"):
        SumTree(memory, 100, 8, create=False)


def test_refuses_memory_and_geometry_that_do_not_fit() -> None:
    memory = mmap.mmap(-1, SumTree.nbytes(100))
    with pytest.raises(ValueError, match=r"a tree of 2000 leaves needs .* \(see nbytes\)"):
        SumTree(memory, 2000, create=True)
    with pytest.raises(ValueError, match="must start at a multiple of 64 bytes"):
        SumTree(memoryview(memory)[4:], 10, create=True)
    for capacity in (0, -1, 2**41):
        with pytest.raises(ValueError, match=f"capacity is {capacity}; it must be 1 to"):
            SumTree.nbytes(capacity)
    for fanout in (-2, 0, 1, 3, 24, 512):
        with pytest.raises(ValueError, match=f"fanout is {fanout}; it must be a power of two from 2 to 256"):
            SumTree.nbytes(10, fanout)


def test_a_million_leaves_take_little_more_than_themselves() -> None:
    assert SumTree.nbytes(1_000_000) < 4.28e6


def work_for_ever(tree: SumTree, seed: int) -> None:
    rng = np.random.default_rng(seed)
    leaves, priorities = np.empty(256, np.int64), np.empty(256, np.float32)
    random = np.array([seed, 0], np.uint64)
    while True:
        tree.sample(random, leaves, priorities)
        tree.update(leaves, rng.random(256, np.float32), alpha=0.6, epsilon=1e-6)
        tree.fill(int(rng.integers(0, tree.capacity - 64)), 64)


@pytest.mark.slow
def test_killed_processes_leave_a_tree_that_works() -> None:
    tree = make_tree(5000, minimum=True)
    tree.fill(0, 5000)
    rng = np.random.default_rng(0)
    context = multiprocessing.get_context("fork")
    for round_ in range(20):
        children = [context.Process(target=work_for_ever, args=(tree, 2 * round_ + i)) for i in range(2)]
        for child in children:
            child.start()
        for child in children:
            time.sleep(0.02 * rng.random())
            child.kill()
            child.join()
            assert min(every_priority(tree)[sample(tree)]) > 0
        assert tree.verify()


def test_threads_share_a_tree() -> None:
    tree = make_tree(3000)
    tree.fill(0, 3000)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        leaves, priorities = np.empty(100, np.int64), np.empty(100, np.float32)
        random = np.array([seed, 0], np.uint64)
        for _ in range(300):
            tree.sample(random, leaves, priorities)
            assert priorities.min() > 0
            tree.update(leaves, rng.random(100, np.float32), alpha=0.6, epsilon=1e-3)
            tree.priority(int(leaves[0]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree.verify()
    assert tree.total() == pytest.approx(every_priority(tree).sum(dtype=np.float64), rel=1e-6)
