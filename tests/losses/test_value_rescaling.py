"""The value rescaling and its inverse."""

from __future__ import annotations

import math

import pytest
import torch

from rollmill.losses.value_rescaling import rescale, unscale

VALUES = [0.0, 1e-3, -1e-3, 0.5, -1.0, 7.0, -300.0, 2.5e4, 1e6]


def test_rescaling_equals_the_papers() -> None:
    expected = [math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x for x in VALUES]
    assert rescale(torch.tensor(VALUES, dtype=torch.float64)).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_inverse_is_exact_in_float32(dtype: torch.dtype, tolerance: float) -> None:
    there_and_back = unscale(rescale(torch.tensor(VALUES, dtype=dtype)))
    assert there_and_back.tolist() == pytest.approx(VALUES, rel=tolerance, abs=3 * torch.finfo(dtype).eps)


def test_a_forbidden_choice_stays_below_all_others() -> None:
    assert unscale(torch.tensor(-1.0e9)) < -1.0e9
