"""The table of metrics, and the page that is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollmill.reporting.metric_table import (
    EVALUATION_KEYS,
    METRICS,
    PHASES,
    describe_metrics,
    label,
    metric_names,
)
from rollmill.roles import GRADIENT_LEARNER, LEARNER, POLICY_WORKER, ROLLOUT_WORKER

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_made_from_the_table() -> None:
    page = PAGE.read_text()
    assert describe_metrics() in page, "python -m rollmill.reporting.metric_table prints what it should have"
    keys = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert metric_names() <= set(keys)


def test_phases_are_those_of_the_ledger() -> None:
    roles = (ROLLOUT_WORKER, POLICY_WORKER, LEARNER, GRADIENT_LEARNER)
    assert {role: list(phases) for role, phases in PHASES.items()} == {role.name: list(role.phases) for role in roles}


def test_each_metric_has_one_name_in_one_group() -> None:
    names = [metric.name for group in METRICS.values() for metric in group]
    assert len(names) == len(set(names))
    shares = {name for name in metric_names() if name.startswith("share/")}
    assert metric_names() == {*names, *shares}
    assert "share/learner/learning" in shares
    assert len(shares) == sum(map(len, PHASES.values()))


def test_the_display_calls_a_metric_by_its_label_if_it_shows_it() -> None:
    assert label("agent_steps") == "steps"
    assert label("policy_lag_expected") == "expected lag"
    assert label("episode_return_std") == ""
    with pytest.raises(StopIteration):
        label("unknown")


def test_tables_have_a_row_for_each_key_with_as_many_cells_as_their_heads() -> None:
    for table in describe_metrics().split("### ")[1:]:
        title, _, text = table.partition("\n\n")
        head, rule, *rows = [line.strip("|").split(" | ") for line in text.strip().splitlines()]
        assert len(rule) == len(head)
        assert all(len(row) == len(head) for row in rows), title
        keys = [row[0].strip(" `") for row in rows]
        if title in METRICS:
            assert keys == [metric.name for metric in METRICS[title]]
            of_regimes = [set(row[2].split(", ")) for row in rows]
            for metric, regimes in zip(METRICS[title], of_regimes, strict=True):
                assert regimes == ({"all"} if len(metric.regimes) == 3 else set(metric.regimes))
        elif title == "Evaluations":
            assert keys == list(EVALUATION_KEYS)
