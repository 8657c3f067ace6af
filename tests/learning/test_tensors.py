"""TD errors of an SGD step, for the replay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollmill.learning.optimisers import NonFiniteGradientError
from rollmill.learning.tensors import errors_of


def test_td_errors_pass_unchanged() -> None:
    errors = errors_of(torch.tensor([0.0, 2.5, 3e38], dtype=torch.float32), 1, 3)
    np.testing.assert_array_equal(errors, np.float32([0.0, 2.5, 3e38]))
    assert errors_of(torch.tensor([1.0], dtype=torch.bfloat16), 1, 1).dtype == np.float32


def test_priorities_use_absolute_td_errors() -> None:
    np.testing.assert_array_equal(errors_of(torch.tensor([-2.0, 3.0], requires_grad=True), 1, 2), np.float32([2, 3]))


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (2, 4)])
def test_td_errors_of_another_shape_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"td_error of shape .*one number for each of the batch's samples, .*\(4,\)"):
        errors_of(torch.ones(shape), 1, 4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_td_errors_raise(value: float) -> None:
    message = rf"SGD step 7: 2 of 6 temporal .* \(first: {value}\); no priority .* Lower learner.learning_rate"
    with pytest.raises(NonFiniteGradientError, match=message):
        errors_of(torch.tensor([1.0, value, value, 0.0, 1.0, 1.0]), 7, 6)
