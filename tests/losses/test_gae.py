"""GAE against its definition as a double sum, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rollmill.losses.gae import gae_numpy, recursion_cut_numpy


def slot(seed: int, steps: int, rows: int) -> dict[str, NDArray[np.generic]]:
    """A random slot: episodes that end either way, masked rows after them, and rows that failed."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, rows)) < 0.2
    truncated = ~terminated & (rng.random((steps, rows)) < 0.2)
    valid = rng.random((steps, rows)) > 0.1
    # In half of the slots only: without a masked row after an episode's end, only the cut separates episodes.
    for t in range(steps - 1 if seed % 2 else 0):
        valid[t + 1] &= ~(terminated[t] | truncated[t])
    terminated &= valid
    truncated &= valid
    reward = rng.normal(size=(steps, rows))
    reward[~valid] = np.nan
    return {
        "reward": reward,
        "value": rng.normal(size=(steps + 1, rows)),
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
    }


def literal_gae(data: dict[str, NDArray[np.generic]], discount: float, gae_lambda: float) -> NDArray[np.float64]:
    """Equation 16: A_t = sum_l (discount * lambda)^l delta_{t+l}, until the recursion is cut. O(T^2)."""
    steps, rows = data["reward"].shape
    advantage = np.zeros((steps, rows))
    for row in range(rows):
        for t in range(steps):
            if not data["valid"][t, row]:
                continue
            for k in range(t, steps):
                following = 0.0 if data["terminated"][k, row] else data["value"][k + 1, row]
                delta = data["reward"][k, row] + discount * following - data["value"][k, row]
                advantage[t, row] += (discount * gae_lambda) ** (k - t) * delta
                ends = data["terminated"][k, row] or data["truncated"][k, row]
                if ends or k + 1 == steps or not data["valid"][k + 1, row]:
                    break
    return advantage


def run(data: dict[str, NDArray[np.generic]], discount: float, gae_lambda: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Advantages and returns, with rewards and values in float32."""
    terminated, valid = data["terminated"], data["valid"]
    return gae_numpy(
        data["reward"].astype(np.float32),
        data["value"].astype(np.float32),
        terminated,
        recursion_cut_numpy(terminated, data["truncated"], valid),
        valid,
        discount=discount,
        gae_lambda=gae_lambda,
    )


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    discount=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_gae_equals_the_double_sum(seed: int, steps: int, discount: float, gae_lambda: float) -> None:
    data = slot(seed, steps, 5)
    expected = literal_gae(data, discount, gae_lambda)
    advantage, return_ = run(data, discount, gae_lambda)
    assert advantage.dtype == return_.dtype == np.float32
    np.testing.assert_allclose(advantage, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(return_, expected + data["value"][:-1], rtol=2e-5, atol=2e-5)


def test_a_hand_computed_slot() -> None:
    # One row: x_0, x_1 valid; truncated with r_1; x_2 is the final observation in a masked row; x_3 a new episode.
    data: dict[str, NDArray[Any]] = {
        "reward": np.array([[1.0], [2.0], [np.nan], [4.0]]),
        "value": np.array([[10.0], [20.0], [30.0], [40.0], [50.0]]),
        "terminated": np.zeros((4, 1), bool),
        "truncated": np.array([[False], [True], [False], [False]]),
        "valid": np.array([[True], [True], [False], [True]]),
    }
    cut = recursion_cut_numpy(data["terminated"], data["truncated"], data["valid"])
    assert cut[:, 0].tolist() == [False, True, False, True]
    advantage, return_ = run(data, 0.5, 0.5)
    last, second = 4.0 + 0.5 * 50.0 - 40.0, 2.0 + 0.5 * 30.0 - 20.0
    first = 1.0 + 0.5 * 20.0 - 10.0 + 0.25 * second
    assert advantage[:, 0].tolist() == [first, second, 0.0, last]
    assert return_[:, 0].tolist() == [first + 10.0, second + 20.0, 30.0, last + 40.0]


def test_step_before_a_failed_step_bootstraps_from_it() -> None:
    data = slot(0, 3, 1)
    data["terminated"][:] = data["truncated"][:] = False
    data["valid"][:, 0] = [True, False, True]
    advantage, _ = run(data, 0.9, 0.95)
    expected = data["reward"][0] + 0.9 * data["value"][1] - data["value"][0]
    np.testing.assert_allclose(advantage[0], expected, rtol=1e-5)


def test_value_after_termination_is_ignored_and_inputs_are_unchanged() -> None:
    data = slot(3, 8, 4)
    data["terminated"][4, 0] = data["valid"][4, 0] = True
    data["truncated"][4, 0] = data["valid"][5, 0] = False
    data["reward"][4, 0] = 1.0
    before = {name: array.copy() for name, array in data.items()}
    expected, _ = run(data, 0.99, 0.95)
    for name, array in data.items():
        np.testing.assert_array_equal(array, before[name], err_msg=f"{name} was changed in place")
    data["value"][5, 0] = np.nan
    actual, _ = run(data, 0.99, 0.95)
    np.testing.assert_array_equal(actual, expected)
