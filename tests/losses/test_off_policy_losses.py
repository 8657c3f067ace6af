"""The losses of DQN, TD3 and both SACs against literal oracles in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rollmill.losses.dqn import double_q_value, max_q_value, rescale, taken_values, unscale
from rollmill.losses.sac import policy_entropy, soft_value, soft_value_of_choices, temperature_loss
from rollmill.losses.td3 import smoothed_action

RNG = np.random.default_rng(0)
N, K, CHOICES, CRITICS = 6, 3, 4, 2
VALUES = [0.0, 1e-3, -1e-3, 0.5, -1.0, 7.0, -300.0, 2.5e4, 1e6]


def tensor(*shape: int) -> Tensor:
    return torch.from_numpy(RNG.normal(size=shape))


def test_values_of_choices_equal_loops() -> None:
    online, target = tensor(N, K, CHOICES), tensor(N, K, CHOICES)
    action = torch.from_numpy(RNG.integers(0, CHOICES, (N, K)).astype(np.int32))
    taken, largest, double = taken_values(online, action), max_q_value(target), double_q_value(online, target)
    for n in range(N):
        maxima, doubles = [], []
        for k in range(K):
            assert taken[n, k] == online[n, k, action[n, k]]
            maxima.append(max(target[n, k].tolist()))
            choice = max(range(CHOICES), key=lambda a: online[n, k, a].item())
            doubles.append(target[n, k, choice].item())
        assert largest[n].item() == pytest.approx(sum(maxima) / K)
        assert double[n].item() == pytest.approx(sum(doubles) / K)


def test_smoothed_actions_are_clipped_twice() -> None:
    action = torch.tensor([[0.0, 0.0, 0.9, -0.9, 0.5]], dtype=torch.float64)
    normal = torch.tensor([[1.0, 10.0, 10.0, -10.0, 0.0]], dtype=torch.float64)
    smoothed = smoothed_action(action, normal, std=0.2, clip=0.5)
    assert smoothed[0].tolist() == pytest.approx([0.2, 0.5, 1.0, -1.0, 0.5])
    assert action[0].tolist() == [0.0, 0.0, 0.9, -0.9, 0.5]


def test_soft_values_equal_a_loop() -> None:
    q, log_prob = tensor(CRITICS, N), tensor(N)
    expected = [min(q[:, n].tolist()) - 0.3 * log_prob[n].item() for n in range(N)]
    np.testing.assert_allclose(soft_value(q, log_prob, 0.3).numpy(), expected)


@pytest.mark.parametrize(("excess", "direction"), [(0.5, -1.0), (-0.5, 1.0)])
def test_temperature_grows_below_the_target_entropy(excess: float, direction: float) -> None:
    log_temperature = torch.zeros((), requires_grad=True)
    temperature_loss(log_temperature, torch.full((N,), excess)).backward()
    assert log_temperature.grad is not None
    assert math.copysign(1.0, -log_temperature.grad.item()) == direction
    assert log_temperature.grad.item() == pytest.approx(excess)


def test_expectations_over_choices_equal_loops() -> None:
    q, log_policy = tensor(CRITICS, N, K, CHOICES), tensor(N, K, CHOICES).log_softmax(-1)
    values, entropies = soft_value_of_choices(q, log_policy, 0.7), policy_entropy(log_policy)
    for n in range(N):
        value = entropy = 0.0
        for k in range(K):
            for a in range(CHOICES):
                p = math.exp(log_policy[n, k, a].item())
                value += p * (min(q[:, n, k, a].tolist()) - 0.7 * math.log(p)) / K
                entropy -= p * math.log(p)
        assert values[n].item() == pytest.approx(value)
        assert entropies[n].item() == pytest.approx(entropy)


def test_expectations_ignore_forbidden_choices() -> None:
    logits = torch.tensor([[[0.3, -1.0e9, 1.1]]], requires_grad=True)
    q = torch.tensor([[[[1.0, 1.0e6, 2.0]]]])
    log_policy = logits.log_softmax(-1)
    reduced = soft_value_of_choices(q[..., [0, 2]], logits[..., [0, 2]].log_softmax(-1), 0.5)
    value = soft_value_of_choices(q, log_policy, 0.5)
    torch.testing.assert_close(value, reduced)
    (gradient,) = torch.autograd.grad(value.sum() + policy_entropy(log_policy).sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, 0, 1] == 0.0


def test_rescaling_equals_the_papers() -> None:
    expected = [math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x for x in VALUES]
    assert rescale(torch.tensor(VALUES, dtype=torch.float64)).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_inverse_is_exact_in_float32(dtype: torch.dtype, tolerance: float) -> None:
    there_and_back = unscale(rescale(torch.tensor(VALUES, dtype=dtype)))
    assert there_and_back.tolist() == pytest.approx(VALUES, rel=tolerance, abs=3 * torch.finfo(dtype).eps)


def test_a_forbidden_choice_stays_below_all_others() -> None:
    assert unscale(torch.tensor(-1.0e9)) < -1.0e9
