"""The part of the report about each run: phases, speed, lag, log and videos."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.comparing.page import write_report
from rollmill.comparing.run_details import (
    MOST_RUNS,
    RunDetails,
    details_of,
    details_section,
    draw_details,
    shares_of,
    videos_section,
)
from rollmill.comparing.runs import ComparedRun, Comparison

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 8,
    "learner.batch_size": 64,
    "learner.minibatches": 1,
    "rollout.num_workers": 1,
    "model.mlp_sizes": "8",
    "total_steps": 256,
}


def compared(path: Path, *records: dict[str, Any]) -> ComparedRun:
    return ComparedRun(path, "ppo", "gym/CartPole-v1", 1, records, (), {})


def details(path: Path, **told: str) -> RunDetails:
    return details_of(Comparison((compared(path),)))[0]._replace(told=told)


def test_shares_are_means_over_time() -> None:
    busy = {"share/learner/learning": 1.0, "share/learner/waiting for batches": 0.0}
    idle = {"share/learner/learning": 0.0, "share/learner/waiting for batches": 1.0, "share/policy worker/forward": 0.5}
    found = shares_of([{"time_s": 1.0, **busy}, {"time_s": 4.0, **idle, "share/evaluator/playing": None}])
    assert found == {
        "learner": {"waiting for batches": 0.75, "learning": 0.25},
        "policy worker": {"forward": 0.5},
    }


@pytest.mark.slow
def test_a_whole_run_is_on_the_page(tmp_path: Path) -> None:
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "a $run <b>", quiet=True, **SMALL)
    (run.dir / "agent.mp4").write_bytes(b"a small video")
    report = write_report([run.dir], tmp_path / "report")
    page = report.page.read_text()
    assert "a $run &lt;b&gt;" in page
    assert "<b>" not in page
    assert "core(s) of" in page
    assert "finished: " in page
    assert 'src="data:video/mp4;base64,YSBzbWFsbCB2aWRlbw=="' in page
    assert (tmp_path / "report/run-1.png") in report.pictures
    (figures,) = json.loads((tmp_path / "report/report.json").read_text())["details"]
    assert figures["videos"] == ["agent.mp4"]
    for phases in figures["shares"].values():
        assert sum(phases.values()) == pytest.approx(1.0, abs=0.02)


def test_a_run_without_rows_has_no_picture(tmp_path: Path) -> None:
    assert draw_details(details(tmp_path), tmp_path / "x.png") is None
    assert not (tmp_path / "x.png").exists()


def test_what_the_log_says_is_escaped(tmp_path: Path) -> None:
    section = details_section(details(tmp_path, command="<script>alert(1)</script>"))
    assert "<script>" not in section
    assert "&lt;script&gt;" in section


def test_a_login_is_not_on_the_page(tmp_path: Path) -> None:
    uri = "http://user:secret@host:5000"
    (tmp_path / "run.log").write_text(
        f"2026-12-01 00:00:00.000 INFO    [main] rollmill.run: command: rollmill train x --uri {uri} (in /tmp)\n"
    )
    (found,) = details_of(Comparison((compared(tmp_path),)))
    assert found.told["command"] == "rollmill train x --uri http://host:5000 (in /tmp)"


def test_large_videos_and_links_are_not_embedded(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of another place")
    (tmp_path / "linked.mp4").symlink_to(tmp_path / "secret")
    (tmp_path / "videos").mkdir()
    with (tmp_path / "videos/large.mp4").open("wb") as file:
        file.truncate(30 * 2**20)
    (tmp_path / ".writing-7-eval.mp4").write_bytes(b"half a video")
    for number in range(4):
        path = tmp_path / f"{number}.mp4"
        path.write_bytes(b"video")
        os.utime(path, (number, number))
    (found,) = details_of(Comparison((compared(tmp_path),)))
    assert [path.name for path in found.videos] == ["large.mp4", "3.mp4", "2.mp4"], "the newest three"
    section = videos_section(found)
    assert "videos/large.mp4 has 30 MB" in section
    assert section.count("<video") == 2


def test_many_runs_are_not_shown_one_by_one(tmp_path: Path) -> None:
    runs = tuple(compared(tmp_path / str(number)) for number in range(MOST_RUNS + 1))
    assert details_of(Comparison(runs)) == []
    assert len(details_of(Comparison(runs[1:]))) == MOST_RUNS
