"""Dense layers for few rows equal torch's for all shapes, dtypes and modes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rollmill.models.linear import Dense, linear


@pytest.fixture(autouse=True, params=[False, True], ids=["without_avx512", "with_avx512"])
def _has_avx512(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of the product can be computed by every CPU."""
    monkeypatch.setattr("rollmill.models.linear._HAS_AVX512", request.param)


@pytest.mark.parametrize("shape", [(1, 7), (8, 7), (64, 7), (65, 7), (1, 16, 7), (4, 8, 7), (0, 7), (7,)])
@pytest.mark.parametrize("gradient", [False, True])
def test_linear_equals_torchs(shape: tuple[int, ...], gradient: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(5, 7), torch.randn(5)
    with torch.set_grad_enabled(gradient):
        result = linear(x, weight, bias)
    torch.testing.assert_close(result, functional.linear(x, weight, bias))


def test_dense_respects_autocast() -> None:
    torch.manual_seed(0)
    dense, x = Dense(7, 5), torch.randn(16, 7)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result, expected = dense(x), functional.linear(x, dense.weight, dense.bias)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_dense_can_be_traced_for_any_number_of_rows() -> None:
    dense, rows = Dense(7, 5), torch.export.Dim("rows", min=1)
    traced = torch.export.export(dense, (torch.randn(3, 7),), dynamic_shapes=({0: rows},), strict=False).module()
    for count in (1, 16, 200):
        x = torch.randn(count, 7)
        torch.testing.assert_close(traced(x), dense(x))


def test_dense_has_gradients() -> None:
    dense, x = Dense(7, 5), torch.randn(16, 7)
    dense(x).sum().backward()
    assert dense.weight.grad is not None
    torch.testing.assert_close(dense.weight.grad, x.sum(0).expand(5, 7))
