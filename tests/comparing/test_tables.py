"""The report's tables, read back from their HTML."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.comparing.tables import scores_section, table
from rollmill.evaluation.stats import Estimate

PONG = "atari/pong"
HEAD_END = ["95 % interval", "smallest", "largest", "at equal steps", "at equal time"]


def a_run(
    label: str, seed: int, final: float | None, env: str = "gym/a", steps: int = 1000, **more: Any
) -> ComparedRun:
    """A run whose return rises linearly to ``final``, after one minute for each thousand steps."""
    places = [steps // 4 * i for i in range(5)]
    records = [
        {
            "agent_steps": place,
            "time_s": place * 0.06,
            "episode_return": None if i == 0 or final is None else final * i / 4,
            **more.get("record", {}),
        }
        for i, place in enumerate(places)
    ]
    settings = more.get("settings", {})
    return ComparedRun(Path(label), label, env, seed, records, more.get("evaluations", ()), settings)


def rows_of(page: str) -> list[list[list[str]]]:
    """Table -> row -> cells."""
    tables = re.findall(r"<table>(.*?)</table>", page, re.DOTALL)
    return [
        [
            [html.unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", body)
        ]
        for body in tables
    ]


def column(page: str, name: str, number: int = 0) -> list[str]:
    head, *rows = rows_of(page)[number]
    return [row[head.index(name)] for row in rows]


def test_a_table_has_a_head_and_rows_and_no_markup_of_its_cells() -> None:
    found = table(["a<b", "c"], [["<i>1</i>", '"&'], ["2", ""]])
    assert found == (
        '<div class="wide"><table><tr><th>a&lt;b</th><th>c</th></tr><tr><td>&lt;i&gt;1&lt;/i&gt;</td>'
        "<td>&quot;&amp;</td></tr><tr><td>2</td><td></td></tr></table></div>"
    )


def test_methods_are_rows_with_their_figures() -> None:
    comparison = Comparison(
        (a_run("weak", 1, 10.0), a_run("weak", 2, 30.0, steps=3000), a_run("strong", 1, 1234.5), a_run("none", 1, None))
    )
    intervals = {"weak": Estimate(20.0, 10.0, 30.0), "strong": Estimate(1234.5, 1234.5, 1234.5)}
    page = scores_section(comparison, "gym/a", intervals)
    assert "<h2>gym/a</h2>" in page
    assert rows_of(page)[0] == [
        ["method", "seeds", "agent steps", "minutes", "return", *HEAD_END],
        ["strong", "1", "1,000", "1.0", "1,234.50", "-", "1,234.50", "1,234.50", "1,234.50", "1,234.50"],
        # All have 1,000 steps, where the second run is at a third of its way.
        ["weak", "2", "2,000", "2.0", "20.00", "10.00 to 30.00", "10.00", "30.00", "10.00", "10.00"],
        ["none", "1", "1,000", "1.0", "-", "-", "-", "-", "-", "-"],
    ]
    assert "(1,000 agent steps, 1.0 minutes)" in page
    assert "Human" not in page


def test_a_method_with_a_run_that_had_no_return_yet_has_none_at_equal_steps() -> None:
    # The first run ends at 1,000 steps, before the second one's first episode, at 2,000.
    comparison = Comparison((a_run("one", 1, 8.0), a_run("one", 2, 8.0, steps=8000), a_run("two", 1, 8.0)))
    page = scores_section(comparison, "gym/a", {})
    assert dict(zip(column(page, "method"), column(page, "at equal steps"), strict=True)) == {"one": "-", "two": "8.00"}


def test_games_with_human_scores_have_a_column_for_them() -> None:
    comparison = Comparison((a_run("a", 1, 14.6, PONG), a_run("a", 2, -20.7, PONG), a_run("b", 1, None, PONG)))
    page = scores_section(comparison, PONG, {"a": Estimate(0.0, 0.0, 0.0)})
    assert column(page, "human = 1") == ["0.500", "-"]
    assert "Human = 1: scores in units of a human's, where 0 is random play." in page


def test_runs_of_other_environments_are_left_out() -> None:
    comparison = Comparison((a_run("a", 1, 1.0), a_run("a", 1, 2.0, "gym/b"), a_run("b", 1, 3.0, "gym/b")))
    assert column(scores_section(comparison, "gym/a", {}), "method") == ["a"]
    assert column(scores_section(comparison, "gym/b", {}), "seeds") == ["1", "1"]


def test_settings_that_differ_are_columns_by_their_last_part() -> None:
    comparison = Comparison(
        (
            a_run("a", 1, 1.0, settings={"learner.epochs": 1, "x.size": 1, "y.size": 1, "same": 0}),
            a_run("b", 1, 2.0, settings={"learner.epochs": 8, "x.size": 2, "y.size": 3, "same": 0}),
            a_run("b", 2, 2.0, settings={"learner.epochs": 8, "x.size": 2, "y.size": 4, "same": 0}),
            a_run("c", 1, 0.5, settings={"learner.epochs": 8}),
        )
    )
    page = scores_section(comparison, "gym/a", {})
    assert len(rows_of(page)) == 1
    assert column(page, "method") == ["b", "a", "c"]
    assert column(page, "epochs") == ["8", "1", "8"]
    assert column(page, "x.size") == ["2", "1", "-"]
    assert column(page, "y.size") == ["3 (1); 4 (1)", "1", "-"]
    assert "same" not in rows_of(page)[0][0]


@pytest.mark.parametrize(("count", "tables"), [(6, 1), (7, 2)])
def test_more_settings_than_fit_have_a_table_of_their_own(count: int, tables: int) -> None:
    settings = [{f"part.s{i}": value for i in range(count)} for value in (1, 2)]
    comparison = Comparison(tuple(a_run("ab"[i], 1, float(-i), settings=settings[i]) for i in range(2)))
    page = scores_section(comparison, "gym/a", {})
    found = rows_of(page)
    assert len(found) == tables
    assert ("s0" in found[0][0]) == (tables == 1)
    assert ("<h3>Settings that differ</h3>" in page) == (tables == 2)
    if tables == 2:
        assert found[1] == [
            ["method", *(f"part.s{i}" for i in range(count))],
            ["a", *["1"] * count],
            ["b", *["2"] * count],
        ]


def test_metrics_of_the_environment_have_a_table_of_last_values() -> None:
    comparison = Comparison(
        (
            a_run("a", 1, 1.0, record={"env/wins": 0.25, "env/coins": 1234567.0}),
            a_run("a", 2, 1.0, record={"env/wins": 0.75, "env/coins": None}),
            a_run("b", 1, 0.5, record={"other": 3.0}),
        )
    )
    page = scores_section(comparison, "gym/a", {})
    assert rows_of(page)[1] == [["method", "coins", "wins"], ["a", "1.235e+06", "0.5"], ["b", "-", "-"]]
    assert "<h3>Metrics of the environment</h3>" in page
    without = Comparison((a_run("a", 1, 1.0),))
    assert "Metrics of the environment" not in scores_section(without, "gym/a", {})
