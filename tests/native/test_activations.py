"""Arguments that the native activations refuse; their numbers are tested in tests/models/test_activations.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmill.native import activate, activation_gradient

HALF = np.array([0x3F80, 0xBF80, 0x8000, 0xFFC0], np.uint16)  # 1, -1, -0 and a NaN with a sign, in bfloat16


def test_bfloat16_is_given_as_its_bits() -> None:
    x = HALF.copy()
    activate(x, "relu")
    assert x.tolist() == [0x3F80, 0, 0, 0xFFC0]


@pytest.mark.parametrize(
    ("x", "kind", "error", "says"),
    [
        (np.zeros(4, np.float64), "relu", TypeError, "x must be float32, or bfloat16"),
        (np.zeros((4, 4), np.float32)[:, ::2], "relu", TypeError, "C-contiguous"),
        (np.zeros(4, np.float32), "gelu", ValueError, "'gelu'; allowed: 'relu', 'elu'"),
    ],
)
def test_a_wrong_argument_is_named(x: Any, kind: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        activate(x, kind)


def test_arrays_of_a_gradient_must_match() -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match="one dtype"):
        activation_gradient(x, x.copy(), HALF, "relu")
    with pytest.raises(ValueError, match="the same size"):
        activation_gradient(x, x.copy(), np.zeros(5, np.float32), "relu")
