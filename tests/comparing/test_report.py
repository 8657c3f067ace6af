"""The report: its statistics against a hand-computed example, and the page that is made of run directories."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rollmill
from rollmill.comparing.page import NotWritableError, write_report
from rollmill.comparing.run_details import shares_of
from rollmill.comparing.runs import ComparisonError, compare
from rollmill.comparing.statistics import MissingReportExtraError, aggregates, profile, score_matrices
from rollmill.settings.run_config import load_config, write_config
from rollmill.settings.run_directory import RunDirectoryError
from rollmill.storage.evaluations import EvaluationQueue


def a_run(
    folder: Path, env: str, seed: int, final: float, *, evaluated: float | None = None, **settings: object
) -> Path:
    """A run's directory, as training leaves it."""
    folder.mkdir()
    write_config(folder, rollmill.make_config(env, {"seed": seed, **settings}))
    rows = [
        {"agent_steps": 1000 * i, "time_s": 60.0 * i, "episode_return": None if i == 0 else final * i / 4}
        for i in range(5)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if evaluated is not None:
        EvaluationQueue(folder).found(folder / "none", {"agent_steps": 4000, "mean_return": evaluated})
    return folder


@pytest.mark.parametrize("damaged", [0, 2, 4])
def test_runs_with_damaged_metrics_are_compared_by_the_others(tmp_path: Path, damaged: int) -> None:
    whole = a_run(tmp_path / "whole", "gym/CartPole-v1", 1, 100.0)
    other = a_run(tmp_path / "other", "gym/CartPole-v1", 2, 100.0)
    lines = (other / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[damaged]) | {"env/kills": 1, "share/learner/learning": 0.5}
    values = ["x", [1], {}, None, float("nan"), 10**400, True]
    for damage in ({**row, key: value} for key in row for value in values):
        lines[damaged] = json.dumps(damage)
        (other / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        (found,) = (run for run in compare([whole, other]).runs if run.path == other)
        assert len(found.records) >= 4
        assert found.env_metrics in ({}, {"env/kills": 1.0})
        assert found.score in (75.0, 100.0)
        assert found.minutes in (3.0, 4.0)
        assert shares_of(found.records).keys() <= {"learner"}
    for key in row:
        lines[damaged] = json.dumps({name: value for name, value in row.items() if name != key})
        (other / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        (found,) = (run for run in compare([whole, other]).runs if run.path == other)
        assert found.score in (75.0, 100.0)
        assert found.minutes in (0.0, 3.0, 4.0)


def test_aggregates_equal_a_hand_computed_example() -> None:
    # Two runs of four games. Means of the games: 0.5, 1.0, 2.0, 0.1; IQM: mean of the middle four of eight.
    scores = np.array([[0.4, 0.8, 1.0, 0.0], [0.6, 1.2, 3.0, 0.2]])
    found = aggregates({"x": scores}, resamples=500)["x"]
    assert found["mean"].value == pytest.approx((0.5 + 1.0 + 2.0 + 0.1) / 4)
    assert found["median"].value == pytest.approx((0.5 + 1.0) / 2)
    assert found["iqm"].value == pytest.approx((0.4 + 0.6 + 0.8 + 1.0) / 4)
    assert found["optimality_gap"].value == pytest.approx(1 - (0.4 + 0.8 + 1.0 + 0.0 + 0.6 + 1.0 + 1.0 + 0.2) / 8)
    # Within a game each resample draws two of two runs: the mean lies between the smallest and the largest of each.
    low, high = scores.min(0).mean(), scores.max(0).mean()
    assert low <= found["mean"].low < found["mean"].value < found["mean"].high <= high


@pytest.mark.slow
def test_a_single_run_has_no_interval(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "atari/pong", 1, 10.0)
    report = write_report([run], tmp_path / "page")
    (aggregates_of,) = report.figures["aggregates"].values()
    assert all(found["low"] is found["high"] is None for found in aggregates_of.values())
    value = f"{aggregates_of['iqm']['value']:.3f}"
    assert f"<td>{value}</td>" in report.page.read_text()
    json.loads((tmp_path / "page" / "report.json").read_text(), parse_constant=pytest.fail)


def test_a_run_without_a_score_leaves_its_game_to_the_others(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / f"{seed}", "atari/pong", seed, 10.0) for seed in (1, 2, 3)]
    rows = [json.loads(line) for line in (runs[1] / "metrics.jsonl").read_text().splitlines()]
    unfinished = [{**row, "episode_return": None} for row in rows]
    (runs[1] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unfinished))
    games, matrices = score_matrices(compare(runs))
    assert games == ["atari/pong"]
    assert [scores.shape for scores in matrices.values()] == [(2, 1)]


def test_runs_are_compared_by_the_same_kind_of_return(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", "gym/CartPole-v1", 1, 100.0, evaluated=321.0)
    other = a_run(tmp_path / "other", "gym/CartPole-v1", 2, 100.0)
    assert [run.score for run in compare([one]).runs] == [321.0]
    assert [(run.score, run.is_evaluated) for run in compare([one, other]).runs] == [(100.0, False)] * 2


def test_a_file_of_a_run_that_cannot_be_read_is_not_the_outputs_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path / "run", "gym/CartPole-v1", 1, 100.0)

    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(run / "videos" / "x.mp4"))

    monkeypatch.setattr("rollmill.comparing.page.details_section", refuses)
    with pytest.raises(ComparisonError, match=r"x\.mp4 cannot be read \(Permission denied\)"):
        write_report([run], tmp_path / "page")


def test_the_bootstrap_is_keyed_and_leaves_numpys_generator_alone() -> None:
    scores = {"x": np.random.default_rng(0).normal(size=(5, 3))}
    # The global generator is what this is about.
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    first = aggregates(scores, seed=1, resamples=200)
    assert aggregates(scores, seed=1, resamples=200) == first
    assert aggregates(scores, seed=2, resamples=200) != first
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_profiles_are_shares_of_runs() -> None:
    of_method = profile({"x": np.array([[0.5, 2.0], [1.0, 4.0]])}, resamples=100)["x"]
    at = [int(np.argmin(abs(of_method.scores - tau))) for tau in (0.0, 0.7, 1.5, 3.0)]
    assert of_method.share[at].tolist() == [1.0, 0.75, 0.5, 0.25]


def test_a_page_of_many_runs(tmp_path: Path) -> None:
    runs = []
    for place, (env, random, human) in enumerate((("atari/pong", -20.7, 14.6), ("atari/breakout", 1.7, 30.5))):
        for seed in (1, 2):
            span = human - random
            for lag, share in ((0, 0.5), (1, 1.0)):
                name = tmp_path / f"{place}-{seed}-{lag}"
                final = random + span * (share + 0.1 * seed)
                runs.append(a_run(name, env, seed, final, regime="lockstep", lag=lag))
    report = write_report(runs, tmp_path / "report")
    page = report.page.read_text()
    assert page.count("data:image/png;base64,") == len(report.pictures) == 6
    assert "human = 1" in page
    assert "<link" not in page
    assert 'src="http' not in page
    of_method = report.figures["aggregates"]
    assert set(of_method) == {"lag=0", "lag=1"}
    assert of_method["lag=0"]["mean"]["value"] == pytest.approx(0.65)
    assert of_method["lag=1"]["iqm"]["value"] == pytest.approx(1.15)
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == json.loads(json.dumps(report.figures))


def test_without_rliable_a_note_replaces_the_aggregates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rliable", None)  # as if it were not installed
    with pytest.raises(MissingReportExtraError, match="rliable, which is not installed"):
        aggregates({"a": np.ones((2, 2))})
    report = write_report([a_run(tmp_path / "a", "atari/pong", 1, 10.0)], tmp_path / "report")
    page = report.page.read_text()
    assert "The aggregates over all games are left out: the statistics of a report need rliable" in page
    assert "Over all games" not in page
    assert "human = 1" in page
    assert (report.figures["games"], report.figures["aggregates"]) == ([], {})


def test_an_evaluation_counts_more_than_training_episodes(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "gym/CartPole-v1", 1, 100.0, evaluated=321.0)
    report = write_report([run], tmp_path / "report", notes=["one run of <two> has failed"])
    assert '<p class="note">one run of &lt;two&gt; has failed</p>' in report.page.read_text()
    assert report.figures["runs"][0]["score"] == 321.0
    assert report.figures["aggregates"] == {}


def test_returns_are_compared_at_equal_steps_and_at_equal_time(tmp_path: Path) -> None:
    # Rows at 0, 1000, .. 4000 steps and 0, 1, .. 4 minutes; the first run's are halved in steps and doubled in time.
    slow = a_run(tmp_path / "slow", "gym/CartPole-v1", 1, 100.0, regime="lockstep", lag=0)
    rows = [json.loads(line) for line in (slow / "metrics.jsonl").read_text().splitlines()]
    rows = [{**row, "agent_steps": row["agent_steps"] // 2, "time_s": 2 * row["time_s"]} for row in rows]
    (slow / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fast = a_run(tmp_path / "fast", "gym/CartPole-v1", 1, 40.0, regime="async")
    report = write_report([slow, fast], tmp_path / "page")
    by_method = {run["method"]: run for run in report.figures["runs"]}
    assert list(by_method) == ["regime=lockstep", "regime=async"]
    # Compared at 2000 steps and at 4 minutes: slow at its end and half way, fast half way and at its end.
    assert by_method["regime=lockstep"]["return_at_equal_steps"] == pytest.approx(100.0)
    assert by_method["regime=lockstep"]["return_at_equal_time"] == pytest.approx(50.0)
    assert by_method["regime=async"]["return_at_equal_steps"] == pytest.approx(20.0)
    assert by_method["regime=async"]["return_at_equal_time"] == pytest.approx(40.0)
    assert "(2,000 agent steps, 4.0 minutes)" in report.page.read_text()


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", "gym/CartPole-v1", 1, 100.0)
    two = a_run(tmp_path / "two", "gym/CartPole-v1", 1, 100.0, **{"rollout.num_workers": 1})
    with pytest.raises(ComparisonError, match="no runs"):
        compare([])
    with pytest.raises(ComparisonError, match="twice"):
        compare([one, one])
    with pytest.raises(ComparisonError, match="same method"):
        compare([one, two])
    named = compare([f"a={one}", f"b={two}"])
    assert named.labels == ["a", "b"]


def test_runs_that_learned_nothing_are_left_out(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", "gym/CartPole-v1", 1, 100.0)
    failed, other = tmp_path / "failed", tmp_path / "other"
    for folder in (failed, other):
        folder.mkdir()
    (failed / "run.log").write_text("ImportError")
    starting = a_run(tmp_path / "starting", "gym/CartPole-v1", 2, 100.0)
    (starting / "run.log").touch()
    (starting / "metrics.jsonl").write_text("")
    report = write_report([one, f"b={failed}", starting], tmp_path / "report")
    assert [run["directory"] for run in report.figures["runs"]] == [str(one)]
    assert report.notes == tuple(
        f"{path} is left out: the run has no metrics, see its run.log." for path in (failed, starting)
    )
    assert f'<p class="note">{report.notes[0]}</p>' in report.page.read_text()
    with pytest.raises(RunDirectoryError, match="ended before it learned anything"):
        compare([failed])
    with pytest.raises(RunDirectoryError, match="other is not a run"):
        compare([one, failed, other])


@pytest.mark.filterwarnings("ignore:Glyph 0")  # The font has none for it.
@pytest.mark.parametrize("name", ["../../<b>$x$", "a\0b", "\u00e9" * 3000])
def test_a_run_of_any_environment_has_a_row_and_a_picture_in_the_folder(tmp_path: Path, name: str) -> None:
    run = a_run(tmp_path / "a", "gym/CartPole-v1", 1, 3.0)
    config = load_config(run)
    write_config(run, replace(config, env=replace(config.env, name=name)))
    report = write_report([run], tmp_path / "deep" / "er" / "report")
    assert all(path.parent == tmp_path / "deep" / "er" / "report" for path in report.pictures)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "deep"]
    assert "<b>" not in report.page.read_text()


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "gym/CartPole-v1", 1, 100.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritableError, match=r"cannot be written to .*file .*another directory \(--output\)"):
        write_report([run], tmp_path / "file")
    (tmp_path / "report" / "report.json").mkdir(parents=True)
    with pytest.raises(NotWritableError, match="report"):
        write_report([run], tmp_path / "report")
