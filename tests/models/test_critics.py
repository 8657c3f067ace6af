"""Ensembles of Q-functions against each member computed alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rollmill.models.config import ModelConfig
from rollmill.models.critics import ChoiceCritics, Critics
from rollmill.models.off_policy import off_policy_model
from rollmill.specs import ActionSpec, CategoricalHead

CONFIG = off_policy_model(ModelConfig(mlp_sizes=(6, 5)))
MEMBERS, WIDTH, ACTIONS = 3, 4, 2


class Halving(nn.Module):
    """An encoder whose features are known."""

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        return observation["obs"] / 2


def alone(mlp: nn.Module, member: int, x: Tensor) -> Tensor:
    """One member's perceptron, layer by layer."""
    parameters = dict(mlp.named_parameters())
    last = len(parameters) // 2 - 1
    for index in range(last + 1):
        x = x @ parameters[f"weight_{index}"][member].T + parameters[f"bias_{index}"][member, 0]
        x = functional.relu(x) if index < last else x
    return x


@pytest.fixture
def critics() -> Critics:
    torch.manual_seed(0)
    return Critics(Halving(), WIDTH, ACTIONS, MEMBERS, CONFIG)


def test_each_critic_rates_an_action_by_itself(critics: Critics) -> None:
    observation, action = torch.randn(7, WIDTH), torch.randn(7, ACTIONS)
    found = critics({"obs": observation}, action)
    assert found.shape == (MEMBERS, 7)
    assert found.dtype == torch.float32
    inputs = torch.cat([observation / 2, action], -1)
    for member in range(MEMBERS):
        torch.testing.assert_close(found[member], alone(critics.mlp, member, inputs).squeeze(-1))
    assert not torch.allclose(found[0], found[1]), "the members have initial weights of their own"


def test_the_first_critics_can_be_evaluated_alone(critics: Critics) -> None:
    features, action = torch.randn(7, WIDTH), torch.randn(7, ACTIONS)
    torch.testing.assert_close(critics.rate(features, action, members=2), critics.rate(features, action)[:2])


def test_frozen_weights_get_no_gradient_but_the_action_does(critics: Critics) -> None:
    features, action = torch.randn(7, WIDTH), torch.randn(7, ACTIONS, requires_grad=True)
    (expected,) = torch.autograd.grad(critics.rate(features, action).sum(), action)
    critics.rate(features, action, frozen=True).sum().backward()
    torch.testing.assert_close(action.grad, expected)
    assert all(parameter.grad is None for parameter in critics.parameters())
    critics.rate(features, action).sum().backward()
    assert all(parameter.grad is not None for parameter in critics.parameters())


def test_the_last_layer_computes_in_float32_under_autocast(critics: Critics) -> None:
    features, action = torch.randn(7, WIDTH), torch.randn(7, ACTIONS)
    with torch.autocast("cpu", torch.bfloat16):
        found = critics.rate(features.bfloat16(), action)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, critics.rate(features, action), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("sizes", [(3,), (2, 4)])
def test_choice_critics_rate_every_choice_of_every_head(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    structure = "discrete" if len(sizes) == 1 else "multidiscrete"
    heads = tuple(CategoricalHead(n=n) for n in sizes)
    critics = ChoiceCritics(Halving(), WIDTH, ActionSpec(heads=heads, structure=structure), MEMBERS, CONFIG)
    observation = torch.randn(7, WIDTH)
    found = critics({"obs": observation})
    assert found.shape == (MEMBERS, 7, len(sizes), max(sizes))
    for member in range(MEMBERS):
        flat = alone(critics.mlp, member, observation / 2)
        for head, values in enumerate(flat.split(list(sizes), -1)):
            torch.testing.assert_close(found[member, :, head, : sizes[head]], values)
