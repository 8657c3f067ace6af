"""Native activations equal torch's values and gradients for all dtypes and memory layouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.models.activations import ELU, ReLU

CASES = pytest.mark.parametrize(("module", "function"), [(ReLU(), functional.relu), (ELU(), functional.elu)])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])


def images(dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    return (3 * torch.randn(5, 7, 9, 11)).to(dtype)


def tolerance(dtype: torch.dtype) -> float:
    return 1e-2 if dtype == torch.bfloat16 else 1e-6


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "matrix": lambda x: x.flatten(1).clone(),
    "transposed matrix": lambda x: x.flatten(1).t().contiguous().t(),
    "with gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "behind others": lambda x: torch.cat([torch.zeros(2, *x.shape[1:], dtype=x.dtype), x])[2:],
    "empty": lambda x: x[:0].clone(),
    "one": lambda x: x[0, 0, 0, 0].clone(),
}


@CASES
@DTYPES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_and_gradients_are_torchs(
    module: nn.Module, function: Callable[[Tensor], Tensor], dtype: torch.dtype, layout: str
) -> None:
    x = LAYOUTS[layout](images(dtype))
    with torch.no_grad():
        here = LAYOUTS[layout](images(dtype))
        assert module(here) is here or module(here).data_ptr() == here.data_ptr()
    expected = function(x)
    torch.testing.assert_close(here, expected, rtol=tolerance(dtype), atol=tolerance(dtype))

    ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    weight = torch.linspace(-1, 2, max(1, x.numel()), dtype=torch.float32)[: x.numel()].view(x.shape)
    # In place on another layer's output, because a leaf must not be changed.
    (module(ours * 1.5).float() * weight).sum().backward()
    (function(theirs * 1.5).float() * weight).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=tolerance(dtype), atol=tolerance(dtype))


@CASES
@DTYPES
def test_nan_is_preserved(module: nn.Module, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.tensor([float("nan"), -float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -300.0, 1e-8, -1e-8])
    x = x.to(dtype).repeat(5)  # longer than the widest vector register, with a remainder
    torch.testing.assert_close(module(x.clone()), function(x), equal_nan=True)


def test_elu_is_exact_to_float32s_last_digits() -> None:
    x = torch.cat([torch.linspace(-100, 1, 200_001), -torch.logspace(-30, 0, 20_001)])
    exact = functional.elu(x.double())
    torch.testing.assert_close(ELU()(x.clone()).double(), exact, rtol=2e-7, atol=1e-30)


def test_gradients_in_another_order_than_the_output() -> None:
    x = images(torch.float32).contiguous(memory_format=torch.channels_last).requires_grad_()
    other = images(torch.float32) + 1.0
    ELU()(x * 1.0).backward(other)
    expected = other * torch.where(x > 0, 1.0, x.exp())
    torch.testing.assert_close(x.grad, expected)


def test_autograd_detects_an_overwritten_input() -> None:
    parameter, x = torch.randn(8, requires_grad=True), torch.randn(8)
    product = parameter * x
    ReLU()(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_export_uses_torchs_functions() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), ReLU(), nn.Linear(4, 4), ELU())
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.export.export(layers, (x,)).module()(x), layers(x))


def test_second_derivative_raises() -> None:
    x = torch.randn(8, requires_grad=True)
    (first,) = torch.autograd.grad(ELU()(x * 1.0).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        first.sum().backward()
