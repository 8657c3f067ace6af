from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rollmill.learning.config import Adam, OptimiserConfig, RMSprop
from rollmill.learning.optimisers import (
    NonFiniteGradientError,
    NonFiniteGuard,
    clip_grad_norm_,
    load_optimiser_state,
    make_optimiser,
    optimiser_state,
    set_learning_rate,
)
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.specs import ActionSpec, ArraySpec, CategoricalHead
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KINDS = ["adam", "adamw", "rmsprop"]
SHAPES = [(4, 3, 2, 2), (4,), (5, 4), ()]

Arrays = list[NDArray[np.float64]]


def make_params(device: str = "cpu", seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in SHAPES]


def set_grads(params: list[nn.Parameter], seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        # In the parameter's memory format, as after a backward pass (tested below).
        p.grad = torch.empty_like(p).copy_(scale * torch.randn(p.shape, generator=generator))


def method_of(kind: Any) -> Adam | RMSprop:
    return RMSprop() if kind == "rmsprop" else Adam(kind=kind, eps=1e-3)


def literal_adam(params: Arrays, grads: list[Arrays], rates: list[float], config: OptimiserConfig) -> Arrays:
    """Kingma & Ba 2015, algorithm 1; weight decay as L2 penalty, or decoupled (Loshchilov & Hutter 2019, alg. 2)."""
    method, decay = config.method, config.weight_decay
    assert isinstance(method, Adam)
    beta1, beta2 = method.betas
    result = []
    for i, initial in enumerate(params):
        p, m, v = initial.copy(), np.zeros_like(initial), np.zeros_like(initial)
        for t, rate in enumerate(rates, start=1):
            g = grads[t - 1][i]
            if method.kind == "adam":
                g = g + decay * p
            else:
                p = p - rate * decay * p
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g**2
            p = p - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + method.eps)
        result.append(p)
    return result


def literal_rmsprop(params: Arrays, grads: list[Arrays], rates: list[float], config: OptimiserConfig) -> Arrays:
    """RMSprop with epsilon outside the root and second moments that start at 0."""
    result, method = [], config.method
    assert isinstance(method, RMSprop)
    for i, initial in enumerate(params):
        p, v = initial.copy(), np.zeros_like(initial)
        for t, rate in enumerate(rates):
            g = grads[t][i] + config.weight_decay * p
            v = method.alpha * v + (1 - method.alpha) * g**2
            p = p - rate * g / (np.sqrt(v) + method.eps)
        result.append(p)
    return result


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_the_published_formula(kind: Any, weight_decay: float, device: str) -> None:
    config = OptimiserConfig(method=method_of(kind), learning_rate=0.02, weight_decay=weight_decay)
    params = make_params(device)
    start = [p.detach().cpu().double().numpy() for p in params]
    optimiser = make_optimiser(params, config, device)
    rates = [0.02, 0.02, 0.005, 0.04, 0.0]
    grads: list[Arrays] = []
    for t, rate in enumerate(rates):
        set_grads(params, seed=t + 1)
        grads.append([p.grad.cpu().double().numpy() for p in params if p.grad is not None])
        if t > 0:  # the first step must use the configuration's
            set_learning_rate(optimiser, rate)
        optimiser.step()
    literal = literal_rmsprop if kind == "rmsprop" else literal_adam
    for p, expected in zip(params, literal(start, grads, rates, config), strict=True):
        np.testing.assert_allclose(p.detach().cpu().numpy(), expected, rtol=2e-5, atol=2e-6)


def test_adam_is_fused_on_this_cpu() -> None:
    assert make_optimiser(make_params(), OptimiserConfig(), "cpu").param_groups[0]["fused"]


def test_no_parameters_is_an_error() -> None:
    with pytest.raises(ValueError, match="no parameters to optimise"):
        make_optimiser([], OptimiserConfig(), "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_from_a_checkpoint_equals_never_stopping(kind: Any, tmp_path: Path) -> None:
    config = OptimiserConfig(method=method_of(kind), learning_rate=0.01)
    params = make_params()
    optimiser = make_optimiser(params, config, "cpu")

    def train(params: list[nn.Parameter], optimiser: torch.optim.Optimizer, first: int, last: int) -> None:
        for t in range(first, last):
            set_grads(params, seed=t)
            set_learning_rate(optimiser, 0.01 / (t + 1))
            optimiser.step()

    train(params, optimiser, 0, 5)
    store = CheckpointStore(tmp_path, CheckpointConfig())
    store.save({"params": list(map(torch.clone, params)), "optimiser": optimiser_state(optimiser)}, 1)
    train(params, optimiser, 5, 9)

    state = store.load_latest().state
    resumed = [nn.Parameter(p) for p in state["params"]]
    # The saved run's hyperparameters do not override the resumed run's.
    again = make_optimiser(resumed, OptimiserConfig(method=method_of(kind), learning_rate=0.5), "cpu")
    load_optimiser_state(again, state["optimiser"])
    assert again.param_groups[0]["lr"] == 0.5
    train(resumed, again, 5, 9)
    assert all(torch.equal(a, b) for a, b in zip(params, resumed, strict=True))


def test_state_from_before_the_first_step_can_be_loaded() -> None:
    optimiser = make_optimiser(make_params(), OptimiserConfig(), "cpu")
    load_optimiser_state(optimiser, optimiser_state(optimiser))
    assert optimiser.state_dict()["state"] == {}


def test_loading_keeps_a_tensor_learning_rate_the_same_tensor() -> None:
    params = make_params()
    set_grads(params, seed=1)
    optimiser = make_optimiser(params, OptimiserConfig(), "cpu")
    optimiser.step()
    rate = torch.tensor(0.25)  # as on CUDA, where a captured graph reads it
    optimiser.param_groups[0]["lr"] = rate
    load_optimiser_state(optimiser, optimiser_state(optimiser))
    set_learning_rate(optimiser, 0.125)
    assert optimiser.param_groups[0]["lr"] is rate
    assert rate.item() == 0.125


def test_a_parameter_without_a_gradient_has_no_moments_and_needs_none() -> None:
    params, others = make_params(), make_params()
    set_grads(params, seed=1)
    params[1].grad = None
    optimiser, other = (make_optimiser(each, OptimiserConfig(), "cpu") for each in (params, others))
    optimiser.step()
    load_optimiser_state(other, optimiser_state(optimiser))
    assert set(other.state_dict()["state"]) == set(range(len(params))) - {1}


def test_state_of_another_optimiser_or_model_is_refused() -> None:
    params = make_params()
    set_grads(params, seed=1)
    optimiser = make_optimiser(params, OptimiserConfig(), "cpu")
    optimiser.step()
    state = optimiser_state(optimiser)
    with pytest.raises(ValueError, match=r"optimiser is 'adam', this run's is 'rmsprop'.*--learner.optimiser adam"):
        load_optimiser_state(make_optimiser(params, OptimiserConfig(method=RMSprop()), "cpu"), state)
    with pytest.raises(ValueError, match="moments of 4 parameters, this model has 3"):
        load_optimiser_state(make_optimiser(params[:3], OptimiserConfig(), "cpu"), state)
    other = [*params[:2], nn.Parameter(torch.zeros(5, 5)), params[3]]
    with pytest.raises(ValueError, match=r"exp_avg of shape \(5, 4\) for parameter 2, which has shape \(5, 5\)"):
        load_optimiser_state(make_optimiser(other, OptimiserConfig(), "cpu"), state)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 1e4])
@pytest.mark.parametrize("max_norm", [0.5, 4.0])
def test_clipping_equals_torchs(max_norm: float, scale: float, device: str) -> None:
    params = [*make_params(device), nn.Parameter(torch.zeros(3, device=device))]  # the last one has no gradient
    set_grads(params[:-1], seed=3, scale=scale)
    expected = copy.deepcopy(params)
    for p, q in zip(params, expected, strict=True):
        q.grad = None if p.grad is None else p.grad.clone()
    norm = clip_grad_norm_(params, max_norm, NonFiniteGuard(device))
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(expected, max_norm))
    assert norm.shape == ()
    for p, q in zip(params, expected, strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad)


def test_without_a_maximum_the_norm_is_only_measured() -> None:
    params = make_params()
    set_grads(params, seed=3, scale=100.0)
    before = [p.grad.clone() for p in params if p.grad is not None]
    norm = clip_grad_norm_(params, None)
    assert norm.item() == pytest.approx(math.sqrt(sum(float(g.double().square().sum()) for g in before)), rel=1e-5)
    assert all(torch.equal(p.grad, g) for p, g in zip(params, before, strict=True) if p.grad is not None)


def test_clipping_without_gradients_raises() -> None:
    with pytest.raises(ValueError, match=r"call backward\(\) first"):
        clip_grad_norm_(make_params(), 1.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("max_norm", [1.0, None])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_gradient_raises_and_leaves_the_weights_unchanged(
    bad: float, max_norm: float | None, device: str
) -> None:
    params = make_params(device)
    optimiser = make_optimiser(params, OptimiserConfig(), device)
    guard = NonFiniteGuard(device)

    def sgd_step(seed: int, spoil: bool) -> Tensor:
        set_grads(params, seed)
        if spoil:
            assert params[2].grad is not None
            params[2].grad[1, 1] = bad
        norm = clip_grad_norm_(params, max_norm, guard)
        optimiser.step()
        return norm

    sgd_step(1, spoil=False)
    guard.check(lambda: "batch 0")
    assert not torch.isfinite(sgd_step(2, spoil=True))
    assert torch.isfinite(sgd_step(3, spoil=False)), "a later finite step must not hide the failure"
    with pytest.raises(NonFiniteGradientError, match=r"^batch 1; the gradient is not finite.*learner.learning_rate"):
        guard.check(lambda: "batch 1")
    guard.check(lambda: "batch 2")
    moments = [v for state in optimiser.state_dict()["state"].values() for v in state.values()]
    assert all(torch.isfinite(t).all() for t in [*params, *moments])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_no_host_sync_and_a_captured_graph_follows_the_learning_rate(kind: Any) -> None:
    params = make_params("cuda")
    set_grads(params, seed=1)
    optimiser = make_optimiser(params, OptimiserConfig(method=method_of(kind)), "cuda")
    guard = NonFiniteGuard("cuda")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            clip_grad_norm_(params, 1.0, guard)
            optimiser.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a host sync would make the capture fail
        clip_grad_norm_(params, 1.0, guard)
        optimiser.step()
    set_learning_rate(optimiser, 0.0)
    before = [p.detach().clone() for p in params]
    graph.replay()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    set_learning_rate(optimiser, 0.1)
    graph.replay()
    assert not any(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    guard.check(lambda: "batch")


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
@pytest.mark.parametrize("before", [torch.channels_last, torch.contiguous_format])
def test_resume_in_another_memory_format_continues_identically(kind: str, before: torch.memory_format) -> None:
    """Fused kernels read parameters and moments in memory order, whatever their strides."""
    after = torch.contiguous_format if before is torch.channels_last else torch.channels_last
    config = OptimiserConfig(method=method_of(kind), learning_rate=0.1)

    def start(layout: torch.memory_format, values: list[Tensor]) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        params = [nn.Parameter(v.clone(memory_format=layout) if v.dim() == 4 else v.clone()) for v in values]
        return params, make_optimiser(params, config, "cpu")

    values = [p.detach() for p in make_params()]
    params, optimiser = start(before, values)
    set_grads(params, 1)
    optimiser.step()
    state = copy.deepcopy(optimiser_state(optimiser))
    resumed, again = start(after, [p.detach() for p in params])
    load_optimiser_state(again, state)
    for each, of_each in ((params, optimiser), (resumed, again)):
        set_grads(each, 2)
        of_each.step()
    for p, q in zip(params, resumed, strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("shape", [(4, 84, 84), (72, 96, 3)])
def test_gradients_and_moments_have_their_parameters_layout(channels_last: bool, shape: tuple[int, ...]) -> None:
    """Fused kernels on a CPU assume this; another layout would silently permute the gradient."""
    spec = {"obs": ArraySpec(shape=shape, dtype="uint8", low=0, high=255)}
    action = ActionSpec(heads=(CategoricalHead(n=3),), structure="discrete")
    model = make_model(spec, action, ModelConfig(dense_size=32))
    model.set_channels_last(channels_last)
    optimiser = make_optimiser(model.parameters(), OptimiserConfig(), "cpu")
    for _ in range(2):  # a second micro-batch accumulates
        output = model({"obs": torch.randint(0, 256, (3, *shape), dtype=torch.uint8)})
        (output.params.sum() + output.value.sum()).backward()
    optimiser.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.stride() == parameter.stride(), name
        for moment in optimiser.state[parameter].values():
            assert moment.dim() == 0 or moment.stride() == parameter.stride(), name
