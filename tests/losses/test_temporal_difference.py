"""Targets and temporal differences against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollmill.losses.temporal_difference import bootstrap_target, sequence_error, temporal_difference_loss


def test_n_step_targets_equal_a_loop() -> None:
    # Three rewards of an episode that continues, is truncated after two, or terminates after two.
    rewards, gamma, value = [1.0, -2.0, 4.0], 0.9, 10.0
    expected = [
        1.0 + 0.9 * -2.0 + 0.81 * 4.0 + 0.729 * value,
        1.0 + 0.9 * -2.0 + 0.81 * value,
        1.0 + 0.9 * -2.0,
    ]
    sums = [sum(gamma**j * r for j, r in enumerate(rewards[:k])) for k in (3, 2, 2)]
    discount = [gamma**3, gamma**2, 0.0]
    target = bootstrap_target(torch.tensor(sums), torch.tensor(discount), torch.full((3,), value))
    assert target.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["mse", "huber"])
@pytest.mark.parametrize("critics", [0, 1, 3])
def test_the_loss_equals_a_loop(kind: str, critics: int) -> None:
    rng = np.random.default_rng(critics)
    shape = (critics, 7) if critics else (7,)
    prediction, target, weight = rng.normal(size=shape) * 2.0, rng.normal(size=7), rng.random(7)
    total, error = 0.0, np.zeros(7)
    for row in prediction.reshape(-1, 7):
        for n, value in enumerate(row):
            delta = abs(value - target[n])
            quadratic = kind == "mse" or delta <= 1.0
            total += weight[n] * (0.5 * delta**2 if quadratic else delta - 0.5) / 7
            error[n] += delta / max(1, critics)
    result = temporal_difference_loss(*(torch.from_numpy(a) for a in (prediction, target, weight)), kind)  # type: ignore[arg-type]
    assert result.loss.item() == pytest.approx(total)
    np.testing.assert_allclose(result.error.numpy(), error)


def test_errors_are_detached_and_the_target_may_be_per_branch() -> None:
    prediction = torch.zeros(2, 3, requires_grad=True)
    target = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    result = temporal_difference_loss(prediction, target, torch.ones(3), "mse")
    assert not result.error.requires_grad
    assert result.error.tolist() == [2.0, 2.0, 2.0]
    result.loss.backward()
    torch.testing.assert_close(prediction.grad, -target / 3)


def test_sequence_error_mixes_maximum_and_mean_of_valid_steps() -> None:
    error = torch.tensor([[1.0, 5.0, 9.0], [3.0, 100.0, 9.0], [2.0, 1.0, 9.0]])
    valid = torch.tensor([[True, True, False], [True, False, False], [True, True, False]])
    assert sequence_error(error, valid).tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 0.9 * 5 + 0.1 * 3, 0.0])
    assert sequence_error(error, valid, eta=0.0).tolist() == pytest.approx([2.0, 3.0, 0.0])
