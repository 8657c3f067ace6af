"""Advantages of several tasks on one scale."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from rollmill.learning.collective import Alone
from rollmill.learning.task_scales import divided_by_returns, normalised_in_tasks

TASKS = np.array([0, 1, 0, 2, 1])


@pytest.fixture
def advantage() -> NDArray[np.float32]:
    random = np.random.default_rng(0)
    return (random.normal(size=(8, 5)) * np.array([100.0, 0.01, 100.0, 3.0, 0.01]) + TASKS).astype(np.float32)


@pytest.fixture
def keep() -> NDArray[np.bool_]:
    return np.random.default_rng(1).random((8, 5)) < 0.7


def test_each_task_is_normalised_by_its_own_samples(advantage: NDArray[np.float32], keep: NDArray[np.bool_]) -> None:
    found = normalised_in_tasks(advantage, keep, TASKS, 3, Alone())
    assert found.dtype == np.float32
    for task in range(3):
        of_task = (task == TASKS)[None] & keep
        samples = advantage[of_task].astype(np.float64)
        expected = (samples - samples.mean()) / samples.std(ddof=1)
        np.testing.assert_allclose(found[of_task], expected, rtol=1e-4, atol=1e-4)


def test_what_is_left_out_does_not_count(advantage: NDArray[np.float32], keep: NDArray[np.bool_]) -> None:
    found = normalised_in_tasks(advantage, keep, TASKS, 3, Alone())
    other = np.where(keep, advantage, 1e6).astype(np.float32)
    np.testing.assert_array_equal(normalised_in_tasks(other, keep, TASKS, 3, Alone())[keep], found[keep])


def test_ranks_normalise_their_batches_together(advantage: NDArray[np.float32], keep: NDArray[np.bool_]) -> None:
    together = normalised_in_tasks(
        np.concatenate([advantage, 2 * advantage], axis=1),
        np.concatenate([keep, keep], axis=1),
        np.concatenate([TASKS, TASKS]),
        3,
        Alone(),
    )
    sums: list[Tensor] = []

    class Noting(Alone):
        def sum(self, tensor: Tensor) -> Tensor:
            sums.append(tensor.clone())
            return tensor

    class Adding(Alone):
        def sum(self, tensor: Tensor) -> Tensor:
            return sums[0] + sums[1]

    for batch in (advantage, 2 * advantage):
        normalised_in_tasks(batch, keep, TASKS, 3, Noting())
    found = [normalised_in_tasks(batch, keep, TASKS, 3, Adding()) for batch in (advantage, 2 * advantage)]
    np.testing.assert_allclose(np.concatenate(found, axis=1), together, rtol=1e-5, atol=1e-6)


def test_a_task_without_samples_or_with_equal_ones_stays_finite() -> None:
    advantage = np.array([[1.0, 5.0, 3.0]], np.float32)
    keep = np.array([[True, False, True]])
    found = normalised_in_tasks(advantage, keep, np.array([0, 1, 0]), 3, Alone())
    assert np.isfinite(found).all()
    equal = normalised_in_tasks(np.full((4, 2), 7.0, np.float32), np.ones((4, 2), bool), np.array([0, 0]), 1, Alone())
    np.testing.assert_array_equal(equal, 0.0)


def test_advantages_are_divided_by_the_deviation_of_the_returns(advantage: NDArray[np.float32]) -> None:
    scales = np.array([2.0, 4.0, 8.0], np.float32)
    found = divided_by_returns(advantage, TASKS, scales)
    np.testing.assert_array_equal(found[:, 3], advantage[:, 3] / 8.0)
    np.testing.assert_array_equal(found[:, 4], advantage[:, 4] / 4.0)
    np.testing.assert_array_equal(divided_by_returns(advantage, None, scales[:1]), advantage / 2.0)
