"""Schedules of a learning rate as text."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from rollmill.learning.schedule_points import SYNTAX, parse_points


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("0:3e-4,1e6:1e-4,5e6:0", ((0, 3e-4), (1_000_000, 1e-4), (5_000_000, 0.0))),
        (" 10 : 1 , 20 : 2 ", ((10, 1.0), (20, 2.0))),
        ("1_000:0,2000.0:.5", ((1000, 0.0), (2000, 0.5))),
    ],
)
def test_points_are_whole_steps_and_values(text: str, points: tuple[tuple[int, float], ...]) -> None:
    found = parse_points(text)
    assert found == points
    assert all(type(steps) is int and type(value) is float for steps, value in found)


def test_the_example_of_the_syntax_is_valid() -> None:
    assert len(parse_points(SYNTAX.rpartition(" ")[2])) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not two numbers with a colon between them"),
        ("0:1,", "'' is not two numbers with a colon between them"),
        ("0:1, 5", "'5' is not two numbers with a colon between them"),
        ("0:1:2,5:1", "'0:1:2' is not two numbers with a colon between them"),
        ("0:1,x:1", "'x:1' is not two numbers with a colon between them"),
        ("-1:1,5:1", "'-1' is not a whole number of agent steps, 0 or more"),
        ("0:1, 1.5 :1", "'1.5' is not a whole number of agent steps, 0 or more"),
        ("0:1,nan:1", "'nan' is not a whole number of agent steps, 0 or more"),
        ("0:1,inf:1", "'inf' is not a whole number of agent steps, 0 or more"),
        ("0:-1,5:1", "'-1' is not a finite number, 0 or more"),
        ("0:1,5:inf", "'inf' is not a finite number, 0 or more"),
        ("0:1,5:nan", "'nan' is not a finite number, 0 or more"),
        ("5:1,5:2", "5 does not come after 5"),
        ("5:1, 4 :2", "4 does not come after 5"),
        ("0:1", "a schedule needs at least two points"),
        ("0:0,5:0.0", "all values are 0, so nothing would be learned"),
    ],
)
def test_invalid_points_raise_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse_points(text)
    assert str(error.value) == message


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, rollmill.learning.schedule_points; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
