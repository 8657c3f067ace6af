"""The bandit against literal formulas, and on a problem whose solution is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollmill.pbt.bandit import GaussianProcess, Observation, Scale, suggested
from rollmill.pbt.config import PbtConfig

NAMES = ("learning_rate", "discount")


def config(**limits: object) -> PbtConfig:
    return PbtConfig(mutate=(*NAMES, "entropy_coef", "adam_beta1"), limits=limits)


@pytest.mark.parametrize(
    ("name", "initial", "limits", "low", "high"),
    [
        ("learning_rate", 1e-3, None, 1e-4, 1e-2),
        ("learning_rate", 1e-3, "1e-5,1", 1e-5, 1.0),
        ("discount", 0.99, None, 0.999, 0.9),
        ("adam_beta1", 0.9, "0.5,0.99", 0.99, 0.5),
        ("entropy_coef", 0.0, None, 0.0, 0.0),
        ("entropy_coef", 0.01, "0,0.1", 0.0, 0.1),
    ],
)
def test_a_scale_has_its_ends_at_its_limits(
    name: str, initial: float, limits: str | None, low: float, high: float
) -> None:
    scale = Scale(name, [initial], config(**({} if limits is None else {name: limits})))
    assert scale.from_unit(0.0) == pytest.approx(low)
    assert scale.from_unit(1.0) == pytest.approx(high)
    if low == high:
        return
    for place in (0.0, 0.3, 1.0):
        assert scale.to_unit(scale.from_unit(place)) == pytest.approx(place, abs=1e-9)


def test_a_weight_below_zero_keeps_its_sign() -> None:
    scale = Scale("reward_weight.energy", [-2.0], PbtConfig())
    ends = sorted((scale.from_unit(0.0), scale.from_unit(1.0)))
    assert ends == [pytest.approx(-20.0), pytest.approx(-0.2)]
    assert scale.from_unit(scale.to_unit(-2.0)) == pytest.approx(-2.0)


@pytest.mark.parametrize(
    ("name", "initial", "low", "high"),
    [
        ("learning_rate", [1e-3, 1e-5, 1e-4], 1e-6, 1e-2),
        ("discount", [0.99, 0.999], 0.9999, 0.9),
        ("reward_weight.energy", [-1.0, -2.0], -0.1, -20.0),
    ],
)
def test_the_range_has_room_for_the_values_of_all_policies(
    name: str, initial: list[float], low: float, high: float
) -> None:
    scale = Scale(name, initial, PbtConfig())
    ends = [scale.from_unit(0.0), scale.from_unit(1.0)]
    assert sorted(ends) == pytest.approx(sorted((low, high)))
    for value in initial:
        assert scale.from_unit(scale.to_unit(value)) == pytest.approx(value)


def test_positive_numbers_are_scaled_by_their_logarithm() -> None:
    scale = Scale("learning_rate", [1e-3], config())
    assert scale.from_unit(0.5) == pytest.approx(1e-3)
    assert Scale("discount", [0.99], config()).from_unit(0.5) == pytest.approx(0.99)


def test_the_process_is_the_literal_one() -> None:
    random = np.random.default_rng(0)
    points, times, gains = random.random((7, 2)), np.arange(7.0), random.normal(size=7)
    length, forgetting, noise = 0.4, 0.1, 0.1
    process = GaussianProcess(points, times, gains, length=length, forgetting=forgetting, noise=noise)

    def kernel(x: np.ndarray, t: float, y: np.ndarray, u: float) -> float:
        apart = sum((float(a) - float(b)) ** 2 for a, b in zip(x, y, strict=True))
        return math.exp(-apart / (2 * length**2)) * (1 - forgetting) ** (abs(t - u) / 2)

    def row(x: np.ndarray, t: float) -> np.ndarray:
        return np.array([kernel(x, t, y, u) for y, u in zip(points, times, strict=True)])

    whole = np.array([row(x, t) for x, t in zip(points, times, strict=True)]) + noise * np.eye(7)
    standard = (gains - gains.mean()) / gains.std()
    asked = random.random((5, 2))
    mean, deviation = process.predict(asked, 9.0)
    for place, x in enumerate(asked):
        to_known = row(x, 9.0)
        expected = gains.mean() + gains.std() * to_known @ np.linalg.inv(whole) @ standard
        variance = 1.0 - to_known @ np.linalg.inv(whole) @ to_known
        assert mean[place] == pytest.approx(expected, rel=1e-9)
        assert deviation[place] == pytest.approx(gains.std() * math.sqrt(variance), rel=1e-6)
    sign, log_determinant = np.linalg.slogdet(whole)
    likelihood = -0.5 * (standard @ np.linalg.inv(whole) @ standard + log_determinant + 7 * math.log(2 * math.pi))
    assert sign == 1
    assert process.log_likelihood == pytest.approx(likelihood)


def test_equal_gains_are_no_obstacle() -> None:
    process = GaussianProcess.fitted(np.random.default_rng(0).random((4, 2)), np.arange(4.0), np.ones(4))
    mean, deviation = process.predict(np.full((1, 2), 0.5), 5.0)
    assert mean[0] == pytest.approx(1.0)
    assert np.isfinite(deviation).all()


def test_it_finds_the_best_numbers() -> None:
    initial, random = {"learning_rate": 1e-3, "discount": 0.99}, np.random.default_rng(1)
    observations: list[Observation] = []
    for event in range(40):
        numbers = suggested(observations, [initial], event, config(), random)
        assert 1e-4 <= numbers["learning_rate"] <= 1e-2
        assert 0.9 <= numbers["discount"] <= 0.999
        rate, horizon = math.log10(numbers["learning_rate"]), math.log10(1 - numbers["discount"])
        gain = -((rate + 2.5) ** 2) - (horizon + 1.5) ** 2
        observations.append(Observation(event, numbers, gain + 0.02 * float(random.normal())))
    late = observations[-10:]
    assert np.mean([each.gain for each in late]) > -0.15
    assert np.mean([each.gain for each in observations[:5]]) < np.mean([each.gain for each in late])


def test_little_is_known_at_first() -> None:
    initial = {"learning_rate": 1e-3, "discount": 0.99}
    drawn = [suggested([], [initial], 0, config(), np.random.default_rng(seed)) for seed in range(200)]
    rates = np.log10([each["learning_rate"] for each in drawn])
    assert rates.min() < -3.8
    assert rates.max() > -2.2


def test_what_was_seen_with_fewer_numbers_is_left_out() -> None:
    initial, random = {"learning_rate": 1e-3, "discount": 0.99}, np.random.default_rng(1)
    old = [Observation(event, {"learning_rate": 1e-3}, 1.0) for event in range(20)]
    assert suggested(old, [initial], 20, config(), random).keys() == initial.keys()
