"""The losses against their definitions, their masks, and the sums of their pieces."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rollmill.losses.ppo import (
    clipped_surrogate,
    entropy_loss,
    masked_mean,
    masked_sums,
    normalise_advantages,
    policy_gradient_loss,
    ratio_bounds,
    value_loss,
)


def samples(n: int = 64, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "log_prob": torch.randn(n, generator=g) - 1.0,
        "behaviour_log_prob": torch.randn(n, generator=g) - 1.0,
        "advantage": torch.randn(n, generator=g),
        "value": torch.randn(n, generator=g),
        "target": torch.randn(n, generator=g),
        "valid": torch.rand(n, generator=g) > 0.3,
    }


@pytest.mark.parametrize(("kind", "expected"), [("reciprocal", (1 / 1.2, 1.2)), ("symmetric", (0.8, 1.2))])
def test_ratio_bounds(kind: str, expected: tuple[float, float]) -> None:
    assert ratio_bounds(0.2, kind) == pytest.approx(expected)
    assert ratio_bounds(0.0, kind) == (1.0, 1.0), "where a linear schedule ends"


@pytest.mark.parametrize(
    ("clip_range", "kind", "message"),
    [
        (-0.1, "reciprocal", "clip_range is -0.1; a reciprocal range needs 0 or a positive number"),
        (1.0, "symmetric", "clip_range is 1.0; a symmetric range needs a number from 0 to less than 1"),
        (0.1, "square", "allowed: 'reciprocal', 'symmetric'"),
    ],
)
def test_invalid_ratio_bounds_raise(clip_range: float, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ratio_bounds(clip_range, kind)


def test_clipped_surrogate_equals_a_literal_loop() -> None:
    s = samples()
    low, high = ratio_bounds(0.1, "reciprocal")
    total = clipped = kl = ratios = count = 0.0
    for log_prob, behaviour, advantage, valid in zip(
        *(s[k].tolist() for k in ("log_prob", "behaviour_log_prob", "advantage", "valid")), strict=True
    ):
        if not valid:
            continue
        ratio = math.exp(log_prob - behaviour)
        total += min(ratio * advantage, min(max(ratio, low), high) * advantage)
        clipped += not low <= ratio <= high
        kl += ratio - 1.0 - math.log(ratio)
        ratios += ratio
        count += 1
    result = clipped_surrogate(
        s["log_prob"], s["behaviour_log_prob"], s["advantage"], s["valid"], count, low=low, high=high
    )
    assert result.loss.item() == pytest.approx(-total / count, rel=1e-5)
    assert result.clip_fraction.item() == pytest.approx(clipped / count)
    assert result.approx_kl.item() == pytest.approx(kl / count, rel=1e-4)
    assert result.mean_ratio.item() == pytest.approx(ratios / count, rel=1e-5)


def test_clipping_stops_the_gradient_only_where_it_would_push_further() -> None:
    # Ratios 2 and 1/2 with advantages of both signs; the clipped branch is smaller in the first and last.
    log_prob = torch.tensor([2.0, 2.0, 0.5, 0.5]).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    valid = torch.ones(4, dtype=torch.bool)
    clipped_surrogate(log_prob, torch.zeros(4), advantage, valid, 1.0, low=0.9, high=1.1).loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0])


def test_policy_gradient_on_policy_has_the_gradient_of_the_unclipped_surrogate() -> None:
    s = samples()
    log_prob = s["log_prob"].clone().requires_grad_()
    plain = policy_gradient_loss(log_prob, log_prob.detach(), s["advantage"], s["valid"], 10.0)
    (gradient,) = torch.autograd.grad(plain.loss, log_prob)
    surrogate = clipped_surrogate(log_prob, log_prob.detach(), s["advantage"], s["valid"], 10.0, low=0.0, high=math.inf)
    (expected,) = torch.autograd.grad(surrogate.loss, log_prob)
    torch.testing.assert_close(gradient, expected)
    assert plain.approx_kl.item() == 0.0
    assert plain.clip_fraction.item() == 0.0


def test_value_loss_with_and_without_clipping() -> None:
    value = torch.tensor([1.0, 3.0, -2.0])
    target = torch.tensor([0.0, 1.0, 5.0])
    old = torch.tensor([1.0, 1.0, -1.9])
    valid = torch.tensor([True, True, True])
    assert value_loss(value, target, valid, 3).item() == pytest.approx(0.5 * (1 + 4 + 49) / 3)
    # V_mu + clip(V - V_mu, -0.5, 0.5) is 1, 1.5, -2: the unclipped errors are the larger ones or equal.
    clipped = value_loss(value, target, valid, 3, behaviour_value=old, value_clip=0.5)
    assert clipped.item() == pytest.approx(0.5 * (1 + 4 + 49) / 3)
    # At the target and beyond the clip range: the clipped error is larger.
    eager = value_loss(target, target, valid, 3, behaviour_value=old, value_clip=0.5)
    assert eager.item() == pytest.approx(0.5 * (0.5**2 + 0.0**2 + 6.4**2) / 3)


@pytest.mark.parametrize(("old", "clip"), [(None, 0.2), (torch.zeros(2), 0.0)])
def test_invalid_value_clip_raises(old: Tensor | None, clip: float) -> None:
    valid = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="give a positive clip and behaviour_value"):
        value_loss(torch.zeros(2), torch.zeros(2), valid, 2, behaviour_value=old, value_clip=clip)


def network_loss(
    weight: Tensor, x: Tensor, s: dict[str, Tensor], valid: Tensor, divisor: float, clip: float | None = None
) -> Tensor:
    """All losses of a linear actor-critic, as a learner adds them up."""
    out = x @ weight
    table = out[..., :3].log_softmax(-1)
    log_prob = table[..., 0]
    entropy = -(table.exp() * table).sum(-1)
    surrogate = clipped_surrogate(log_prob, s["behaviour_log_prob"], s["advantage"], valid, divisor, low=0.7, high=1.3)
    return (
        surrogate.loss
        + policy_gradient_loss(log_prob, s["behaviour_log_prob"], s["advantage"], valid, divisor).loss
        + 0.5 * value_loss(out[..., 3], s["target"], valid, divisor, behaviour_value=s["value"], value_clip=clip)
        + 0.01 * entropy_loss(entropy, valid, divisor)
    )


def test_pieces_of_a_minibatch_add_up_to_its_gradient() -> None:
    s = samples(96)
    g = torch.Generator().manual_seed(5)
    x = torch.randn(96, 7, generator=g, dtype=torch.float64)
    s = {k: v.double() if v.is_floating_point() else v for k, v in s.items()}
    weight = torch.randn(7, 4, generator=g, dtype=torch.float64, requires_grad=True)
    divisor = float(s["valid"].sum())
    (whole,) = torch.autograd.grad(network_loss(weight, x, s, s["valid"], divisor), weight)
    pieces = torch.zeros_like(whole)
    for index in torch.arange(96).split(17):
        part = {k: v[index] for k, v in s.items()}
        pieces += torch.autograd.grad(network_loss(weight, x[index], part, part["valid"], divisor), weight)[0]
    torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_mask_has_the_gradient_of_leaving_the_samples_out(clip: float | None) -> None:
    s = samples(40)
    x = torch.randn(40, 7, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(7, 4, generator=torch.Generator().manual_seed(2), requires_grad=True)
    valid = s["valid"]
    count = float(valid.sum())
    kept = {k: v[valid] for k, v in s.items()}
    (expected,) = torch.autograd.grad(network_loss(weight, x[valid], kept, kept["valid"], count, clip), weight)
    poisoned = {k: torch.where(valid, v, torch.nan) if v.is_floating_point() else v for k, v in s.items()}
    (masked,) = torch.autograd.grad(network_loss(weight, x, poisoned, valid, count, clip), weight)
    torch.testing.assert_close(masked, expected, rtol=1e-5, atol=1e-6)


def test_normalised_advantages_of_pieces_with_shared_sums() -> None:
    s = samples(50)
    advantage, valid = s["advantage"] * 7.0 + 1000.0, s["valid"]
    kept = advantage[valid].double().numpy()
    expected = (kept - kept.mean()) / kept.std(ddof=1)
    whole = normalise_advantages(advantage, valid)
    np.testing.assert_allclose(whole[valid].numpy(), expected, atol=2e-5)
    assert (whole[~valid] == 0).all()
    sums = masked_sums(advantage[:20], valid[:20]) + masked_sums(advantage[20:], valid[20:])
    pieces = [
        normalise_advantages(a, v, sums=sums) for a, v in ((advantage[:20], valid[:20]), (advantage[20:], valid[20:]))
    ]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-6, atol=1e-6)


def test_normalised_advantages_of_tasks() -> None:
    s, of_task = samples(50), torch.arange(50) % 3
    advantage, valid = s["advantage"] * 10.0**of_task + of_task, s["valid"]
    task = nn.functional.one_hot(of_task).float()
    whole = normalise_advantages(advantage, valid, task=task)
    for each in range(3):
        own = of_task == each
        torch.testing.assert_close(whole[own], normalise_advantages(advantage[own], valid[own]), rtol=1e-4, atol=1e-5)
    sums = masked_sums(advantage[:20], valid[:20], task[:20]) + masked_sums(advantage[20:], valid[20:], task[20:])
    piece = normalise_advantages(advantage[:20], valid[:20], sums=sums, task=task[:20])
    torch.testing.assert_close(piece, whole[:20], rtol=1e-5, atol=1e-6)
    # Sums of a checkpoint that did not tell tasks apart.
    together = normalise_advantages(advantage, valid, sums=masked_sums(advantage, valid), task=task)
    assert torch.equal(together, normalise_advantages(advantage, valid))


def test_a_task_that_the_sums_lack_is_normalised_with_all() -> None:
    advantage, valid = torch.tensor([1.0, 3.0, 8.0]), torch.ones(3, dtype=torch.bool)
    task = nn.functional.one_hot(torch.tensor([0, 0, 1])).float()
    sums = masked_sums(advantage[:2], valid[:2], task[:2])
    scaled = normalise_advantages(advantage, valid, sums=sums, task=task)
    torch.testing.assert_close(scaled, (advantage - 2.0) / 2**0.5)


@pytest.mark.parametrize("count", [0, 1])
def test_normalised_advantages_of_too_few_samples_are_zero(count: int) -> None:
    valid = torch.arange(5) < count
    assert (normalise_advantages(torch.full((5,), 3.0), valid) == 0).all()


def test_masked_mean_ignores_nan_and_gives_it_no_gradient() -> None:
    x = torch.tensor([1.0, torch.nan, 3.0], requires_grad=True)
    mean = masked_mean(x, torch.tensor([True, False, True]), 2)
    mean.backward()
    assert mean.item() == 2.0
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 0.0, 0.5]
