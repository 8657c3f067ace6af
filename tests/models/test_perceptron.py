"""The written-out passes against automatic differentiation of the same layers."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.models.config import ModelConfig
from rollmill.models.mlp import MLP
from rollmill.models.off_policy import off_policy_model
from rollmill.models.perceptron import perceptron

N, INPUTS, OUTPUTS = 5, 3, 2


def layers(
    members: int | None, dtype: torch.dtype = torch.float64, hidden: tuple[int, int] = (4, 6)
) -> tuple[list[Tensor], list[Tensor]]:
    g = torch.Generator().manual_seed(0)
    lead = () if members is None else (members,)
    widths = (INPUTS, *hidden, OUTPUTS)
    weights = [torch.randn(*lead, o, i, generator=g, dtype=dtype) for i, o in pairwise(widths)]
    biases = [torch.randn(*lead, *([1] * len(lead)), o, generator=g, dtype=dtype) for o in widths[1:]]
    return [w.requires_grad_() for w in weights], [b.requires_grad_() for b in biases]


def literal(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """One perceptron."""
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        x = functional.relu(x @ weight.t() + bias)
    return x @ weights[-1].t() + biases[-1]


@pytest.mark.parametrize("members", [None, 1, 3])
def test_gradients_are_those_of_finite_differences(members: int | None) -> None:
    weights, biases = layers(members)
    x = torch.randn(N, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *p: perceptron(x, p[:3], p[3:]), (x, *weights, *biases))


@pytest.mark.parametrize("members", [None, 3])
def test_each_member_equals_a_separate_perceptron(members: int | None) -> None:
    weights, biases = layers(members)
    x = torch.randn(N, INPUTS, dtype=torch.float64)
    output = perceptron(x, weights, biases)
    if members is None:
        expected = literal(x, weights, biases)
    else:
        expected = torch.stack([literal(x, [w[e] for w in weights], [b[e] for b in biases]) for e in range(members)])
    torch.testing.assert_close(output, expected)
    with torch.no_grad():
        torch.testing.assert_close(perceptron(x, weights, biases), expected)
    smooth = perceptron(x, weights, biases, torch.relu)
    torch.testing.assert_close(smooth, expected)


def test_detached_weights_get_no_gradient_and_cost_none() -> None:
    weights, biases = layers(2)
    x = torch.randn(N, INPUTS, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(perceptron(x, weights, biases).sum(), x)
    output = perceptron(x, [w.detach() for w in weights], [b.detach() for b in biases])
    output.sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert all(p.grad is None for p in (*weights, *biases))


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("least", [True, False])
def test_a_gradient_goes_through_the_rows_that_it_reaches(members: int, least: bool) -> None:
    """The minimum passes each row's gradient to one perceptron, the sum to all, unused rows to none."""
    weights, biases = layers(members, hidden=(80, 70))
    frozen = [w.detach() for w in weights], [b.detach() for b in biases]
    x = torch.randn(40, INPUTS, dtype=torch.float64, requires_grad=True)
    of_row = (torch.arange(40) % 4 > 0).double().unsqueeze(-1) * torch.randn(OUTPUTS, dtype=torch.float64)

    def loss(values: Tensor) -> Tensor:
        return ((values.min(0).values if least else values.sum(0)) * of_row).sum()

    stacked = [literal(x, [w[e] for w in frozen[0]], [b[e] for b in frozen[1]]) for e in range(members)]
    (expected,) = torch.autograd.grad(loss(torch.stack(stacked)), x)
    (found,) = torch.autograd.grad(loss(perceptron(x, *frozen)), x)
    torch.testing.assert_close(found, expected)
    assert (found[::4] == 0).all()


@pytest.mark.parametrize("members", [None, 2])
def test_narrow_layers_get_the_gradients_of_wide_ones(members: int | None) -> None:
    """Narrow layers use transposed products."""
    weights, biases = layers(members, hidden=(80, 70))
    x = torch.randn(40, INPUTS, dtype=torch.float64, requires_grad=True)
    written_out = torch.autograd.grad(perceptron(x, weights, biases).square().sum(), [x, *weights, *biases])
    by_torch = torch.autograd.grad(perceptron(x, weights, biases, torch.relu).square().sum(), [x, *weights, *biases])
    for found, expected in zip(written_out, by_torch, strict=True):
        torch.testing.assert_close(found, expected)


def products_are_narrowed(members: int | None) -> bool:
    """Whether this CPU rounds the factors of float32 products if it may: with AMX, not with AVX512_BF16 alone."""
    x, weight = torch.randn(members or 1, 64, 128), torch.randn(members or 1, 128, 128)
    product = torch.bmm if members else lambda x, weight: functional.linear(x[0], weight[0])
    exact = product(x, weight)
    torch.set_float32_matmul_precision("medium")
    try:
        return not torch.equal(exact, product(x, weight))
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("members", [None, 2])
def test_autocast_narrows_the_hidden_layers_only(members: int | None) -> None:
    weights, biases = layers(members, torch.float32, (128, 128))
    x = torch.randn(64, INPUTS, generator=torch.Generator().manual_seed(1)).requires_grad_()
    exact = torch.autograd.grad(perceptron(x, weights, biases).square().mean(), (x, *weights, *biases))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = perceptron(x, weights, biases)
    assert output.dtype == torch.float32
    assert torch.get_float32_matmul_precision() == "highest"
    narrow = torch.autograd.grad(output.square().mean(), (x, *weights, *biases))
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.equal(output, perceptron(x, weights, biases)) != products_are_narrowed(members)
    for a, b in zip(narrow, exact, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.06 * b.norm()


def test_mlp_frozen_members_and_copies() -> None:
    config = off_policy_model(ModelConfig(mlp_sizes=(8, 8)))
    mlp = MLP(INPUTS, 1, config, members=3)
    x = torch.randn(N, INPUTS, requires_grad=True)
    output = mlp(x)
    assert output.shape == (3, N, 1)
    assert not torch.equal(output[0], output[1])
    torch.testing.assert_close(mlp(x, frozen=True, members=1), output[:1])
    mlp(x, frozen=True).sum().backward()
    assert all(p.grad is None for p in mlp.parameters())
    torch.testing.assert_close(copy.deepcopy(mlp)(x), output)
    assert [name for name, _ in mlp.named_parameters()] == [
        f"{kind}_{i}" for i in range(3) for kind in ("weight", "bias")
    ]


def test_mlp_of_other_activations_and_without_hidden_layers() -> None:
    x = torch.randn(N, INPUTS)
    smooth = MLP(INPUTS, OUTPUTS, off_policy_model(ModelConfig(mlp_sizes=(8,), activation="tanh")))
    weight, bias = smooth.get_parameter("weight_0"), smooth.get_parameter("bias_0")
    hidden = (x @ weight.t() + bias).tanh()
    expected = functional.linear(hidden, smooth.get_parameter("weight_1"), smooth.get_parameter("bias_1"))
    torch.testing.assert_close(smooth(x), expected)
    line = MLP(INPUTS, OUTPUTS, off_policy_model(ModelConfig(mlp_sizes=())))
    expected = functional.linear(x, line.get_parameter("weight_0"), line.get_parameter("bias_0"))
    torch.testing.assert_close(line(x), expected)


def test_initial_weights_are_pytorchs_or_orthogonal() -> None:
    torch.manual_seed(0)
    published = MLP(16, 1, off_policy_model(ModelConfig(mlp_sizes=(64,))), members=2)
    assert published.get_parameter("weight_0").abs().max() <= 16**-0.5
    torch.manual_seed(0)
    first = nn.Linear(16, 64)
    torch.testing.assert_close(published.get_parameter("weight_0")[0], first.weight)
    orthogonal = MLP(16, 4, off_policy_model(ModelConfig(mlp_sizes=(16,), init="orthogonal")), gain=0.01)
    weight = orthogonal.get_parameter("weight_1")
    torch.testing.assert_close(weight @ weight.t(), 0.01**2 * torch.eye(4), atol=1e-8, rtol=1e-4)
