"""Exploration: epsilons, noise, and their dependence on the generator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rollmill.algorithms.base import Explore
from rollmill.algorithms.exploration import (
    ActionNoise,
    PinkNoise,
    epsilon_greedy,
    epsilon_of,
    ladder,
    random_choices,
    scheduled_epsilon,
    uniform_actions,
)
from rollmill.algorithms.off_policy_config import DDPGConfig, DQNConfig, TD3Config


def explore(rows: int = 4, num_rows: int = 4, *, steps: int = 10**6, reset: bool = False, seed: int = 0) -> Explore:
    generator = torch.Generator().manual_seed(seed)
    return Explore(steps, 10**6, torch.arange(rows), num_rows, torch.full((rows,), reset), generator)


@pytest.mark.parametrize(("steps", "expected"), [(0, 1.0), (50, 0.55), (100, 0.1), (900, 0.1)])
def test_epsilon_falls_linearly_then_stays_constant(steps: int, expected: float) -> None:
    by_share = DQNConfig(epsilon_end=0.1, epsilon_fraction=0.1)
    by_steps = DQNConfig(epsilon_end=0.1, epsilon_steps=100)
    assert scheduled_epsilon(by_share, steps, 1000) == pytest.approx(expected)
    assert scheduled_epsilon(by_steps, steps, 12345) == pytest.approx(expected)


def test_ladder_equals_ape_x() -> None:
    values = ladder(torch.arange(8), 8, 0.4, 7.0)
    assert values.tolist() == pytest.approx([0.4 ** (1.0 + 7.0 * i / 7.0) for i in range(8)])
    assert ladder(torch.tensor([7, 0]), 8, 0.4, 7.0).tolist() == pytest.approx([0.4**8, 0.4])
    assert ladder(torch.tensor([0]), 1, 0.4, 7.0).tolist() == pytest.approx([0.4])


def test_epsilon_is_one_until_the_random_steps_are_over() -> None:
    config = DQNConfig(epsilon_kind="ladder", random_steps=100)
    assert epsilon_of(config, explore(steps=99)) == 1.0
    epsilons = epsilon_of(config, explore(steps=100))
    assert isinstance(epsilons, Tensor)
    torch.testing.assert_close(epsilons, ladder(torch.arange(4), 4, 0.4, 7.0))
    rungs = torch.tensor([0.0, 3.0, 1.5, 0.0])
    torch.testing.assert_close(epsilon_of(config, explore()._replace(rungs=rungs)), ladder(rungs, 4, 0.4, 7.0))
    assert epsilon_of(DQNConfig(), explore(steps=10**6)) == pytest.approx(0.05)


def test_random_choices_are_uniform_over_allowed_choices() -> None:
    n = 30_000
    allowed = torch.tensor([[True, False, True, True], [False, True, False, False]]).expand(n, 2, 4)
    choice = random_choices(allowed, torch.Generator().manual_seed(0))
    assert (choice[:, 1] == 1).all()
    share = choice[:, 0].bincount(minlength=4) / n
    deviation = math.sqrt(1 / 3 * 2 / 3 / n)
    assert share[1] == 0.0
    assert (share[[0, 2, 3]] - 1 / 3).abs().max() < 4 * deviation


def test_epsilon_greedy_explores_with_each_rows_epsilon() -> None:
    n = 40_000
    epsilon = torch.tensor([0.0, 0.3]).repeat(n)
    greedy = torch.zeros(2 * n, 1, dtype=torch.int64)
    allowed = torch.ones(2 * n, 1, 4, dtype=torch.bool)
    choice = epsilon_greedy(greedy, allowed, epsilon, torch.Generator().manual_seed(0))[:, 0].view(n, 2)
    assert (choice[:, 0] == 0).all()
    expected = 0.3 * 3 / 4
    assert abs((choice[:, 1] != 0).float().mean() - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


def test_gaussian_noise_is_clipped_and_random_steps_are_uniform() -> None:
    noise = ActionNoise(2, DDPGConfig(noise_std=0.5, random_steps=10))
    action = torch.full((10_000, 2), 0.8)
    noisy = noise(action, explore(10_000, 10_000))
    assert noisy.max() == 1.0
    assert noisy.min() < -0.5
    assert (action == 0.8).all()
    again = noise(action, explore(10_000, 10_000))
    assert torch.equal(noisy, again)
    uniform = noise(action, explore(10_000, 10_000, steps=9))
    assert abs(uniform.mean()) < 4 * math.sqrt(1 / 3 / 20_000)
    assert abs(uniform.var() - 1 / 3) < 0.02
    assert -1.0 <= uniform_actions(action, None).min() < -0.99


def test_ornstein_uhlenbeck_stationary_deviation_and_correlation() -> None:
    config = TD3Config(noise_kind="ou", noise_std=0.1, ou_theta=0.2, ou_dt=0.5, random_steps=0)
    noise = ActionNoise(1, config)
    rows = 20_000
    zero = torch.zeros(rows, 1)
    generator = torch.Generator().manual_seed(0)
    step = Explore(0, 1, torch.arange(rows), rows, torch.zeros(rows, dtype=torch.bool), generator)
    for _ in range(100):
        before = noise(zero, step)
    after = noise(zero, step)
    # x' = a x + s e has the variance s^2 / (1 - a^2) and the correlation a.
    a, s = 1.0 - 0.2 * 0.5, 0.1 * math.sqrt(0.5)
    deviation = s / math.sqrt(1.0 - a * a)
    assert after.std().item() == pytest.approx(deviation, rel=4 / math.sqrt(2 * rows))
    correlation = torch.corrcoef(torch.stack([before[:, 0], after[:, 0]]))[0, 1].item()
    assert correlation == pytest.approx(a, abs=4 * (1 - a * a) / math.sqrt(rows))


def test_ornstein_uhlenbeck_is_per_row_and_resets_with_episodes() -> None:
    noise = ActionNoise(1, TD3Config(noise_kind="ou", noise_std=1.0, ou_theta=0.5, ou_dt=0.01, random_steps=0))
    noise(torch.zeros(3, 1), explore(3, 6))
    first = noise.state.clone()
    assert (first[:3] != 0).all()
    assert (first[3:] == 0).all()
    generator = torch.Generator().manual_seed(9)
    normal = torch.randn(2, 1, generator=torch.Generator().manual_seed(9))
    rows, reset = torch.tensor([2, 0]), torch.tensor([False, True])
    given = noise(torch.zeros(2, 1), Explore(10**6, 1, rows, 6, reset, generator))
    expected = torch.tensor([[first[2, 0] * (1 - 0.5 * 0.01)], [0.0]]) + 0.1 * normal
    torch.testing.assert_close(given, expected)
    torch.testing.assert_close(noise.state[rows], expected)
    assert torch.equal(noise.state[1], first[1])
    assert not noise.state_dict()


def test_pink_noise_is_standard_normal_with_a_spectrum_of_one_over_f() -> None:
    rows, steps = 400, 2048
    noise, generator = PinkNoise(1), torch.Generator().manual_seed(0)
    begins = Explore(0, 1, torch.arange(rows), rows, torch.ones(rows, dtype=torch.bool), generator)
    later = begins._replace(reset=torch.zeros(rows, dtype=torch.bool))
    series = torch.stack([noise(later if t else begins)[:, 0] for t in range(steps)])
    # Each step's variance is over independent rows, so it has a known standard error.
    for t in (0, 1, 1000, steps - 1):
        assert series[t].var().item() == pytest.approx(1.0, abs=4 * math.sqrt(2 / rows))
    power = torch.fft.rfft(series, dim=0).abs().square().mean(1)
    frequency = torch.arange(len(power), dtype=torch.float32)
    middle = slice(4, steps // 8)
    slope = torch.linalg.lstsq(
        torch.stack([frequency[middle].log(), torch.ones_like(frequency[middle])], 1), power[middle].log()[:, None]
    ).solution[0, 0]
    assert slope.item() == pytest.approx(-1.0, abs=0.15)


def test_pink_noise_is_per_row_and_resets_with_episodes() -> None:
    noise = PinkNoise(2)
    noise(explore(3, 6))
    first = noise.state.clone()
    generator = torch.Generator().manual_seed(9)
    drawn = torch.randn(2, 2, len(noise.decay), generator=torch.Generator().manual_seed(9))
    rows, reset = torch.tensor([2, 0]), torch.tensor([False, True])
    given = noise(Explore(10**6, 1, rows, 6, reset, generator))
    kept = first[2] * noise.decay + drawn[0] * (1 - noise.decay**2).sqrt()
    torch.testing.assert_close(noise.state[rows], torch.stack([kept, drawn[1]]))
    torch.testing.assert_close(given, torch.stack([kept, drawn[1]]).sum(-1) / math.sqrt(len(noise.decay)))
    assert torch.equal(noise.state[1], first[1])
    assert not noise.state_dict()


def test_pink_noise_is_stationary_also_where_it_begins_within_an_episode() -> None:
    noise, rows = PinkNoise(1), 4000
    given = noise(explore(rows, rows)._replace(reset=torch.zeros(rows, dtype=torch.bool)))
    assert given.var().item() == pytest.approx(1.0, abs=4 * math.sqrt(2 / rows))


def test_td3_adds_pink_noise_if_configured() -> None:
    noise = ActionNoise(2, TD3Config(noise_kind="pink", noise_std=0.1, random_steps=0))
    begins = explore(5000, 5000)._replace(reset=torch.ones(5000, dtype=torch.bool))
    noisy = noise(torch.zeros(5000, 2), begins)
    assert noisy.std().item() == pytest.approx(0.1, rel=4 / math.sqrt(2 * 10_000))
