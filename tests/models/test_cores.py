"""Recurrent cores: an unroll split at resets against single steps, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rollmill.models.cores import GRUCore, LSTMCore, RecurrentCore, make_core, zero_state


def step_by_step(core: RecurrentCore, x: Tensor, state: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: zero the rows that reset, then one cell step; with torch's cells on the same weights."""
    layer = core.layer
    assert isinstance(layer, nn.RNNBase)
    outputs = []
    for t in range(x.shape[0]):
        state = torch.where(reset[t].unsqueeze(-1), 0.0, state)
        weights = (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0)
        if isinstance(core, GRUCore):
            state = torch.gru_cell(x[t], state, *weights)
            outputs.append(state)
        else:
            h, c = torch.lstm_cell(x[t], state.chunk(2, -1), *weights)
            outputs.append(h)
            state = torch.cat([h, c], -1)
    return torch.stack(outputs), state


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("steps", "rows"), [(7, 3), (9, 12)])  # below and above the threshold for forming products
@pytest.mark.parametrize("resets", [(), ((0, 1),), ((3, 0), (3, 2)), ((0, 0), (1, 1), (4, 2), (5, 0), (6, 1))])
def test_unroll_equals_single_steps(kind: str, resets: tuple[tuple[int, int], ...], steps: int, rows: int) -> None:
    torch.manual_seed(0)
    width, size = 5, 4
    core = make_core(kind, width, size, "torch")
    x = torch.randn(steps, rows, width, requires_grad=True)
    state = torch.randn(rows, core.state_size, requires_grad=True)
    reset = torch.zeros(steps, rows, dtype=torch.bool)
    for t, row in resets:
        reset[t, row] = True
    inputs = (x, state, *core.parameters())
    weight = torch.randn(steps, rows, size)

    def gradients(result: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad((result[0] * weight).sum() + result[1].square().sum(), inputs)

    reset_steps = sorted({t for t, _ in resets})
    expected = step_by_step(core, x, state, reset)
    expected_gradients = gradients(expected)
    close = {"rtol": 1e-5, "atol": 1e-6}
    for unroll in (core.unroll, core.run_in_parts):  # the second is used on devices other than CPUs
        result = unroll(x, state, reset, reset_steps)
        for mine, theirs in zip(result, expected, strict=True):
            torch.testing.assert_close(mine, theirs, **close)
        for mine, theirs in zip(gradients(result), expected_gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)

    again, last = [], state
    for t in range(steps):
        output, last = core.step(x[t], zero_state(last, reset[t]))
        again.append(output)
    torch.testing.assert_close(torch.stack(again), expected[0], **close)
    torch.testing.assert_close(last, expected[1], **close)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_step_of_operations_is_the_same_step(kind: str) -> None:
    torch.manual_seed(0)
    core = make_core(kind, 5, 4, "torch")
    x, state = torch.randn(6, 5), torch.randn(6, core.state_size)
    found, expected = core.step_of_operations(x, state), core.step(x, state)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_state_stays_in_float32_under_autocast(kind: str) -> None:
    torch.manual_seed(0)
    core = make_core(kind, 5, 4, "torch")
    x, state = torch.randn(3, 2, 5), torch.randn(2, core.state_size)
    reset = torch.zeros(3, 2, dtype=torch.bool)
    expected = step_by_step(core, x, state, reset)
    with torch.autocast("cpu", torch.bfloat16):
        results = (core.unroll(x.bfloat16(), state, reset, ()), core.run_in_parts(x.bfloat16(), state, reset, ()))
        stepped = core.step(x[0].bfloat16(), state)
    for output, last in (*results, stepped):
        assert output.dtype == last.dtype == torch.float32
    for output, last in results:
        torch.testing.assert_close(output, expected[0], rtol=0.05, atol=0.02)
        torch.testing.assert_close(last, expected[1], rtol=0.05, atol=0.02)


def test_a_reset_clears_nan() -> None:
    core = make_core("gru", 3, 4, "auto")
    state = torch.full((2, 4), torch.nan)
    reset = torch.tensor([[True, True], [False, False]])
    output, last = core.unroll(torch.randn(2, 2, 3), state, reset, [0])
    assert output.isfinite().all()
    assert last.isfinite().all()


def test_lstm_state_is_h_then_c() -> None:
    core = make_core("lstm", 3, 4, "auto")
    assert isinstance(core, LSTMCore)
    assert core.state_size == 8
    output, state = core.step(torch.randn(2, 3), torch.zeros(2, 8))
    assert torch.equal(state[:, :4], output)


def test_initialisation_is_orthogonal() -> None:
    core = make_core("gru", 4, 4, "auto")
    layer = core.layer
    assert isinstance(layer, nn.GRU)
    gram = layer.weight_hh_l0.T @ layer.weight_hh_l0
    torch.testing.assert_close(gram, torch.eye(4), rtol=0, atol=1e-5)
    assert (layer.bias_ih_l0 == 0).all()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_fresh_core_keeps_most_of_its_state(kind: str) -> None:
    core = make_core(kind, 4, 64, "auto")
    state = torch.randn(32, core.state_size)
    _, after = core.step(torch.zeros(32, 4), state)
    kept = slice(64, None) if kind == "lstm" else slice(None)  # an LSTM keeps its cell
    share = (after[:, kept] * state[:, kept]).sum() / state[:, kept].square().sum()
    assert share > 0.6


def test_unknown_core() -> None:
    with pytest.raises(ValueError, match="the core is 'rnn'; allowed: 'gru', 'lstm'"):
        make_core("rnn", 3, 4, "auto")
