"""Ratings and results in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.comparing.test_report import a_run

from rollmill.comparing.page import write_report


def rows(folder: Path, **columns: list[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(
            {
                "agent_steps": 100 * step,
                "time_s": float(step),
                "episode_return": 0.0,
                **dict(zip(columns, values, strict=True)),
            }
        )
        for step, values in enumerate(zip(*columns.values(), strict=True), start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))


def test_ratings_and_results_of_policies_and_past_selves_are_on_the_page(tmp_path: Path) -> None:
    several = a_run(tmp_path / "several", "gym/CartPole-v1", 1, 1.0)
    rows(
        several / "policies" / "a",
        **{"rating": [0.0, 30.0], "win_rate/<b>": [None, 0.75], "past_win_rate": [0.6, None]},
    )
    rows(several / "policies" / "<b>", **{"rating": [0.0, -31.0], "win_rate/a": [0.5, 0.25]})
    alone = a_run(tmp_path / "alone", "gym/CartPole-v1", 2, 1.0)
    rows(alone, rating=[1.0, 2.0], past_win_rate=[None, 0.5])
    a_run(tmp_path / "unrated", "gym/CartPole-v1", 3, 1.0)
    report = write_report([tmp_path / name for name in ("several", "alone", "unrated")], tmp_path / "report")
    found = {Path(each["directory"]).name: each for each in report.figures["populations"]}
    assert found["several"]["ratings"] == {"<b>": -31.0, "a": 30.0}
    assert found["several"]["results"] == {"a": {"<b>": 0.75, "past selves": 0.6}, "<b>": {"a": 0.25}}
    assert found["alone"]["results"] == {"policy": {"past selves": 0.5}}
    assert len(found) == 2
    page = report.page.read_text()
    assert "against &lt;b&gt;" in page
    assert "<b>" not in page.replace("<body>", "")
    assert sum(path.name.startswith("ratings-") for path in report.pictures) == 2
