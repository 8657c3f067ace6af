"""rollmill.settings.value_checks."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rollmill.settings.value_checks import (
    above_zero,
    any_number,
    at_least_zero,
    check_choice,
    check_integer,
    check_number,
    share,
    unit,
    unit_below_one,
)


@pytest.mark.parametrize("value", [2, 3, 10**30])
def test_integers_from_the_least_on_are_taken(value: int) -> None:
    check_integer("a.b", value, 2)


@pytest.mark.parametrize("value", [1, -3, 2.0, "2", None, True, math.nan])
def test_other_integers_are_refused_by_name_value_and_what_is_allowed(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^a\.b=.*: give an integer of at least 2, or None$") as error:
        check_integer("a.b", value, 2, ", or None")
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", [True, None, "1", math.nan, math.inf, -math.inf, [1.0]])
def test_what_is_no_finite_number_is_refused_whatever_the_rule(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^a\.b=.*: give a finite number of any size$"):
        check_number("a.b", value, any_number, "of any size")


@pytest.mark.parametrize(
    ("rule", "taken", "refused"),
    [
        (above_zero, [1e-300, 1, 1e300], [0, -1e-300]),
        (at_least_zero, [0, 0.0, 7], [-1e-300]),
        (unit, [0, 0.5, 1], [-1e-9, 1.0000001]),
        (unit_below_one, [0, 0.999999], [1, 1.0, -0.1]),
        (share, [1e-9, 1], [0, 1.1, -1]),
    ],
)
def test_rules_have_their_bounds(rule: Any, taken: list[float], refused: list[float]) -> None:
    for value in taken:
        check_number("a.b", value, rule, "x")
    for value in refused:
        with pytest.raises(ValueError, match="give a finite number x"):
            check_number("a.b", value, rule, "x")


def test_choices_tell_numbers_from_truth() -> None:
    check_choice("a.b", True, ("auto", True, False))
    check_choice("a.b", "auto", ("auto", True, False))
    check_choice("a.b", None, (None, "mse"))
    check_choice("a.b", 16, (2, 16))
    for value, allowed in ((1, (True, False)), (0, (True, False)), (True, (1, 2)), ("Auto", ("auto",)), (None, (0,))):
        with pytest.raises(ValueError, match=r"^a\.b=.*: choose one of "):
            check_choice("a.b", value, allowed)
