"""SumTree draws what it says: leaves in proportion to their priorities, with the right importance weights."""

from __future__ import annotations

import mmap
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from rollmill.native import SumTree

Z_999 = 3.2905  # |z| that a standard normal exceeds once in a thousand times


def draw_counts(tree: SumTree, draws: int, seed: int) -> npt.NDArray[np.int64]:
    """How often each leaf is drawn, in at least ``draws`` independent draws."""
    random = np.array([seed, 0], np.uint64)
    batch = max(1 << 16, tree.capacity)  # to add up the counts costs as much as a draw of each leaf
    leaves, priorities = np.empty(batch, np.int64), np.empty(batch, np.float32)
    counts = np.zeros(tree.capacity, np.int64)
    for _ in range(-(-draws // batch)):
        assert tree.sample(random, leaves, priorities) > 0
        counts += np.bincount(leaves, minlength=tree.capacity)
    return counts


def tree_of(priorities: npt.NDArray[np.float32], fanout: int = 16) -> SumTree:
    tree = SumTree(mmap.mmap(-1, SumTree.nbytes(len(priorities), fanout)), len(priorities), fanout, create=True)
    tree.assign(np.arange(len(priorities)), priorities)
    return tree


@pytest.mark.parametrize(
    ("capacity", "draws", "fanout"),
    [
        (1_000, 5_000_000, 16),
        (1_000, 2_000_000, 4),
        (1_013, 2_000_000, 64),
        (1_000_000, 20_000_000, 16),
        pytest.param(10_000_000, 300_000_000, 16, marks=pytest.mark.slow),
    ],
)
def test_draws_are_in_proportion(capacity: int, draws: int, fanout: int) -> None:
    """A tenth of the leaves has a hundredth of the others' priority: what a float32 residual gets wrong."""
    rng = np.random.default_rng(capacity)
    low = rng.random(capacity) < 0.1
    priorities = np.where(low, 0.01, 1.0).astype(np.float32)
    counts = draw_counts(tree_of(priorities, fanout), draws, seed=1)
    n = counts.sum()
    p = priorities / priorities.sum(dtype=np.float64)
    # Pearson's statistic has this mean and variance for any p, also where few draws are expected.
    chi_square = np.sum((counts - n * p) ** 2 / (n * p))
    mean = capacity - 1
    deviation = np.sqrt(2 * mean + (np.sum(1 / p) - capacity**2 - 2 * capacity + 2) / n)
    assert abs(chi_square - mean) < Z_999 * deviation, f"chi-square / df = {chi_square / mean}"
    share = p[low].sum()
    hits = counts[low].sum()
    assert abs(hits - n * share) < Z_999 * np.sqrt(n * share * (1 - share)), f"low leaves: {hits / n}, not {share}"
    ever = np.count_nonzero(counts[low])
    missed = (1 - p[low]) ** n
    expected = np.sum(1 - missed)
    assert abs(ever - expected) <= Z_999 * np.sqrt(np.sum(missed * (1 - missed))) + 1, f"{ever} low leaves ever drawn"


def test_stratified_draws_take_one_of_each_part() -> None:
    rng = np.random.default_rng(2)
    priorities = rng.random(5000).astype(np.float32)
    tree = tree_of(priorities)
    ends = np.cumsum(priorities.astype(np.float64))
    leaves, values = np.empty(100, np.int64), np.empty(100, np.float32)
    random = np.array([0, 0], np.uint64)
    counts = np.zeros(5000, np.int64)
    for _ in range(2000):
        total = tree.sample(random, leaves, values, stratified=True)
        part = total / 100
        assert np.all(ends[leaves] > np.arange(100) * part * (1 - 1e-6))
        assert np.all(ends[leaves] - priorities[leaves] < np.arange(1, 101) * part * (1 + 1e-6))
        counts += np.bincount(leaves, minlength=5000)
    expected = counts.sum() * priorities / ends[-1]
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected) + 5)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("normalise", ["batch", "global", "none"])
def test_weights_are_the_papers(normalise: Literal["batch", "global", "none"], beta: float) -> None:
    capacity = 2000
    priorities = (np.random.default_rng(3).random(capacity) ** 8 + 1e-6).astype(np.float32)
    priorities[::7] = 0
    memory = mmap.mmap(-1, SumTree.nbytes(capacity, 16, True))
    tree = SumTree(memory, capacity, minimum=True, create=True)
    tree.assign(np.arange(capacity), priorities)
    leaves = np.empty(512, np.int64)
    values, weights = np.empty(512, np.float32), np.empty(512, np.float32)
    num_items = np.count_nonzero(priorities)
    random = np.array([4, 0], np.uint64)
    total = tree.sample(random, leaves, values, weights, beta=beta, normalise=normalise, num_items=int(num_items))
    exact = priorities.astype(np.float64)
    assert total == pytest.approx(exact.sum(), rel=1e-6)
    expected = (num_items * exact[leaves] / total) ** -beta
    if normalise == "batch":
        expected /= expected.max()
    if normalise == "global":
        expected /= (num_items * exact[exact > 0].min() / total) ** -beta
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_weights_of_extreme_priorities_stay_finite() -> None:
    tree = tree_of(np.array([2.0**-149, 2.0**64], np.float32))
    leaves = np.empty(1000, np.int64)
    values, weights = np.empty(1000, np.float32), np.empty(1000, np.float32)
    tree.sample(np.array([0, 0], np.uint64), leaves, values, weights, beta=1.0)
    assert np.all((weights > 0) & (weights <= 1))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 2.5])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.01])
def test_priorities_of_td_errors(alpha: float, epsilon: float) -> None:
    capacity = 4001  # no multiple of any vector's width
    rng = np.random.default_rng(5)
    errors = (rng.choice([-1, 1], capacity) * 2.0 ** rng.uniform(-24, 20, capacity)).astype(np.float32)
    errors[0] = 0
    tree = tree_of(np.ones(capacity, np.float32))
    tree.update(np.arange(capacity), errors, alpha=alpha, epsilon=epsilon)
    stored = np.empty(capacity, np.float32)
    tree.priorities(stored)
    expected = (np.abs(errors.astype(np.float64)) + epsilon) ** alpha
    np.testing.assert_allclose(stored, expected, rtol=1e-7)
    assert tree.max_priority == max(1.0, stored.max())
