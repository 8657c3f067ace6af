"""Initial weights: their distribution, and who decides which one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rollmill.models.activations import ELU, ReLU
from rollmill.models.config import Activation, Initialisation
from rollmill.models.initialisation import activation_module, initialise_conv, initialise_dense


def test_the_published_activation_is_used_only_where_none_is_chosen() -> None:
    assert isinstance(activation_module("auto", "elu"), ELU)
    assert isinstance(activation_module("relu", "elu"), ReLU)
    x = torch.tensor([-1.0, 0.5])
    names: tuple[Activation, ...] = ("relu", "elu", "silu", "gelu", "tanh")
    expected = {
        "relu": [0.0, 0.5],
        "elu": [math.exp(-1) - 1, 0.5],
        "silu": [-1 / (1 + math.e), 0.5 / (1 + math.exp(-0.5))],
        "gelu": [-0.5 * (1 + math.erf(-1 / math.sqrt(2))), 0.25 * (1 + math.erf(0.5 / math.sqrt(2)))],
        "tanh": [math.tanh(-1), math.tanh(0.5)],
    }
    for name in names:
        torch.testing.assert_close(activation_module(name, "relu")(x.clone()), torch.tensor(expected[name]))


@pytest.mark.parametrize("gain", [0.01, 1.0, math.sqrt(2.0)])
def test_dense_layers_are_orthogonal_with_their_gain_and_without_bias(gain: float) -> None:
    torch.manual_seed(0)
    layer = initialise_dense(nn.Linear(5, 3), "orthogonal", gain=gain)
    torch.testing.assert_close(layer.weight @ layer.weight.T, gain**2 * torch.eye(3))
    assert not layer.bias.any()
    assert layer.weight.requires_grad


def test_the_usual_gain_of_dense_layers_is_that_of_relu() -> None:
    layer = initialise_dense(nn.Linear(5, 3), "auto")
    torch.testing.assert_close(layer.weight @ layer.weight.T, 2.0 * torch.eye(3))


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_pytorchs_own_initialisation_changes_nothing(kind: str) -> None:
    layer = nn.Linear(5, 3) if kind == "dense" else nn.Conv2d(2, 3, 2)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    done = initialise_dense(layer, "torch") if isinstance(layer, nn.Linear) else initialise_conv(layer, "torch")
    assert done is layer
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(
    ("init", "published", "chosen"),
    [
        ("auto", "orthogonal", "orthogonal"),
        ("auto", "lecun", "lecun"),
        ("orthogonal", "lecun", "orthogonal"),
        ("lecun", "orthogonal", "lecun"),
    ],
)
def test_convolutions_are_orthogonal_or_lecun_normal(
    init: Initialisation, published: Initialisation, chosen: str
) -> None:
    torch.manual_seed(0)
    layer = initialise_conv(nn.Conv2d(8, 128, 3), init, published=published)
    rows = layer.weight.flatten(1)
    columns = rows.T @ rows
    is_orthogonal = torch.allclose(columns, 2.0 * torch.eye(8 * 9), atol=1e-4)
    assert is_orthogonal == (chosen == "orthogonal")
    if chosen == "lecun":
        # A normal distribution that is cut at two standard deviations and has the variance 1 / fan-in after that.
        assert rows.std().item() == pytest.approx(math.sqrt(1 / (8 * 9)), rel=0.03)
        assert rows.abs().max().item() <= 2 * math.sqrt(1 / (8 * 9)) / 0.8796 + 1e-6
    assert layer.bias is not None
    assert not layer.bias.any()


def test_a_convolution_without_a_bias_keeps_none() -> None:
    assert initialise_conv(nn.Conv2d(2, 3, 2, bias=False), "auto").bias is None
