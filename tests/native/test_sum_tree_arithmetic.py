"""SumTree's arithmetic: every instruction set and a NumPy version of the definition in C++ agree to the bit."""

from __future__ import annotations

import mmap
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.native import SumTree

Float32 = npt.NDArray[np.float32]
Instructions = Literal["scalar", "avx2", "avx512"]
INSTRUCTIONS = get_args(Instructions)
LANES = 8
MASK = 2**64 - 1


class Oracle:
    """The tree as ``sum_tree_kernels.h`` defines it, a group at a time."""

    def __init__(self, leaves: Float32, fanout: int) -> None:
        self.fanout = fanout
        self.levels = [self.pad(leaves)]
        self.minimums = [self.levels[0]]
        while True:
            groups = self.levels[-1].reshape(-1, fanout)
            self.levels.append(self.pad(np.array([self.sum(group) for group in groups], np.float32)))
            least = [min((c for c in group if c > 0), default=0.0) for group in self.minimums[-1].reshape(-1, fanout)]
            self.minimums.append(self.pad(np.array(least, np.float32)))
            if len(groups) == 1:
                break

    def pad(self, nodes: Float32) -> Float32:
        return np.pad(nodes, (0, -len(nodes) % self.fanout))

    def sum(self, group: Float32) -> np.float32:
        lanes = np.zeros(LANES)
        for j, child in enumerate(group):
            lanes[j % LANES] += np.float64(child)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = lanes[:half] + lanes[half:]
        return np.float32(lanes[0])

    def prefixes(self, group: Float32) -> npt.NDArray[np.float64]:
        carry = np.float64(0)
        blocks = []
        for block in np.pad(group.astype(np.float64), (0, -len(group) % LANES)).reshape(-1, LANES):
            for half in (1, 2, 4):
                pairs = block.reshape(-1, 2, half)
                pairs[:, 1] += pairs[:, 0, -1:]
            blocks.append(carry + block)
            carry = blocks[-1][-1]
        return np.concatenate(blocks)

    def find(self, mass: float) -> int:
        node, residual = 0, np.float64(mass)
        for level in reversed(self.levels[:-1]):
            group = level[node * self.fanout : (node + 1) * self.fanout]
            prefixes = self.prefixes(group)[: self.fanout]
            live = np.flatnonzero(group > 0)
            hits = live[prefixes[live] > residual]
            child = int(hits[0]) if len(hits) > 0 else int(live[-1])
            residual = max(np.float64(0), residual - (prefixes[child - 1] if child > 0 else 0))
            node = node * self.fanout + child
        return node


def splitmix(seed: int, counter: int) -> float:
    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        return z ^ (z >> 31)

    bits = mix(mix(seed ^ 0x6A09E667F3BCC909) + 0x9E3779B97F4A7C15 * counter & MASK)
    return (bits >> 11) * 2.0**-53


class Trees:
    """One tree for each instruction set; those that the machine lacks fall back, and are the same anyway."""

    def __init__(self, capacity: int, fanout: int) -> None:
        self.capacity, self.fanout = capacity, fanout
        self.memories = [mmap.mmap(-1, SumTree.nbytes(capacity, fanout, True)) for _ in INSTRUCTIONS]
        self.trees = [SumTree(memory, capacity, fanout, minimum=True, create=True) for memory in self.memories]
        for tree, instructions in zip(self.trees, INSTRUCTIONS, strict=True):
            tree.use_instructions(instructions)

    def nodes(self, index: int) -> list[Float32]:
        """Every level's nodes as they lie in memory: leaves, sums from below, minimums from below."""
        sizes, nodes = [self.capacity], self.capacity
        while len(sizes) == 1 or nodes > 1:
            nodes = -(-nodes // self.fanout)
            sizes.append(nodes)
        unit = max(self.fanout, 16)
        padded = [-(-size // unit) * unit for size in sizes]
        words = np.frombuffer(self.memories[index], np.float32)[-sum(padded) - sum(padded[1:]) :]
        ends = np.cumsum([*padded, *padded[1:]])
        return [words[end - length : end] for end, length in zip(ends, [*padded, *padded[1:]], strict=True)]

    def check(self, leaves: Float32) -> Oracle:
        oracle = Oracle(leaves, self.fanout)
        for index, tree in enumerate(self.trees):
            assert tree.verify()
            for level, expected in zip(self.nodes(index), [*oracle.levels, *oracle.minimums[1:]], strict=True):
                count = max(len(expected), len(level))
                padded = [np.pad(values, (0, count - len(values))) for values in (level, expected)]
                assert padded[0].tobytes() == padded[1].tobytes()
        return oracle


priorities = st.one_of(
    st.just(0.0),
    st.sampled_from([1.0, 0.01, 1e-6, 100.0, 2.0**64, 2.0**-149, -0.0]),
    st.floats(0, 2.0**64, width=32, allow_subnormal=True),
)


@settings(max_examples=40, deadline=None)
@given(
    capacity=st.integers(1, 700),
    fanout=st.sampled_from([2, 4, 8, 16, 32, 256]),
    batches=st.lists(st.lists(st.tuples(st.integers(0, 2**20), priorities), min_size=1, max_size=40), max_size=4),
    spans=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 2**20), priorities), max_size=3),
    masses=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_every_instruction_set_computes_what_numpy_does(
    capacity: int,
    fanout: int,
    batches: list[list[tuple[int, float]]],
    spans: list[tuple[int, int, float]],
    masses: list[float],
) -> None:
    trees = Trees(capacity, fanout)
    leaves = np.zeros(capacity, np.float32)
    for first, count, priority in spans:
        first %= capacity
        count %= capacity - first + 1
        leaves[first : first + count] = priority + 0.0
        for tree in trees.trees:
            tree.fill(first, count, priority)
    for batch in batches:
        index = np.array([leaf % capacity for leaf, _ in batch])
        values = np.array([priority for _, priority in batch], np.float32)
        for leaf, value in zip(index, values, strict=True):
            leaves[leaf] = value + np.float32(0)
        for tree in trees.trees:
            tree.assign(index, values)
    oracle = trees.check(leaves)
    total = float(oracle.levels[-1][0])
    wanted = np.array([0.0, total, np.nextafter(total, 0), np.nextafter(total, np.inf), *(total * u for u in masses)])
    expected = [oracle.find(mass) for mass in wanted] if total > 0 else []
    for tree in trees.trees:
        found = np.full(len(wanted), -1)
        assert tree.find(wanted, found) is (total > 0)
        assert found.tolist() == (expected if total > 0 else [-1] * len(wanted))
        assert tree.total() == total
        assert tree.minimum() == oracle.minimums[-1][0]


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_draws_are_the_generators(instructions: Instructions, stratified: bool) -> None:
    capacity, n, seed = 3000, 300, 2**63 + 17
    tree = SumTree(mmap.mmap(-1, SumTree.nbytes(capacity)), capacity, create=True)
    tree.use_instructions(instructions)
    leaves = np.random.default_rng(0).random(capacity, np.float32)
    tree.assign(np.arange(capacity), leaves)
    random = np.array([seed, 5], np.uint64)
    drawn, values = np.empty(n, np.int64), np.empty(n, np.float32)
    total = tree.sample(random, drawn, values, stratified=stratified)
    oracle = Oracle(leaves, 16)
    uniform = [splitmix(seed, 6 + i) for i in range(n)]
    expected = [oracle.find(total * ((i + u) / n if stratified else u)) for i, u in enumerate(uniform)]
    assert drawn.tolist() == expected
    assert random.tolist() == [seed, 5 + n]
    assert not stratified or drawn.tolist() == sorted(drawn)


def test_a_restored_generator_repeats_its_draws_in_any_batches() -> None:
    tree = SumTree(mmap.mmap(-1, SumTree.nbytes(1000)), 1000, create=True)
    tree.fill(0, 1000)
    whole, parts, values = np.empty(600, np.int64), np.empty(600, np.int64), np.empty(600, np.float32)
    tree.sample(np.array([9, 0], np.uint64), whole, values)
    random = np.array([9, 0], np.uint64)
    for start, end in ((0, 1), (1, 258), (258, 600)):
        tree.sample(random, parts[start:end], values[start:end])
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("slow", [pytest.param(False), pytest.param(True, marks=pytest.mark.slow)])
def test_sums_do_not_drift(slow: bool) -> None:
    capacity, updates = 100_000, 100_000_000 if slow else 1_000_000
    tree = SumTree(mmap.mmap(-1, SumTree.nbytes(capacity)), capacity, create=True)
    rng = np.random.default_rng(1)
    index = rng.integers(0, capacity, 256 * 4096)
    values = (rng.random(256 * 4095) ** 6).astype(
        np.float32
    )  # of another period: the pairs differ for 4 billion updates
    for update in range(updates // 256):
        at, value = update % 4096 * 256, update % 4095 * 256
        tree.assign(index[at : at + 256], values[value : value + 256])
    assert tree.verify()
    leaves = np.empty(capacity, np.float32)
    tree.priorities(leaves)
    assert tree.total() == pytest.approx(leaves.sum(dtype=np.float64), rel=1e-6)
