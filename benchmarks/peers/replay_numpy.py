"""A binary sum tree in NumPy over a ring of arrays: what one writes beside Stable-Baselines3, which has none."""

from __future__ import annotations

from typing import Any

import numpy as np
from replay_measure import ALPHA, BETA, EPSILON, INSERT, OBS_SIZE, Adapter, Sampled, Transitions, main


class _SumTree:
    """Leaves at ``[capacity, 2 capacity)``, each inner node the sum of its two children; float64."""

    def __init__(self, size: int) -> None:
        self._depth = max(size - 1, 1).bit_length()
        self.first_leaf = 1 << self._depth
        self.nodes = np.zeros(2 * self.first_leaf)

    def set(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """Sets leaves (the last of equals wins), then recomputes their ancestors, level by level."""
        nodes = self.nodes
        index = leaves + self.first_leaf
        nodes[index] = values
        for _ in range(self._depth):
            index >>= 1
            nodes[index] = nodes[2 * index] + nodes[2 * index + 1]

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf in which each prefix mass lies."""
        nodes = self.nodes
        index = np.ones(len(mass), np.int64)
        for _ in range(self._depth):
            index <<= 1
            left = nodes[index]
            goes_right = mass >= left
            mass -= left * goes_right
            index += goes_right
        return index - self.first_leaf


class NumpyAdapter(Adapter):
    name = "numpy-binary-tree"
    configuration = "float64 sum tree, all queries of a batch descend together; weights normalised by the batch"

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._data = Transitions(
            np.zeros((capacity, OBS_SIZE), np.float32),
            np.zeros(capacity, np.int64),
            np.zeros(capacity, np.float32),
            np.zeros((capacity, OBS_SIZE), np.float32),
            np.zeros(capacity, bool),
        )
        self._tree = _SumTree(capacity)
        self._generator = np.random.default_rng()
        self._next = self._size = 0
        self._greatest = 1.0

    @staticmethod
    def versions() -> dict[str, str]:
        return {}

    @property
    def size(self) -> int:
        return self._size

    def insert(self, transitions: Transitions) -> None:
        slots = (self._next + np.arange(INSERT)) % self._capacity
        for ring, values in zip(self._data, transitions, strict=True):
            ring[slots] = values
        self._tree.set(slots, np.full(INSERT, self._greatest))
        self._next = (self._next + INSERT) % self._capacity
        self._size = min(self._size + INSERT, self._capacity)

    def sample(self, batch: int) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        slots = self._tree.find(self._generator.random(batch) * self._tree.nodes[1])
        np.minimum(slots, self._size - 1, out=slots)  # rounding may carry a mass past the last leaf
        priority = self._tree.nodes[slots + self._tree.first_leaf]
        weights = (priority / priority.min()) ** -BETA
        return slots, weights, tuple(ring[slots] for ring in self._data)

    def update(self, sampled: Any, td_error: np.ndarray) -> None:
        self.update_slots(sampled[0], td_error)

    def update_slots(self, slots: np.ndarray, td_error: np.ndarray) -> None:
        priority = (td_error + EPSILON) ** ALPHA
        self._greatest = max(self._greatest, float(priority.max()))
        self._tree.set(slots, priority)

    def unpack(self, sampled: Any) -> Sampled:
        return Sampled(Transitions(*sampled[2]), sampled[1])


if __name__ == "__main__":
    main({"default": NumpyAdapter})
