"""The table of metrics, and the page that is made from it."""

from __future__ import annotations

import re
from pathlib import Path

from rollmill.reporting.metric_table import PHASES, describe_metrics, metric_names
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
