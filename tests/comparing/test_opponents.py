"""Results against fixed opponents in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.comparing.test_report import a_run

from rollmill.comparing.opponents import evaluated_runs
from rollmill.comparing.page import write_report
from rollmill.comparing.runs import compare
from rollmill.storage.evaluations import EvaluationQueue


def evaluations(folder: Path, *found: Any) -> None:
    """Record evaluations after 100, 200, ... agent steps, each with what stands under "against"."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, against in enumerate(found, start=1):
        record = {"agent_steps": 100 * number, "mean_return": 0.0, "against": against}
        EvaluationQueue(folder).found(folder / "none", record)


def test_the_points_of_each_policy_against_each_opponent_are_on_the_page(tmp_path: Path) -> None:
    several = a_run(tmp_path / "several", "gym/CartPole-v1", 1, 1.0)
    evaluations(several / "policies" / "a", {"random": 0.5, "<b>": 0.25}, {"random": 0.75, "<b>": 0.375})
    evaluations(several / "policies" / "late", {"random": 1.0})
    alone = a_run(tmp_path / "alone", "gym/CartPole-v1", 2, 1.0)
    evaluations(alone, {"runs/old $x$": 0.125})
    a_run(tmp_path / "without", "gym/CartPole-v1", 3, 1.0, evaluated=1.0)
    report = write_report([tmp_path / name for name in ("several", "alone", "without")], tmp_path / "report")
    found = {Path(each["directory"]).name: each["policies"] for each in report.figures["opponents"]}
    assert found == {
        "several": {
            "a": {
                "random": {"agent_steps": 200, "points": 0.75},
                "<b>": {"agent_steps": 200, "points": 0.375},
            },
            "late": {"random": {"agent_steps": 100, "points": 1.0}},
        },
        "alone": {"policy": {"runs/old $x$": {"agent_steps": 100, "points": 0.125}}},
    }
    page = report.page.read_text()
    assert "<th>against random</th><th>against &lt;b&gt;</th>" in page
    assert "<td>a</td><td>200</td><td>0.750</td><td>0.375</td>" in page
    assert "<td>late</td><td>100</td><td>1.000</td><td>-</td>" in page
    assert "<td>policy</td><td>100</td><td>0.125</td>" in page
    assert "<b>" not in page.replace("<body>", "")
    drawn = [path for path in report.pictures if path.name.startswith("opponents-")]
    assert [path.name for path in drawn] == ["opponents-1.png", "opponents-2.png"]
    assert all(path.is_file() for path in drawn)


def test_the_curve_of_an_opponent_has_the_evaluations_that_met_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "gym/CartPole-v1", 1, 1.0)
    # Resumed with another opponent after the second evaluation.
    evaluations(run, {"random": 0.5}, {"random": 0.625}, {"expert": 0.125})
    (evaluated,) = evaluated_runs(compare([run]))
    assert evaluated.opponents == ["random", "expert"]
    curves = evaluated.points["policy"]
    assert {name: (curve.x.tolist(), curve.y.tolist()) for name, curve in curves.items()} == {
        "random": ([100, 200], [0.5, 0.625]),
        "expert": ([300], [0.125]),
    }


@pytest.mark.parametrize("against", [None, [1], "random", {"random": "much"}, {"random": float("nan")}, {}])
def test_a_run_without_points_has_no_such_section(tmp_path: Path, against: object) -> None:
    run = a_run(tmp_path / "run", "gym/CartPole-v1", 1, 1.0)
    evaluations(run, against)
    assert evaluated_runs(compare([run])) == []


def test_many_policies_have_a_panel_each(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "gym/CartPole-v1", 1, 1.0)
    for policy in range(5):
        evaluations(run / "policies" / str(policy), *({"random": n / 50, "expert": n / 100} for n in range(50)))
    report = write_report([run], tmp_path / "report")
    assert list(report.figures["opponents"][0]["policies"]) == ["0", "1", "2", "3", "4"]
    assert "opponents-1.png" in [path.name for path in report.pictures]
