"""What a space file may say, and what its errors say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.api import make_config
from rollmill.campaigns.space import (
    Choices,
    Dimension,
    Point,
    Range,
    SpaceError,
    contains,
    grid_of,
    is_on_step,
    parse_space,
    point_of,
    read_space,
    size_of,
    untried_point,
)
from rollmill.settings.config import Config

CONFIG = make_config("gym/CartPole-v1")


def parsed(tables: Mapping[str, Any]) -> tuple[Dimension, ...]:
    def check(settings: Mapping[str, object]) -> Config:
        return make_config("gym/CartPole-v1", settings)

    return parse_space(tables, CONFIG, check)


def test_a_file_has_a_table_for_each_setting(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text("""
        [learner.learning_rate]
        low = 1e-5
        high = 1e-2
        log = true
        [epochs]
        low = 1
        high = 8
        [model.mlp_sizes]
        choices = [[64, 64], [256]]
        [num_envs]
        low = 32
        high = 64
        step = 32
    """)
    rate, epochs, sizes, envs = parsed(read_space(file))
    assert rate == Range("learner.learning_rate", 1e-5, 1e-2, is_integer=False, log=True)
    assert epochs == Range("learner.epochs", 1, 8, is_integer=True)
    assert sizes == Choices("model.mlp_sizes", ([64, 64], [256]))
    assert envs == Range("num_envs", 32, 64, is_integer=True, step=32)
    assert [d.describe() for d in (rate, epochs, sizes, envs)] == [
        "1e-05 to 0.01, log",
        "1 to 8",
        "64,64 | 256",
        "32 to 64, step 32",
    ]
    assert contains(rate, 1e-3)
    assert not contains(rate, 1.0)
    assert not contains(rate, "auto")
    assert contains(sizes, [256])
    assert not contains(sizes, [64])


def test_keys_may_be_flat_as_in_python() -> None:
    (rate,) = parsed({"learner.learning_rate": {"low": 1e-4, "high": 1e-3}})
    assert rate.key == "learner.learning_rate"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "the space is empty"),
        ({"learner": {"lr": {"low": 1, "high": 2}}}, "here it is learner.learning_rate"),
        (
            {"learner": {"low": 0.1, "high": 0.2}},
            r"^the space: learner is a group of settings; given \{'low': 0.1, 'high': 0.2\}: give one of its settings "
            r"a table, such as \[learner\.\w+\]\.$",
        ),
        ({"learner": {}}, r"learner is a group of settings; given \{\}"),
        (
            {"learner": {"learning_rate": [1e-4, 1e-3]}},
            r"^the space: learner.learning_rate = \[0.0001, 0.001\] is not a table: give low and high, and optionally "
            r"log = true or step, or choices = \[...\] under \[learner.learning_rate\]\.$",
        ),
        ({"learner": {"learning_rat": [1e-4, 1e-3]}}, "did you mean learner.learning_rate"),
        ({"env": {"name": {"first": 1}}}, r"\[env.name\] has 'first', which is unknown"),
        ({"learning_rate": 1e-3}, r"learning_rate = 0.001 is not a table: give low .* under \[learning_rate\]"),
        ({"learning_rate": {"low": 1e-5}}, r"\[learner.learning_rate\] has no high: give low and high, and optionally"),
        ({"learning_rate": {}}, "has no low and no high"),
        ({"learning_rate": {"low": 1e-2, "high": 1e-5}}, "from 0.01 to 1e-05 is empty"),
        ({"learning_rate": {"low": 1e-3, "high": 1e-3}}, "is empty: give finite ends, low below high"),
        ({"learning_rate": {"low": 1e-3, "high": float("inf")}}, "finite ends"),
        ({"learning_rate": {"low": "a", "high": 1}}, "low = 'a': give a number"),
        ({"learning_rate": {"low": 0.0, "high": 1.0, "log": True}}, "give a low above 0"),
        ({"learning_rate": {"low": 1e-5, "high": 1.0, "log": 1}}, "log = 1: give true or false"),
        ({"learning_rate": {"low": 1e-5, "high": 1.0, "log": True, "step": 0.1}}, "both log = true and a step"),
        ({"learning_rate": {"low": 0.1, "high": 1.0, "step": 2.0}}, "step = 2.0: give a number above 0"),
        ({"learning_rate": {"low": 0.1, "max": 1.0}}, "has 'max', which is unknown"),
        ({"learning_rate": {"choices": []}}, r"choices = \[\]: give a list with at least one value"),
        ({"learning_rate": {"choices": [1e-3], "low": 0}}, "both choices and low"),
        ({"learning_rate": {"choices": [1e-3, 1e-3]}}, "a choice twice"),
        ({"learning_rate": {"choices": ["fast"]}}, "learner.learning_rate|learning_rate: 'fast' was given"),
        ({"learner.epochs": {"low": 0.5, "high": 4}}, "low = 0.5: learner.epochs takes integers"),
        ({"learner.epochs": {"low": 0, "high": 4}}, "learner.epochs=0 is refused"),
        ({"learner.optimiser": {"low": 0, "high": 4}}, "not a range of numbers: give choices"),
        ({"normalise_advantages": {"low": 0, "high": 1}}, "takes true or false, not a range"),
        (
            {"learning_rate": {"low": 1e-4, "high": 1e-3}, "learner": {"learning_rate": {"low": 1e-4, "high": 1e-3}}},
            "learner.learning_rate twice",
        ),
    ],
)
def test_errors_say_what_is_allowed(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        parsed(tables)


def test_a_missing_file_and_one_that_is_not_toml(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="cannot be read"):
        read_space(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("learning_rate: 3\n")
    with pytest.raises(SpaceError, match="is not a TOML file"):
        read_space(tmp_path / "bad.toml")


def test_a_grid_has_every_point_once() -> None:
    space = parsed({"learner.epochs": {"low": 1, "high": 3}, "learner.optimiser": {"choices": ["adam", "rmsprop"]}})
    points = grid_of(space)
    assert len(points) == 6
    assert points[0] == {"learner.epochs": 1, "learner.optimiser": "adam"}
    assert points[-1] == {"learner.epochs": 3, "learner.optimiser": "rmsprop"}
    (steps,) = parsed({"learner.learning_rate": {"low": 0.1, "high": 0.3, "step": 0.1}})
    assert steps.grid == (0.1, 0.2, 0.3)


def test_arguments_of_the_environment_may_be_texts() -> None:
    (choices,) = parsed({"env.kwargs.map_name": {"choices": ["4x4", "8", 8, True]}})
    assert choices.ends == ("4x4", "8", 8, True)


def test_numbers_of_numpy_are_numbers() -> None:
    config = make_config("gym/CartPole-v1")
    tables = {
        "learner.epochs": {"choices": list(np.arange(1, 4))},
        "learner.minibatches": {"low": np.int64(1), "high": np.int64(4)},
    }
    epochs, minibatches = parse_space(tables, config, lambda values: None)
    assert epochs.grid == (1, 2, 3)
    assert minibatches.ends == (1, 4)


def test_a_range_of_an_argument_of_the_environment_has_the_type_of_its_ends() -> None:
    (whole,) = parsed({"env.kwargs.level": {"low": 0, "high": 1}})
    assert grid_of([whole]) == [{"env.kwargs.level": 0}, {"env.kwargs.level": 1}]
    (real,) = parsed({"env.kwargs.level": {"low": 0.0, "high": 1.0}})
    assert real.size is None


def test_whole_numbers_are_real_ones_where_the_setting_is() -> None:
    (choices,) = parsed({"learner.weight_decay": {"choices": [0, 1e-4]}})
    assert [repr(value) for value in choices.ends] == ["0.0", "0.0001"]
    with pytest.raises(SpaceError, match="a choice twice"):
        parsed({"learner.weight_decay": {"choices": [0, 0.0]}})


def test_the_points_of_a_space_are_counted_and_found() -> None:
    space = (
        Range("a", 1, 4, is_integer=True, log=True),
        Range("b", 0.1, 0.3, is_integer=False, step=0.1),
        Choices("c", ("x", [1])),
    )
    assert size_of(space) == 24
    tried: set[Point] = set()
    for number in range(24):
        point = untried_point(space, tried, seed=number)
        assert point is not None
        assert all(is_on_step(dimension, point[dimension.key]) for dimension in space)
        tried.add(point_of(space, point))
    assert len(tried) == 24
    assert untried_point(space, tried, seed=1) is None
    assert point_of(space, {"a": 1, "b": 0.1 + 2 * 0.1, "c": [1]}) == point_of(space, {"a": 1, "b": 0.3, "c": [1]})
    assert not is_on_step(space[1], 0.25)
    assert not is_on_step(space[1], 0.4)


def test_an_untried_point_of_real_numbers_is_in_the_range() -> None:
    space = (Range("a", 1e-5, 1e-1, is_integer=False, log=True), Range("b", -1.0, 1.0, is_integer=False))
    assert size_of(space) is None
    points = [untried_point(space, (), seed) for seed in range(20)]
    assert all(point is not None and contains(d, point[d.key]) for point in points for d in space)
    assert sum(point is not None and point["a"] < 1e-3 for point in points) in range(4, 17)


def test_a_grid_needs_few_values() -> None:
    with pytest.raises(SpaceError, match=r"few values of learner\.learning_rate.*choices or a step"):
        grid_of(parsed({"learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}))
    with pytest.raises(SpaceError, match="few values of total_steps"):
        grid_of(parsed({"total_steps": {"low": 1, "high": 100_000}}))
    with pytest.raises(SpaceError, match=r"1,000,000 points"):
        grid_of(parsed({key: {"low": 1, "high": 100} for key in ("learner.epochs", "seed", "checkpoint.keep")}))


def test_the_choice_that_equals_a_value() -> None:
    choices = Choices("env.kwargs.step_cost", (0.5, 1.0, True))
    assert repr(choices.element(1)) == "1.0"
    assert choices.element(True) is True
    with pytest.raises(SpaceError, match=r"2 is no choice of env\.kwargs\.step_cost: give one of 0\.5 \| 1 \| true"):
        choices.element(2)
