"""Targets that are computed before the update: scaled rewards, advantages in the rewards' units, and bad samples."""

from __future__ import annotations

import numpy as np
import pytest
from tests.algorithms.random_trajectories import random_arrays

from rollmill.algorithms.on_policy_config import OnPolicyConfig
from rollmill.algorithms.targets import NonFiniteSampleError, targets_of


def test_rewards_are_scaled_then_clipped() -> None:
    arrays = random_arrays(4, 3)
    arrays["valid"][...] = True
    arrays["reward"][0] = (100.0, -0.25, 3.0)
    config = OnPolicyConfig(reward_scale=2.0, reward_clip=1.0)
    for trace in (None, 0.95):
        targets = targets_of(arrays, config, value_mean=0.0, value_std=1.0, trace=trace)
        np.testing.assert_array_equal(targets.reward[0], [1.0, -0.5, 1.0])
        assert targets.reward.dtype == np.float32
    unclipped = targets_of(arrays, OnPolicyConfig(reward_scale=2.0), value_mean=0.0, value_std=1.0, trace=None)
    np.testing.assert_array_equal(unclipped.reward[0], [200.0, -0.5, 6.0])
    np.testing.assert_array_equal(arrays["reward"][0], [100.0, -0.25, 3.0])  # Later epochs read them again.


def test_reward_terms_are_weighed_before_scaling_and_clipping() -> None:
    arrays = random_arrays(4, 3)
    arrays["valid"][...] = True
    arrays["reward_terms"] = np.random.default_rng(1).normal(size=(4, 3, 2)).astype(np.float32)
    config = OnPolicyConfig(reward_scale=2.0, reward_clip=1.0, reward_weights={"health": 0.5, "ammo": -3.0})
    terms = arrays["reward_terms"]
    whole = {**arrays, "reward": arrays["reward"] + np.float32(0.5) * terms[..., 1] - np.float32(3.0) * terms[..., 0]}
    plain = OnPolicyConfig(reward_scale=2.0, reward_clip=1.0)
    found = targets_of(arrays, config, value_mean=0.0, value_std=1.0, trace=0.9)
    expected = targets_of(whole, plain, value_mean=0.0, value_std=1.0, trace=0.9)
    np.testing.assert_allclose(found.reward, expected.reward, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.advantage, expected.advantage, rtol=1e-4, atol=1e-5)


def test_advantages_and_returns_equal_values_computed_by_hand() -> None:
    # V = 2 v + 1: 3, 1, 5. Discount 0.5, lambda 0.5; nothing ends, so the last step bootstraps from 5.
    arrays = {
        "reward": np.array([[1.0], [2.0]], np.float32),
        "value": np.array([[1.0], [0.0], [2.0]], np.float32),
        "log_prob": np.zeros((2, 1), np.float32),
        "policy_version": np.zeros((2, 1), np.int64),
        **{name: np.zeros((2, 1), bool) for name in ("terminated", "truncated")},
        "valid": np.ones((2, 1), bool),
    }
    targets = targets_of(arrays, OnPolicyConfig(discount=0.5), value_mean=1.0, value_std=2.0, trace=0.5)
    assert targets.advantage is not None
    assert targets.return_ is not None
    last = 2.0 + 0.5 * 5.0 - 1.0
    first = 1.0 + 0.5 * 1.0 - 3.0 + 0.5 * 0.5 * last
    np.testing.assert_allclose(targets.advantage[:, 0], [first, last], rtol=1e-6)
    np.testing.assert_allclose(targets.return_[:, 0], [first + 3.0, last + 1.0], rtol=1e-6)
    assert targets.cut[:, 0].tolist() == [False, True]


def test_values_are_denormalised_before_gae() -> None:
    arrays = random_arrays(6, 12)
    plain = targets_of(arrays, OnPolicyConfig(), value_mean=0.0, value_std=1.0, trace=0.95)
    arrays["value"] = (arrays["value"] - np.float32(2.0)) / np.float32(4.0)
    again = targets_of(arrays, OnPolicyConfig(), value_mean=2.0, value_std=4.0, trace=0.95)
    assert plain.advantage is not None
    assert again.advantage is not None
    np.testing.assert_allclose(plain.advantage, again.advantage, rtol=1e-4, atol=1e-5)
    assert again.advantage.dtype == np.float32


def test_values_of_double_precision_stay_so() -> None:
    arrays = random_arrays(3, 2)
    arrays["value"] = arrays["value"].astype(np.float64)
    targets = targets_of(arrays, OnPolicyConfig(), value_mean=0.1, value_std=3.0, trace=1.0)
    assert targets.advantage is not None
    assert targets.return_ is not None
    assert targets.advantage.dtype == targets.return_.dtype == np.float64


def test_without_a_trace_there_are_only_rewards_and_cuts() -> None:
    arrays = random_arrays(5, 3)
    targets = targets_of(arrays, OnPolicyConfig(), value_mean=0.0, value_std=1.0, trace=None)
    assert targets.advantage is None
    assert targets.return_ is None
    for row in range(3):
        for t in range(5):
            ends = arrays["terminated"][t, row] or arrays["truncated"][t, row]
            assert targets.cut[t, row] == (ends or t == 4 or not arrays["valid"][t + 1, row])


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("reward", "env.check_finite=true names the environment and step"),
        ("value", "Try a lower learning_rate, a smaller max_grad_norm or normalise_returns"),
        ("log_prob", "Try a lower learning_rate or a smaller max_grad_norm"),
    ],
)
@pytest.mark.parametrize("trace", [None, 0.95])
def test_non_finite_samples_raise_before_they_spread(name: str, advice: str, trace: float | None) -> None:
    arrays = random_arrays(6, 4)
    arrays["valid"][2, 1] = arrays["valid"][4, 3] = True
    arrays[name][2, 1], arrays[name][4, 3] = np.inf, np.nan
    arrays["policy_version"][2, 1] = 77
    expected = rf"{name} is inf in 2 sample\(s\) of a batch \(the first at step 2 of trajectory 1, policy version 77\)"
    with pytest.raises(NonFiniteSampleError, match=f"{expected}: .*{advice}"):
        targets_of(arrays, OnPolicyConfig(), value_mean=0.0, value_std=1.0, trace=trace)


@pytest.mark.parametrize("step", [3, 6])
@pytest.mark.parametrize("trace", [None, 0.95])
def test_a_value_that_is_bootstrapped_from_must_be_finite(step: int, trace: float | None) -> None:
    arrays = random_arrays(6, 4)
    arrays["valid"][step - 1, 2] = True
    if step < 6:  # An episode's final observation, of which no action follows.
        arrays["valid"][step, 2], arrays["truncated"][step - 1, 2] = False, True
    arrays["value"][step, 2] = np.nan
    arrays["terminated"][step - 1, 2] = True
    targets_of(arrays, OnPolicyConfig(), value_mean=0.0, value_std=1.0, trace=trace)
    arrays["terminated"][step - 1, 2] = False
    with pytest.raises(NonFiniteSampleError, match=f"value is nan in 1 .* step {step} of trajectory 2"):
        targets_of(arrays, OnPolicyConfig(), value_mean=0.0, value_std=1.0, trace=trace)


def test_non_finite_numbers_of_invalid_samples_have_no_effect() -> None:
    arrays = random_arrays(6, 4)
    arrays["valid"][3, 2] = False
    arrays["terminated"][2, 2], arrays["truncated"][2, 2] = True, False
    clean = targets_of(arrays, OnPolicyConfig(), value_mean=0.0, value_std=1.0, trace=0.95)
    for name in ("reward", "value", "log_prob"):
        arrays[name][3, 2] = np.nan
    found = targets_of(arrays, OnPolicyConfig(), value_mean=0.0, value_std=1.0, trace=0.95)
    assert clean.advantage is not None
    assert found.advantage is not None
    np.testing.assert_array_equal(found.advantage[arrays["valid"]], clean.advantage[arrays["valid"]])
    assert found.advantage[3, 2] == 0.0
