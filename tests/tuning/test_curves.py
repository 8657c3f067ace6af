"""Curves: interpolation, fitting, where two of them meet, and files."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.tuning.curves import Curve, CurveError, Curves, balance


def test_between_points_a_curve_is_linear_and_behind_them_flat() -> None:
    curve = Curve((1.0, 2.0, 4.0), (100.0, 180.0, 300.0))
    assert [curve(x) for x in (-1, 0, 0.5, 1, 1.5, 3, 4, 99)] == [0, 0, 50, 100, 140, 240, 300, 300]
    for rate in (10.0, 100.0, 140.0, 299.0, 300.0):
        assert curve(curve.least_cores(rate)) == pytest.approx(rate)
    assert curve.least_cores(301.0) == float("inf")
    assert Curve((1.0, 2.0), (5.0, 5.0)).least_cores(5.0) == 1.0


def test_a_fit_is_the_nearest_curve_that_does_not_fall() -> None:
    points = [(1.0, 10.0), (2.0, 30.0), (3.0, 20.0), (4.0, 40.0), (1.0, 14.0)]
    fitted = Curve.through(points)
    assert fitted == Curve((1.0, 2.0, 3.0, 4.0), (12.0, 25.0, 25.0, 40.0))
    # Against all monotone curves on a grid.
    grid = range(10, 42, 1)
    mean = [12.0, 30.0, 20.0, 40.0]

    def error(rates: tuple[float, ...]) -> float:
        weights = (2, 1, 1, 1)
        return sum(w * (a - b) ** 2 for w, a, b in zip(weights, rates, mean, strict=True))

    best = min(error(rates) for rates in itertools.combinations_with_replacement(map(float, grid), 4))
    assert error(fitted.rates) <= best


@pytest.mark.parametrize("seed", range(20))
def test_the_crossing_solves_the_equation_exactly(seed: int) -> None:
    random = np.random.default_rng(seed)

    def curve() -> Curve:
        xs = np.cumsum(random.integers(1, 5, 5)).astype(float)
        return Curve(tuple(xs), tuple(np.cumsum(random.uniform(0, 100, 5)) + 1))

    actors, learners = curve(), curve()
    u, cores = float(random.uniform(0.2, 5)), int(random.integers(2, 40))
    solution = balance(actors, learners, update_interval=u, cores=cores)
    assert actors(solution.actor_cores) == pytest.approx(solution.steps_per_second, rel=1e-9)
    assert u * learners(solution.learner_cores) == pytest.approx(solution.steps_per_second, rel=1e-9)
    assert solution.actor_cores + solution.learner_cores <= cores + 1e-9
    # Nothing else is faster.
    xs = np.linspace(0, cores, 2001)
    assert max(min(actors(x), u * learners(cores - x)) for x in xs) <= solution.steps_per_second * (1 + 1e-9)


def test_curves_come_back_from_json(tmp_path: Path) -> None:
    curves = Curves(cores=8, actors=Curve((1.0, 4.0), (10.0, 35.0)), learners=Curve((1.0,), (3.0,)))
    path = tmp_path / "curves.json"
    path.write_text(json.dumps(curves.to_json()))
    assert Curves.read(path) == curves
    assert Curves.read(path, cores=56).cores == 56
    curves = replace(curves, policy_workers=(1, 2), num_envs=64, envs_per_group=8)
    path.write_text(json.dumps(curves.to_json()))
    assert Curves.read(path) == curves


GOOD_ACTORS: dict[str, Any] = {"cores": [1, 4], "agent_steps_per_second": [10, 35]}
GOOD: dict[str, Any] = {
    "cores": 8,
    "actors": GOOD_ACTORS,
    "learners": {"cores": [1], "sgd_steps_per_second": [3]},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cores": None}, "curves without cores"),
        ({"cores": 0}, "cores=0: give the machine's cores"),
        ({"gpu": 1}, "curves have no 'gpu'"),
        ({"actors": None}, "actors must be an object with the lists cores and agent_steps_per_second"),
        ({"learners": {"cores": [1], "agent_steps_per_second": [3]}}, "learners must be an object with the lists"),
        ({"learners": {"cores": 1, "sgd_steps_per_second": [3]}}, "learners.cores must be a list"),
        ({"learners": {"cores": [1, 2], "sgd_steps_per_second": [3]}}, "2 numbers of cores and 1 rates"),
        ({"learners": {"cores": [], "sgd_steps_per_second": []}}, "one at least"),
        ({"learners": {"cores": [2, 1], "sgd_steps_per_second": [3, 4]}}, "are 2, then 1: give each once, ascending"),
        ({"learners": {"cores": [0], "sgd_steps_per_second": [3]}}, "cores of a curve hold 0"),
        ({"learners": {"cores": [1], "sgd_steps_per_second": [float("nan")]}}, "rates of a curve hold nan"),
        ({"learners": {"cores": [1], "sgd_steps_per_second": ["3"]}}, "rates of a curve hold '3': give numbers"),
        ({"learners": {"cores": [1], "sgd_steps_per_second": [-3]}}, "hold -3: give numbers from 1e-06 to 1e+12"),
        ({"learners": {"cores": [1], "sgd_steps_per_second": [1e-300]}}, "hold 1e-300: give numbers from"),
        ({"learners": {"cores": [1], "sgd_steps_per_second": [1e308]}}, "hold 1e+308: give numbers from"),
        ({"learners": {"cores": [1], "sgd_steps_per_second": [10**400]}}, "hold an integer of 401 digits"),
        ({"cores": 10**30}, "a whole number from 1 to 65536"),
        ({"actors": {**GOOD_ACTORS, "policy_workers": 1}}, "actors.policy_workers must be a list of numbers, not 1"),
        ({"actors": {**GOOD_ACTORS, "policy_workers": [1]}}, "has 1 numbers, and there are 2 points"),
        ({"actors": {**GOOD_ACTORS, "policy_workers": [1, 0.5]}}, "actors.policy_workers has 0.5"),
        ({"actors": {**GOOD_ACTORS, "policy_workers": [1, 4]}}, "policy_workers has 4 on 4 core"),
        ({"actors": {**GOOD_ACTORS, "num_envs": "many"}}, "actors.num_envs has 'many'"),
        ({"actors": {**GOOD_ACTORS, "num_envs": 7, "envs_per_group": 2}}, "num_envs=7 is no multiple"),
        ({"actors": {**GOOD_ACTORS, "workers": [1, 2]}}, "actors must be an object with the lists"),
    ],
)
def test_bad_curves_are_refused(change: dict[str, Any], message: str) -> None:
    Curves.from_json(GOOD)
    with pytest.raises(CurveError, match="(?s)" + message.replace("(", r"\(").replace("+", r"\+")):
        Curves.from_json({**GOOD, **change})


def test_bad_files_and_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CurveError, match="cannot be read"):
        Curves.read(tmp_path / "none.json")
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(CurveError, match="not valid JSON"):
        Curves.read(tmp_path / "torn.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(CurveError, match="not valid JSON"):
        Curves.read(tmp_path / "deep.json")
    with pytest.raises(CurveError, match="must be a JSON object, not list"):
        Curves.from_json([])
    with pytest.raises(CurveError, match=r"rates of a curve fall from 2 to 1.*Curve\.through"):
        Curve((1.0, 2.0), (2.0, 1.0))


def test_rates_in_a_file_may_fall() -> None:
    falling = {**GOOD, "actors": {"cores": [1, 2, 3], "agent_steps_per_second": [10, 30, 20]}}
    assert Curves.from_json(falling).actors.rates == (10.0, 25.0, 25.0)
