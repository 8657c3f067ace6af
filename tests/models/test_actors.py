"""The squashed Gaussian against torch's own transformed distribution."""

from __future__ import annotations

import pytest
import torch
from torch import distributions

from rollmill.models.actors import squashed_gaussian

BOUNDS = (-1.0, 0.5)


def test_action_and_density_are_those_of_a_transformed_normal() -> None:
    g = torch.Generator().manual_seed(0)
    params = torch.randn(50, 6, generator=g, dtype=torch.float64)
    normal = torch.randn(50, 3, generator=g, dtype=torch.float64)
    mean, log_std = params.chunk(2, -1)
    std = log_std.clamp(*BOUNDS).exp()
    squashed = distributions.TransformedDistribution(
        distributions.Normal(mean, std), [distributions.TanhTransform(cache_size=1)]
    )
    action, log_prob = squashed_gaussian(params, normal, BOUNDS)
    torch.testing.assert_close(action, (mean + std * normal).tanh())
    torch.testing.assert_close(log_prob, squashed.log_prob((mean + std * normal).tanh()).sum(-1))


def test_gradients_are_those_of_finite_differences() -> None:
    g = torch.Generator().manual_seed(1)
    params = torch.randn(9, 4, generator=g, dtype=torch.float64, requires_grad=True)
    normal = torch.randn(9, 2, generator=g, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: squashed_gaussian(p, normal, BOUNDS), (params,))
    # One of the two results alone, too.
    assert torch.autograd.gradcheck(lambda p: squashed_gaussian(p, normal, BOUNDS).action, (params,))
    assert torch.autograd.gradcheck(lambda p: squashed_gaussian(p, normal, BOUNDS).log_prob, (params,))


@pytest.mark.parametrize("mean", [20.0, -20.0, 60.0])
def test_far_from_the_middle_nothing_overflows(mean: float) -> None:
    params = torch.tensor([[mean, 0.0]], requires_grad=True)
    action, log_prob = squashed_gaussian(params, torch.zeros(1, 1), (-20.0, 2.0))
    # log(1 - tanh(u)^2) is log 4 - 2 |u| there.
    assert log_prob.item() == pytest.approx(-0.9189385 - 1.3862944 + 2.0 * abs(mean), rel=1e-5)
    (action.sum() + log_prob.sum()).backward()
    assert params.grad is not None
    assert params.grad.isfinite().all()
