"""rollmill.settings.value_checks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from rollmill.settings.fields import setting
from rollmill.settings.value_checks import (
    ABOVE_ZERO,
    ANY_NUMBER,
    AT_LEAST_ZERO,
    NAME,
    SHARE,
    UNIT,
    UNIT_BELOW_ONE,
    Checked,
    Rule,
    check_choice,
    check_integer,
    integer,
    one_of,
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
        ANY_NUMBER.check("a.b", value, " of any size")


@pytest.mark.parametrize(
    ("rule", "taken", "refused"),
    [
        (ABOVE_ZERO, [1e-300, 1, 1e300], [0, -1e-300]),
        (AT_LEAST_ZERO, [0, 0.0, 7], [-1e-300]),
        (UNIT, [0, 0.5, 1], [-1e-9, 1.0000001]),
        (UNIT_BELOW_ONE, [0, 0.999999], [1, 1.0, -0.1]),
        (SHARE, [1e-9, 1], [0, 1.1, -1]),
        (one_of(2, 4, "x"), [2, 4, "x"], [3, "y", None]),
        (NAME, ["a"], ["", None, 3]),
    ],
)
def test_rules_have_their_bounds(rule: Rule, taken: list[Any], refused: list[Any]) -> None:
    for value in taken:
        rule.check("a.b", value)
    for value in refused:
        with pytest.raises(ValueError, match=re.escape(f"a.b={value!r}: give {rule.text}x")):
            rule.check("a.b", value, "x")


@dataclass(frozen=True, kw_only=True)
class Base(Checked, section="base"):
    kind: Literal["one", "two"] = "one"
    rate: float | None = setting(None, ABOVE_ZERO, "for none")


@dataclass(frozen=True, kw_only=True)
class Derived(Base, section="own"):
    is_on: bool = True
    count: int | Literal["auto"] = setting("auto", integer(1))
    named: int = setting(1, integer(0), "(steps)", key="other.key")
    free: str = "anything"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "three"}, "base.kind='three': choose one of 'one', 'two'"),
        ({"rate": 0.0}, "base.rate=0.0: give a finite number above 0, or None for none"),
        ({"is_on": 1}, "own.is_on=1: choose one of True, False"),
        ({"count": None}, "own.count=None: give an integer of at least 1, or 'auto'"),
        ({"count": "Auto"}, "own.count='Auto': give an integer of at least 1, or 'auto'"),
        ({"named": -1}, "other.key=-1: give an integer of at least 0 (steps)"),
    ],
)
def test_fields_are_checked_by_their_declaration(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Derived(**values)


def test_what_the_annotation_names_is_allowed_beside_the_rule() -> None:
    made = Derived(kind="two", rate=2, is_on=False, count=3, named=0, free="")
    assert (made.rate, made.count, Derived().rate, Derived().count) == (2, 3, None, "auto")


def test_choices_tell_numbers_from_truth() -> None:
    check_choice("a.b", True, ("auto", True, False))
    check_choice("a.b", "auto", ("auto", True, False))
    check_choice("a.b", None, (None, "mse"))
    check_choice("a.b", 16, (2, 16))
    for value, allowed in ((1, (True, False)), (0, (True, False)), (True, (1, 2)), ("Auto", ("auto",)), (None, (0,))):
        with pytest.raises(ValueError, match=r"^a\.b=.*: choose one of "):
            check_choice("a.b", value, allowed)
