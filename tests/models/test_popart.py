"""PopArt: statistics of returns for each task, and values that stay when these change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rollmill.models.actor_critic import ActorCritic
from rollmill.models.config import ModelConfig
from rollmill.models.popart import PopArt
from rollmill.specs import TASK, ActionSpec, ArraySpec, CategoricalHead

TASKS = 3


def layer(tasks: int = TASKS, *, rate: float = 1e-5) -> PopArt:
    torch.manual_seed(0)
    return PopArt(nn.Linear(8, tasks), rate=rate)


def one_hot(tasks: Tensor) -> Tensor:
    return nn.functional.one_hot(tasks, TASKS).float()


def test_values_stay_when_the_statistics_change() -> None:
    popart, features = layer(), torch.randn(64, 8)
    tasks = torch.arange(64) % TASKS
    for scale in (1.0, 1e4, 1e-2):
        before = popart(features, one_hot(tasks))
        popart.update(torch.randn(64).double() * scale + 7 * scale, tasks)
        after = popart(features, one_hot(tasks))
        # In float32 a value is as exact as the largest of the statistics that it is made with.
        largest = max(1.0, popart.scale.max().item(), popart.shift.abs().max().item())
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6 * largest)


def test_statistics_are_those_of_each_task() -> None:
    popart = layer()
    rng = np.random.default_rng(1)
    returns, tasks = rng.normal(size=(20, 50)) * 30 + 5, rng.integers(0, TASKS, (20, 50))
    returns[tasks == 1] *= 1000
    for batch, which in zip(returns, tasks, strict=True):
        popart.update(torch.tensor(batch), torch.tensor(which))
    for task in range(TASKS):
        own = returns[tasks == task]
        # They begin as if a hundred returns of mean 0 and deviation 1 had been seen.
        mean, square = own.sum() / (len(own) + 100), (np.square(own).sum() + 100) / (len(own) + 100)
        assert popart.count[task] == len(own)
        assert float(popart.shift[task]) == pytest.approx(mean, rel=1e-5)
        assert float(popart.scale[task]) == pytest.approx(math.sqrt(square - mean**2), rel=1e-5)


def test_old_returns_are_forgotten() -> None:
    popart, rng = layer(1, rate=1e-3), np.random.default_rng(2)
    for mean in (0.0, 500.0):
        for _ in range(300):
            popart.update(torch.tensor(rng.normal(mean, 2.0, 100)))
    assert float(popart.shift[0]) == pytest.approx(500.0, abs=0.5)
    assert float(popart.scale[0]) == pytest.approx(2.0, abs=0.2)


def test_a_task_without_samples_keeps_its_statistics() -> None:
    popart = layer()
    popart.update(torch.tensor([3.0, 5.0]), torch.tensor([0, 0]))
    first = popart.shift[0].item(), popart.scale[0].item()
    popart.update(torch.tensor([100.0, 300.0]), torch.tensor([2, 2]))
    assert (popart.shift[0].item(), popart.scale[0].item()) == first
    assert (popart.shift[1].item(), popart.scale[1].item()) == (0.0, 1.0)
    assert popart.count.tolist() == [2.0, 0.0, 2.0]


def test_equal_returns_do_not_make_weights_huge() -> None:
    # A first batch in which no reward came must not make the first later error a thousand times too large.
    popart = layer(1)
    largest = popart.output.weight.abs().max().item()
    popart.update(torch.zeros(1000))
    assert popart.output.weight.abs().max().item() < 4 * largest
    for _ in range(10_000):
        popart.update(torch.zeros(1000))
    assert popart.scale.item() == pytest.approx(1e-4)
    assert torch.isfinite(popart.output.weight).all()


def test_ranks_merge_their_batches() -> None:
    whole, half = layer(1), layer(1)
    returns = torch.randn(100).double() * 3 + 1
    whole.update(returns)
    others = torch.stack([torch.ones(50).sum(), returns[50:].sum(), returns[50:].square().sum()]).double()[:, None]
    half.update(returns[:50], sum_over_ranks=lambda own: own + others)
    torch.testing.assert_close(half.shift, whole.shift)
    torch.testing.assert_close(half.scale, whole.scale)


def binary_regression(step_size: float, *, keeps_values: bool, seed: int) -> float:
    """The experiment of van Hasselt et al. (2016, section 2.5, "Binary regression experiments").

    The input is a number's 16 bits, the target the number: one of 0..1,023, but each 1,000th time 65,535. The network
    has three hidden layers of 10 tanh units, and learns from each sample once, by SGD on normalised errors.

    Returns:
        Root mean squared error of the first 100 ordinary samples after each large one, each before it is learned from.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    body = nn.Sequential(*(m for a, b in [(16, 10), (10, 10), (10, 10)] for m in (nn.Linear(a, b), nn.Tanh())))
    popart = PopArt(nn.Linear(10, 1), rate=0.01)
    optimiser = torch.optim.SGD([*body.parameters(), *popart.output.parameters()], lr=step_size)
    errors = []
    for step in range(3000):
        number = 65_535 if step % 1000 == 999 else int(rng.integers(0, 1024))
        bits = torch.tensor([number >> bit & 1 for bit in range(16)]).float()[None]
        target = torch.tensor([float(number)])
        if step >= 1000 and step % 1000 < 100:
            errors.append((popart(body(bits)).item() - number) ** 2)
        kept = {name: value.clone() for name, value in popart.output.state_dict().items()}
        popart.update(target)
        if not keeps_values:
            popart.output.load_state_dict(kept)
        loss = ((popart(body(bits)) - target) * popart.precision(None, target)).square().mean() / 2
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return math.sqrt(np.mean(errors))


@pytest.mark.slow
def test_ordinary_samples_survive_large_ones_as_published() -> None:
    # Published (figure 1, each method with its best step size): after a large target, normalised targets alone lose
    # what was learned of ordinary ones, which keeping the values prevents.
    kept = binary_regression(0.003, keeps_values=True, seed=0)
    lost = min(binary_regression(step_size, keeps_values=False, seed=0) for step_size in (0.003, 0.001))
    assert kept < 0.67 * lost


def network(**changes: Any) -> ActorCritic:
    torch.manual_seed(0)
    observation = {
        "obs": ArraySpec(shape=(5,), dtype="float32"),
        TASK: ArraySpec(shape=(TASKS,), dtype="float32", low=0, high=1, one_hot=True),
    }
    action = ActionSpec(heads=(CategoricalHead(n=4),), structure="discrete")
    return ActorCritic(observation, action, ModelConfig(normalise_returns="popart", **changes))


def test_a_network_has_a_value_for_each_task() -> None:
    model, rows = network(), torch.randn(6, 5)
    tasks = torch.tensor([0, 1, 2, 0, 1, 2])
    seen = {"obs": rows, TASK: one_hot(tasks)}
    model.update_value_normaliser(torch.tensor([1e3, 3e3, -5.0, 5.0]), tasks=torch.tensor([0, 0, 2, 2]))
    scale, popart = model.value_scale(seen, model(seen).value), model.heads.popart
    assert scale is not None
    assert popart is not None
    assert popart.scale[0] > 100 > 2 > popart.scale[2] > popart.scale[1] == 1.0
    torch.testing.assert_close(scale, (1 / popart.scale)[tasks])
    # The actor does not see the task, the critic's output does.
    same = {"obs": rows[:1].expand(TASKS, 5), TASK: torch.eye(TASKS)}
    output = model(same)
    assert output.params.std(0).max() < 1e-6
    assert len(set(output.value.tolist())) == TASKS


def test_a_network_normalises_the_observations_of_each_task() -> None:
    model, tasks = network(normalise_observations=True), torch.arange(60) % TASKS
    seen = {"obs": torch.randn(60, 5) * 1000.0 ** tasks[:, None], TASK: one_hot(tasks)}
    assert model.normalised_entries == ("obs", TASK)
    model.update_normaliser(seen)
    normaliser = model.normaliser
    assert normaliser is not None
    for task in range(TASKS):
        assert normaliser(seen)["obs"][tasks == task].std() == pytest.approx(1.0, rel=0.02)
    whole = model.unroll({name: x.view(4, 15, -1) for name, x in seen.items()}).params
    torch.testing.assert_close(whole.flatten(0, 1), model(seen).params)


def test_unrolling_gives_the_values_of_single_steps() -> None:
    model, tasks = network(), torch.tensor([2, 0])
    model.update_value_normaliser(torch.tensor([50.0, 70.0, 1.0, 2.0]), tasks=torch.tensor([2, 2, 0, 0]))
    seen = {"obs": torch.randn(4, 2, 5), TASK: one_hot(tasks).expand(4, 2, TASKS)}
    whole = model.unroll(seen).value
    steps = torch.stack([model({name: x[t] for name, x in seen.items()}).value for t in range(4)])
    torch.testing.assert_close(whole, steps)


def test_the_task_is_observed_if_asked_for() -> None:
    same = {"obs": torch.ones(TASKS, 5), TASK: torch.eye(TASKS)}
    assert network(observe_task=True)(same).params.std(0).max() > 1e-4


def test_a_critic_of_its_own_has_values_of_tasks_too() -> None:
    same = {"obs": torch.ones(TASKS, 5), TASK: torch.eye(TASKS)}
    assert len(set(network(shared=False)(same).value.tolist())) == TASKS
