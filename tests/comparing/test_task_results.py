"""Tasks in the report."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.comparing.test_populations import rows
from tests.comparing.test_report import a_run

from rollmill.comparing.page import write_report

PONG, OWN = "atari/pong", "test/<b>"


def test_returns_scores_and_shares_of_tasks_are_on_the_page(tmp_path: Path) -> None:
    several = a_run(tmp_path / "several", "gym/CartPole-v1,gym/Acrobot-v1", 1, 1.0)
    rows(
        several,
        **{
            f"task/{PONG}/episode_return": [-20.0, 3.0, 4.5],
            f"task/{PONG}/score": [0.02, 0.6, 0.71],
            f"task/{PONG}/samples": [None, 0.5, 0.49],
            f"task/{PONG}/compute": [None, 0.25, None],
            f"task/{OWN}/episode_return": [None, None, None],
            f"task/{OWN}/samples": [None, 0.5, 0.51],
        },
    )
    a_run(tmp_path / "one", "gym/CartPole-v1", 2, 1.0)
    report = write_report([tmp_path / "several", tmp_path / "one"], tmp_path / "report")
    (found,) = report.figures["tasks"]
    assert Path(found["directory"]).name == "several"
    assert found["tasks"][PONG] == {"episode_return": 4.5, "score": 0.71, "samples": 0.49, "compute": 0.25}
    assert found["tasks"][OWN] == {"episode_return": None, "score": None, "samples": 0.51, "compute": None}
    page = report.page.read_text()
    assert "<td>4.50</td><td>0.71</td><td>49.0 %</td><td>25.0 %</td>" in page
    assert "test/&lt;b&gt;" in page
    assert "<b>" not in page.replace("<body>", "")
    assert [path.name for path in report.pictures if path.name.startswith("tasks-")] == ["tasks-1.png"]
    assert all(path.is_file() for path in report.pictures)


def test_without_scores_there_is_no_column_of_them(tmp_path: Path) -> None:
    several = a_run(tmp_path / "several", "gym/CartPole-v1,gym/Acrobot-v1", 1, 1.0)
    rows(several, **{"task/a/episode_return": [1.0, 2.0], "task/b/episode_return": [3.0, 4.0]})
    page = write_report([several], tmp_path / "report").page.read_text()
    tasks = page[page.index("Tasks of") :]
    assert "human = 1" not in tasks
    assert "<td>a</td><td>2.00</td><td>-</td><td>-</td>" in tasks


@pytest.mark.parametrize("missing", ["tasks", "populations", "opponents", "pbt"])
def test_a_run_of_one_task_has_no_such_section(tmp_path: Path, missing: str) -> None:
    report = write_report([a_run(tmp_path / "one", "gym/CartPole-v1", 1, 1.0)], tmp_path / "report")
    assert missing not in report.figures
