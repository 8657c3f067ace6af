"""Unrolled GRU and LSTM against the equations of ``torch.nn`` written out, step by step, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rollmill.models.unrolls import unroll_gru, unroll_lstm

ROWS, SIZE = 3, 4


def literal_gru(
    gates: Tensor, h: Tensor, resets: Sequence[Tensor | None], weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    outputs = []
    for of_input, reset in zip(gates, resets, strict=True):
        if reset is not None:
            h = torch.where(reset, 0.0, h)
        of_state = h @ weight.T + bias
        r = torch.sigmoid(of_input[:, :SIZE] + of_state[:, :SIZE])
        z = torch.sigmoid(of_input[:, SIZE : 2 * SIZE] + of_state[:, SIZE : 2 * SIZE])
        n = torch.tanh(of_input[:, 2 * SIZE :] + r * of_state[:, 2 * SIZE :])
        h = (1 - z) * n + z * h
        outputs.append(h)
    return torch.stack(outputs), h


def literal_lstm(
    gates: Tensor, h: Tensor, c: Tensor, resets: Sequence[Tensor | None], weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    outputs = []
    for of_input, reset in zip(gates, resets, strict=True):
        if reset is not None:
            h, c = torch.where(reset, 0.0, h), torch.where(reset, 0.0, c)
        i, f, g, o = (of_input + h @ weight.T + bias).split(SIZE, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h, c


def resets_of(steps: int, pattern: str) -> tuple[Tensor | None, ...]:
    """Resets in no step, in every row of some steps, or in single rows of some steps."""
    some = {0: [True, True, False], steps - 1: [False, True, False], steps // 2: [True, False, True]}
    if pattern == "some rows":
        return tuple(torch.tensor(some[t]).unsqueeze(1) if t in some else None for t in range(steps))
    return tuple(torch.ones(ROWS, 1, dtype=torch.bool) if pattern == "all rows" else None for _ in range(steps))


def inputs_of(kind: str, steps: int, dtype: torch.dtype) -> list[Tensor]:
    """Gates, the states, the recurrent matrix and its bias."""
    random = torch.Generator().manual_seed(steps)
    gates, states = (3, 1) if kind == "gru" else (4, 2)
    shapes = [(steps, ROWS, gates * SIZE), *[(ROWS, SIZE)] * states, (gates * SIZE, SIZE), (gates * SIZE,)]
    return [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]


def run(kind: str, is_literal: bool, inputs: list[Tensor], resets: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    if kind == "gru":
        gates, h, weight, bias = inputs
        return (literal_gru if is_literal else unroll_gru)(gates, h, resets, weight, bias)
    gates, h, c, weight, bias = inputs
    return (literal_lstm if is_literal else unroll_lstm)(gates, h, c, resets, weight, bias)


# Below and above the number of steps from which the matrix is copied into the order in which it is read.
@pytest.mark.parametrize("steps", [1, 7, 8, 11])
@pytest.mark.parametrize("pattern", ["none", "some rows", "all rows"])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_values_and_gradients_are_those_of_the_equations(kind: str, pattern: str, steps: int) -> None:
    inputs, resets = inputs_of(kind, steps, torch.float64), resets_of(steps, pattern)
    found, expected = run(kind, False, inputs, resets), run(kind, True, inputs, resets)
    assert [item.dtype for item in found] == [torch.float64] * len(expected)
    random = torch.Generator().manual_seed(1)
    weights = [torch.randn(item.shape, generator=random, dtype=torch.float64) for item in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    gradients, expected_gradients = (
        torch.autograd.grad(sum((w * item).sum() for w, item in zip(weights, items, strict=True)), inputs)
        for items in (found, expected)
    )
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_each_result_alone_has_a_gradient(kind: str) -> None:
    """A loss may use the outputs only, or the last state only."""
    inputs, resets = inputs_of(kind, 5, torch.float64), resets_of(5, "some rows")
    for index in range(2 if kind == "gru" else 3):
        gradients, expected = (
            torch.autograd.grad(run(kind, is_literal, inputs, resets)[index].square().sum(), inputs)
            for is_literal in (False, True)
        )
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_matrix_in_bfloat16_gives_results_in_float32(kind: str) -> None:
    inputs = inputs_of(kind, 9, torch.float32)
    lowered = [*inputs[:-2], inputs[-2].detach().bfloat16().requires_grad_(), inputs[-1]]
    lowered[0] = inputs[0].detach().bfloat16().requires_grad_()
    resets = resets_of(9, "some rows")
    found, expected = run(kind, False, lowered, resets), run(kind, True, inputs, resets)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
    gradients = torch.autograd.grad(found[0].square().sum(), lowered)
    expected_gradients = torch.autograd.grad(expected[0].square().sum(), inputs)
    for gradient, given, other in zip(gradients, lowered, expected_gradients, strict=True):
        assert gradient.dtype == given.dtype
        assert (gradient.float() - other).norm() < 0.05 * other.norm()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_state_that_is_reset_may_be_nan(kind: str) -> None:
    inputs = inputs_of(kind, 3, torch.float32)
    broken = [torch.full_like(item, torch.nan) if item.shape == (ROWS, SIZE) else item for item in inputs]
    is_reset = torch.ones(ROWS, 1, dtype=torch.bool)
    found = run(kind, False, broken, (is_reset, None, None))
    assert all(item.isfinite().all() for item in found)
    for gradient in torch.autograd.grad(found[0].sum(), (broken[0], *broken[-2:])):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_arguments_are_left_as_they_are(kind: str) -> None:
    inputs = inputs_of(kind, 4, torch.float32)
    before = [item.detach().clone() for item in inputs]
    outputs = run(kind, False, inputs, resets_of(4, "some rows"))
    # The last state is a copy: changing it must not change the outputs, which the backward pass may need.
    assert outputs[1].data_ptr() != outputs[0][-1].data_ptr()
    torch.autograd.grad(outputs[0].sum(), inputs)
    for item, old in zip(inputs, before, strict=True):
        assert torch.equal(item, old)
