"""Action distributions against torch.distributions, frequencies against probabilities, and masks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from rollmill.models.distributions import ActionDistribution
from rollmill.models.errors import UnfitModelError
from rollmill.specs import ActionSpec, BoxHead, CategoricalHead

BOX = BoxHead(low=(-1.0, 0.0, -3.0), high=(1.0, 2.0, 3.0), shape=(3,))
SPECS = {
    "discrete": ActionSpec(heads=(CategoricalHead(n=5),), structure="discrete"),
    "multidiscrete": ActionSpec(
        heads=(CategoricalHead(n=3), CategoricalHead(n=2), CategoricalHead(n=7)), structure="multidiscrete"
    ),
    "multibinary": ActionSpec(heads=(CategoricalHead(n=2),) * 3, structure="multibinary"),
    "blocks": ActionSpec(
        heads=(*(CategoricalHead(n=n) for n in (3, 2, 2)), BOX, *(CategoricalHead(n=n) for n in (4, 4, 2))),
        structure="tuple",
        components=(("multidiscrete", 3), ("box", 1), ("multidiscrete", 3)),
    ),
    "box": ActionSpec(heads=(BOX,), structure="box"),
    "hybrid": ActionSpec(
        heads=(CategoricalHead(n=3), BOX, CategoricalHead(n=4)),
        structure="tuple",
        components=(("discrete", 1), ("box", 1), ("discrete", 1)),
    ),
}


def random_params(distribution: ActionDistribution, *leading: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, distribution.params_size, generator=g)


def random_mask(spec: ActionSpec, *leading: int, seed: int = 0) -> Tensor:
    mask = torch.rand(*leading, spec.mask_size, generator=torch.Generator().manual_seed(seed)) < 0.5
    begin = 0
    for size in spec.categorical_sizes:
        mask[..., begin] |= ~mask[..., begin : begin + size].any(-1)
        begin += size
    return mask


def reference(
    spec: ActionSpec, params: Tensor, mask: Tensor | None = None
) -> tuple[list[Categorical], Independent | None]:
    """The same distribution from torch.distributions, masked by -inf."""
    logits = params[..., : spec.mask_size].double()
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    heads = (
        [Categorical(logits=head) for head in logits.split(list(spec.categorical_sizes), -1)] if spec.mask_size else []
    )
    k = spec.num_continuous
    if not k:
        return heads, None
    mean, log_std = params[..., -2 * k : -k].double(), params[..., -k:].double()
    return heads, Independent(Normal(mean, log_std.exp()), 1)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("leading", [(6,), (4, 3)])
def test_equals_torch_distributions(name: str, masked: bool, leading: tuple[int, ...]) -> None:
    spec = SPECS[name]
    distribution = ActionDistribution(spec)
    params = random_params(distribution, *leading)
    mask = random_mask(spec, *leading) if masked and spec.mask_size else None
    discrete, continuous, sampled = distribution.sample_with_log_prob(params, mask, torch.Generator().manual_seed(3))
    heads, normal = reference(spec, params, mask)
    log_prob = torch.zeros(leading, dtype=torch.float64)
    entropy = log_prob.clone()
    if heads:
        assert discrete is not None
        assert discrete.dtype == torch.int32
        assert discrete.shape == (*leading, spec.num_discrete)
        for column, head in enumerate(heads):
            log_prob += head.log_prob(discrete[..., column])
            entropy -= torch.special.xlogy(head.probs, head.probs).sum(-1)
    else:
        assert discrete is None
    if normal is not None:
        assert continuous is not None
        assert continuous.dtype == torch.float32
        log_prob += normal.log_prob(continuous.double())
        entropy += normal.entropy()
    else:
        assert continuous is None
    close = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(distribution.log_prob(params, discrete, continuous, mask), log_prob, **close)
    evaluation = distribution.evaluate(params, discrete, continuous, mask)
    torch.testing.assert_close(evaluation.log_prob, log_prob, **close)
    torch.testing.assert_close(evaluation.entropy, entropy, **close)
    torch.testing.assert_close(sampled, log_prob, **close)


@pytest.mark.parametrize("source", ["generator", "uniform", "noise"])
def test_frequencies_are_the_probabilities(source: str) -> None:
    spec = SPECS["hybrid"]
    distribution = ActionDistribution(spec)
    n = 40_000
    params = random_params(distribution, 1).expand(n, -1)
    mask = torch.tensor([True, False, True, True, True, True, False]).expand(n, -1)
    g = torch.Generator().manual_seed(11)
    uniform = torch.rand(n, distribution.noise_size, generator=g) if source == "uniform" else None
    if source == "noise":
        noise = torch.rand(n, 7, generator=g), torch.randn(n, 3, generator=g)
        discrete, continuous, log_prob = distribution.sample_from_noise(params, mask, *noise)
        torch.testing.assert_close(log_prob, distribution.log_prob(params, discrete, continuous, mask))
    else:
        discrete, continuous, _ = distribution.sample_with_log_prob(params, mask, g, uniform=uniform)
    assert discrete is not None
    assert continuous is not None
    heads, normal = reference(spec, params[:1], mask[:1])
    for column, head in enumerate(heads):
        p = head.probs[0].numpy()
        frequency = np.bincount(discrete[:, column].numpy(), minlength=len(p)) / n
        error = np.sqrt(p * (1 - p) / n)
        assert (np.abs(frequency - p) <= 4.5 * error).all()
    assert normal is not None
    std = normal.base_dist.stddev[0]
    assert ((continuous.mean(0) - normal.mean[0]).abs() < 4.5 * std / math.sqrt(n)).all()
    assert ((continuous.std(0) / std - 1.0).abs() < 4.5 / math.sqrt(2 * n)).all()
    # Independent heads: the correlation of two is within its standard error of 0.
    correlation = np.corrcoef(discrete[:, 0].numpy(), continuous[:, 0].numpy())[0, 1]
    assert abs(correlation) < 4.5 / math.sqrt(n)


def test_given_noise_makes_a_row_independent_of_its_batch() -> None:
    distribution = ActionDistribution(SPECS["hybrid"])
    params = random_params(distribution, 8)
    uniform = torch.rand(8, distribution.noise_size, generator=torch.Generator().manual_seed(0))
    before = uniform.clone()
    discrete, continuous, _ = distribution.sample_with_log_prob(params, uniform=uniform)
    order = torch.tensor([5, 0, 7])
    again = distribution.sample_with_log_prob(params[order], uniform=uniform[order])
    assert discrete is not None
    assert continuous is not None
    assert again[0] is not None
    assert again[1] is not None
    assert torch.equal(again[0], discrete[order])
    assert torch.equal(again[1], continuous[order])
    assert torch.equal(uniform, before)


def test_the_same_generator_gives_the_same_actions() -> None:
    distribution = ActionDistribution(SPECS["discrete"])
    params = random_params(distribution, 100)
    first = distribution.sample_with_log_prob(params, None, torch.Generator().manual_seed(4)).discrete
    second = distribution.sample_with_log_prob(params, None, torch.Generator().manual_seed(4)).discrete
    other = distribution.sample_with_log_prob(params, None, torch.Generator().manual_seed(5)).discrete
    assert first is not None
    assert second is not None
    assert other is not None
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_extreme_noise_never_selects_a_forbidden_choice(dtype: torch.dtype) -> None:
    # Uniform numbers of exactly 0, and the forbidden choices' logits far above the allowed one's.
    distribution = ActionDistribution(SPECS["discrete"])
    params = torch.tensor([[50.0, 50.0, -50.0, 50.0, 50.0]])
    mask = torch.tensor([[False, False, True, False, False]]).to(dtype)
    for uniform in (torch.zeros(1, 5), torch.tensor([[1 - 2**-24, 1 - 2**-24, 0.0, 1 - 2**-24, 1 - 2**-24]])):
        discrete = distribution.sample_with_log_prob(params, mask, uniform=uniform).discrete
        assert discrete is not None
        assert discrete.tolist() == [[2]]
    mode, _ = distribution.mode(params, mask)
    assert mode is not None
    assert mode.tolist() == [[2]]


@pytest.mark.parametrize("value", [-1e30, -1e9, math.nan])
def test_a_network_that_diverges_chooses_what_is_allowed(value: float) -> None:
    distribution = ActionDistribution(SPECS["multidiscrete"])
    mask = random_mask(SPECS["multidiscrete"], 50)
    params = torch.full_like(random_params(distribution, 50), value)
    chosen = [
        distribution.sample_with_log_prob(params, mask).discrete,
        distribution.mode(params, mask)[0],
    ]
    for discrete in chosen:
        assert discrete is not None
        first = 0
        for head, size in enumerate(SPECS["multidiscrete"].categorical_sizes):
            assert mask[:, first : first + size].gather(1, discrete[:, head : head + 1].long()).all()
            first += size


def test_forbidden_choices_get_no_gradient() -> None:
    spec = SPECS["multidiscrete"]
    distribution = ActionDistribution(spec)
    params = random_params(distribution, 10).requires_grad_()
    mask = random_mask(spec, 10)
    discrete = distribution.sample_with_log_prob(params, mask).discrete
    result = distribution.evaluate(params, discrete, None, mask)
    (result.log_prob.sum() + result.entropy.sum()).backward()
    assert params.grad is not None
    assert params.grad.isfinite().all()
    assert (params.grad[~mask] == 0).all()
    assert (params.grad[mask] != 0).any()


def test_a_fully_forbidden_head_is_unconstrained() -> None:
    distribution = ActionDistribution(SPECS["multidiscrete"])
    params, actions = random_params(distribution, 4), torch.zeros(4, 3, dtype=torch.int32)
    mask = torch.ones(4, 12, dtype=torch.bool)
    expected = distribution.evaluate(params, actions, None, mask)
    mask[:, 3:5] = False
    torch.testing.assert_close(distribution.evaluate(params, actions, None, mask), expected)
    single = ActionDistribution(SPECS["discrete"])
    params = random_params(single, 4)
    nothing = torch.zeros(4, 5, dtype=torch.bool)
    discrete = single.sample_with_log_prob(params, nothing).discrete
    assert single.log_prob(params, discrete, None, nothing).isfinite().all()
    torch.testing.assert_close(
        single.evaluate(params, discrete, None, nothing), single.evaluate(params, discrete, None)
    )


def test_mode() -> None:
    distribution = ActionDistribution(SPECS["hybrid"])
    params = random_params(distribution, 6)
    discrete, continuous = distribution.mode(params)
    assert discrete is not None
    assert continuous is not None
    assert torch.equal(discrete.long(), torch.stack([params[:, :3].argmax(-1), params[:, 3:7].argmax(-1)], -1))
    assert torch.equal(continuous, params[:, 7:10])


def test_squashed_density_is_that_of_the_squashed_action() -> None:
    distribution = ActionDistribution(SPECS["box"], squash=True)
    params = random_params(distribution, 50) * 0.5
    before_tanh = distribution.sample_with_log_prob(params, None, torch.Generator().manual_seed(0)).continuous
    assert before_tanh is not None
    _, normal = reference(SPECS["box"], params)
    assert normal is not None
    squashed = TransformedDistribution(normal.base_dist, [TanhTransform()])
    expected = squashed.log_prob(before_tanh.double().tanh()).sum(-1)
    actual = distribution.log_prob(params, None, before_tanh)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, check_dtype=False)


def test_squashed_density_is_finite_far_out() -> None:
    # tanh(40) is exactly 1 in float32; log(1 - tanh(40)^2) is 2 log 2 - 80.
    distribution = ActionDistribution(SPECS["box"], squash=True)
    params = torch.zeros(1, 6)
    action = torch.full((1, 3), 40.0)
    expected = 3 * (-0.5 * 40.0**2 - 0.5 * math.log(2 * math.pi) - (2 * math.log(2) - 80.0))
    assert distribution.log_prob(params, None, action).item() == pytest.approx(expected, rel=1e-6)


def test_squashing_needs_bounds() -> None:
    head = BoxHead(low=(-math.inf,), high=(1.0,), shape=(1,))
    spec = ActionSpec(heads=(CategoricalHead(n=2), head), structure="tuple")
    with pytest.raises(UnfitModelError, match=r"but action head 1 has low=\(-inf,\).*squash_actions=False"):
        ActionDistribution(spec, squash=True)


def test_bfloat16_parameters_are_computed_in_float32() -> None:
    distribution = ActionDistribution(SPECS["hybrid"])
    params = random_params(distribution, 6).bfloat16()
    discrete, continuous, _ = distribution.sample_with_log_prob(params, None, torch.Generator().manual_seed(0))
    low = distribution.evaluate(params, discrete, continuous)
    high = distribution.evaluate(params.float(), discrete, continuous)
    assert low.log_prob.dtype == low.entropy.dtype == torch.float32
    assert torch.equal(low.log_prob, high.log_prob)
    assert torch.equal(low.entropy, high.entropy)


def test_samples_are_differentiable_in_mean_and_deviation() -> None:
    distribution = ActionDistribution(SPECS["box"])
    params = random_params(distribution, 2).requires_grad_()
    action = distribution.sample_with_log_prob(params, None, torch.Generator().manual_seed(0)).continuous
    assert action is not None
    action.sum().backward()
    assert params.grad is not None
    assert (params.grad[:, :3] == 1.0).all()
    torch.testing.assert_close(params.grad[:, 3:], (action - params[:, :3]).detach())
