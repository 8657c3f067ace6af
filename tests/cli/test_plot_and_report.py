"""The commands that draw and compare runs: which files they write, and what they print."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import rollmill
import rollmill.cli
import rollmill.cli.plot
import rollmill.cli.report
from rollmill.settings.run_config import write_config


def a_run(folder: Path, seed: int, final: float) -> Path:
    folder.mkdir()
    write_config(folder, rollmill.make_config("gym/CartPole-v1", {"seed": seed}))
    rows = [{"agent_steps": 1000 * i, "time_s": 60.0 * i, "episode_return": final * i / 4} for i in range(5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_plot_draws_into_the_first_run_or_the_given_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = a_run(tmp_path / "one", 1, 50.0), a_run(tmp_path / "two", 2, 70.0)
    command = rollmill.cli.plot.make_command()
    assert command.run(command.parser.parse_args([str(one), str(two)]), {}) == 0
    assert (one / "learning_curve.png").stat().st_size > 1000
    assert capsys.readouterr().out == f"{one / 'learning_curve.png'}\n"
    output = tmp_path / "new" / "curves.png"
    given = command.parser.parse_args([str(one), "--output", str(output), "--title", "Both"])
    assert command.run(given, {}) == 0
    assert output.stat().st_size > 1000
    assert capsys.readouterr().out == f"{output}\n"


def test_report_writes_a_page_and_prints_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = a_run(tmp_path / "one", 1, 50.0), a_run(tmp_path / "two", 2, 70.0)
    command = rollmill.cli.report.make_command()
    words = [f"mine={one}", f"mine={two}", "--output", str(tmp_path / "page"), "--title", "Two <runs>", "--json"]
    assert command.run(command.parser.parse_args(words), {}) == 0
    page, figures = capsys.readouterr().out.splitlines()
    assert Path(page).parent == tmp_path / "page"
    assert "Two &lt;runs&gt;" in Path(page).read_text()
    found = json.loads(figures)
    assert [(run["method"], run["score"]) for run in found["runs"]] == [("mine", 50.0), ("mine", 70.0)]


def test_report_notes_which_runs_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, failed = a_run(tmp_path / "one", 1, 50.0), tmp_path / "failed"
    failed.mkdir()
    (failed / "run.log").write_text("ImportError")
    assert rollmill.cli.main(["report", str(one), str(failed), "--output", str(tmp_path / "page")]) == 0
    assert capsys.readouterr().err.startswith(f"rollmill: {failed} is left out: ")
    assert rollmill.cli.main(["report", str(failed), "--output", str(tmp_path / "page")]) == 2
    assert "ended before it learned anything" in capsys.readouterr().err


def test_without_output_a_report_goes_into_its_own_directory() -> None:
    given = rollmill.cli.report.make_command().parser.parse_args(["runs/a"])
    assert (given.output, given.title, given.json) == (Path("report"), "", False)


@pytest.mark.parametrize("make", [rollmill.cli.plot.make_command, rollmill.cli.report.make_command])
def test_at_least_one_run_is_needed(make: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(make)
    with pytest.raises(SystemExit):
        make().parser.parse_args([])
    assert "the following arguments are required: RUN" in capsys.readouterr().err


def test_without_matplotlib_a_report_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    output = tmp_path / "page"
    assert rollmill.cli.main(["report", str(a_run(tmp_path / "one", 1, 50.0)), "--output", str(output)]) == 2
    assert "a report needs matplotlib, not installed here: pip install matplotlib" in capsys.readouterr().err
    assert not output.exists()
