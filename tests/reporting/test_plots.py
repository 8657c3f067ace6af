"""Learning curves: the numbers behind the picture, and the picture."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmill.extras import MissingPackageError
from rollmill.reporting.metrics import MetricsWriter, NoMetricsError, read_metrics
from rollmill.reporting.plots import (
    Curve,
    NothingToPlotError,
    PlotError,
    curve_of,
    drawable,
    evaluated,
    overlay,
    overlay_if_alike,
    plot_runs,
)
from rollmill.storage.evaluations import EVALUATIONS_FILE


def make_run(run_dir: Path, offset: float, last: int = 20, **more: Any) -> Path:
    with MetricsWriter(run_dir) as writer:
        for i in range(last):
            writer.write(
                {
                    "agent_steps": i * 1000,
                    "time_s": float(i),
                    "episode_return": None if i == 0 else i + offset,
                    "episode_return_std": 1.0,
                    "frames_per_second": 4000.0,
                    "policy_lag_mean": 1.0,
                    "policy_lag_max": 2,
                    **more,
                }
            )
    return run_dir


def test_a_curve_has_the_records_with_both_numbers_in_order() -> None:
    records: list[dict[str, Any]] = [
        {"x": 3, "y": 1.0},
        {"x": 1, "y": 2},
        {"x": 2, "y": None},
        {"y": 3},
        {"x": 4, "y": "text"},
    ]
    curve = curve_of(records, "x", "y")
    assert curve.x.tolist() == [1.0, 3.0]
    assert curve.y.tolist() == [2.0, 1.0]
    assert len(curve_of([], "x", "y").x) == 0


def test_an_overlay_is_mean_and_range_where_all_runs_are() -> None:
    first = Curve(np.array([0.0, 10.0]), np.array([0.0, 10.0]))
    second = Curve(np.array([5.0, 20.0]), np.array([8.0, 23.0]))
    band = overlay([first, second, Curve(np.array([]), np.array([]))])
    assert (band.x[0], band.x[-1]) == (5.0, 10.0)
    np.testing.assert_allclose(band.low, band.x)
    np.testing.assert_allclose(band.high, band.x + 3)
    np.testing.assert_allclose(band.mean, band.x + 1.5)


def test_one_curve_is_its_own_band() -> None:
    only = Curve(np.array([0.0, 1.0, 5.0]), np.array([1.0, 7.0, 2.0]))
    band = overlay([only])
    assert band.x.tolist() == only.x.tolist()
    assert band.mean.tolist() == band.low.tolist() == band.high.tolist() == only.y.tolist()


def test_curves_without_common_ground_are_refused() -> None:
    with pytest.raises(NothingToPlotError, match="no record"):
        overlay([])
    with pytest.raises(NothingToPlotError, match="in common"):
        overlay([Curve(np.array([0.0]), np.array([1.0])), Curve(np.array([2.0]), np.array([1.0]))])


def is_mostly_coloured(path: Path, colour: tuple[int, int, int]) -> int:
    from PIL import Image

    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return int((np.abs(pixels - colour).sum(-1) < 30).sum())


def test_the_picture_shows_the_curves(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 0.0), make_run(tmp_path / "b", 5.0)]
    one = plot_runs(runs[:1], tmp_path / "plots" / "one.png", goal=15)
    two = plot_runs(runs, tmp_path / "two.png", title="both")
    blue, orange, green = (0, 114, 178), (213, 94, 0), (0, 158, 115)
    assert is_mostly_coloured(one, blue) > 1000
    assert is_mostly_coloured(one, orange) > 300
    assert is_mostly_coloured(one, green) > 300
    assert is_mostly_coloured(two, green) == 0
    assert is_mostly_coloured(two, blue) > 1000


def test_evaluations_are_points_with_their_intervals(tmp_path: Path) -> None:
    lag: dict[str, Any] = {"policy_lag_mean": None, "policy_lag_max": None}
    run, orange = make_run(tmp_path / "a", 0.0, **lag), (213, 94, 0)
    records = [
        {"agent_steps": 300, "mean_return": 9.0, "interval_95": [4.0, 12.0]},
        {"agent_steps": 100, "mean_return": 5.0, "interval_95": [4.0, 7.0]},
        {"agent_steps": 400, "mean_return": float("nan"), "interval_95": [4.0, 7.0]},
        {"agent_steps": 500, "mean_return": 5.0},
    ]
    found = evaluated(records)
    assert [column.tolist() for column in found] == [[100, 300], [5, 9], [4, 4], [7, 12]]
    assert all(not len(column) for column in evaluated([]))
    (run / EVALUATIONS_FILE).write_text("\n".join(json.dumps(record) for record in records[:2]))
    assert is_mostly_coloured(plot_runs([run], tmp_path / "evaluated.png"), orange) > 100


def test_the_title_says_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr("matplotlib.figure.Figure.suptitle", lambda _, title, **__: titles.append(title))
    first, second = make_run(tmp_path / "a", 0.0), make_run(tmp_path / "b", 5.0)
    begun, empty = make_run(tmp_path / "c", 0.0, last=2), make_run(tmp_path / "d", 0.0, last=0)
    (empty / "metrics.jsonl").touch()
    for runs in ([first], [first, second], [first, begun], [first, empty]):
        plot_runs(runs, tmp_path / "picture.png")
    assert titles == ["a", "a (2 runs: mean and range)", "a (2 runs: one line each)", "a (1 run, 1 without rows)"]


def test_a_run_with_a_single_point_shows_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 0.0, last=2, episode_return_std=None)
    assert is_mostly_coloured(plot_runs([run], tmp_path / "one.png"), (0, 114, 178)) > 30


def test_a_run_that_ended_early_does_not_hide_the_others(tmp_path: Path) -> None:
    whole, blue = make_run(tmp_path / "a", 0.0), (0, 114, 178)
    short = make_run(tmp_path / "b", 0.0)
    first = (short / "metrics.jsonl").read_text().splitlines()[:1]
    (short / "metrics.jsonl").write_text(first[0] + "\n")
    empty = make_run(tmp_path / "c", 0.0)
    (empty / "metrics.jsonl").write_text("")
    alone = is_mostly_coloured(plot_runs([whole], tmp_path / "alone.png"), blue)
    both = is_mostly_coloured(plot_runs([whole, short, empty], tmp_path / "both.png"), blue)
    assert both > 0.3 * alone
    curves = [curve_of(read_metrics(run), "time_s", "frames_per_second") for run in (whole, short)]
    assert overlay_if_alike(curves) is None
    assert overlay_if_alike(curves[:1] * 2) is not None


def test_a_mean_that_rounding_puts_outside_of_its_interval_is_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 0.0)
    above = {"agent_steps": 300, "mean_return": 1 / 3, "interval_95": [1 / 3 + 1e-16, 1 / 3 + 1e-16]}
    (run / EVALUATIONS_FILE).write_text(json.dumps(above) + "\n")
    assert plot_runs([run], tmp_path / "evaluated.png").is_file()


def test_a_replay_shows_its_samples_age_where_others_show_their_lag(tmp_path: Path) -> None:
    lag: dict[str, Any] = {"policy_lag_mean": None, "policy_lag_max": None}
    orange = (213, 94, 0)
    neither = plot_runs([make_run(tmp_path / "a", 0.0, **lag)], tmp_path / "neither.png")
    assert is_mostly_coloured(neither, orange) == 0
    age = plot_runs([make_run(tmp_path / "b", 0.0, **lag, **{"replay/age": 500.0})], tmp_path / "age.png")
    assert is_mostly_coloured(age, orange) > 300


def test_a_title_is_no_formula(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 0.0)
    assert plot_runs([run], tmp_path / "x.png", title=r"my/$\frac{maze$").stat().st_size > 1000


def test_a_name_that_is_not_utf8_is_drawn_with_escapes(tmp_path: Path) -> None:
    run = make_run(tmp_path / os.fsdecode(b"caf\xe9"), 0.0)
    assert plot_runs([run], tmp_path / "x.png").stat().st_size > 1000
    assert drawable(os.fsdecode(b"caf\xe9")) == r"caf\udce9"


def test_a_run_without_an_episode_is_still_drawn(tmp_path: Path) -> None:
    assert plot_runs([make_run(tmp_path / "a", 0.0, last=1)], tmp_path / "x.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["a.foo", "file/a.png", "."])
def test_a_picture_that_cannot_be_written_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    make_run(tmp_path / "run", 1.0)
    with pytest.raises(PlotError, match="cannot be written"):
        plot_runs([tmp_path / "run"], tmp_path / name)


def test_a_name_without_a_suffix_is_a_png(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 0.0)
    assert plot_runs([run], tmp_path / "curves").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "curves"]


def test_a_picture_replaces_a_link_and_leaves_what_it_leads_to_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 0.0)
    (tmp_path / "profile").write_text("mine")
    (run / "curve.png").symlink_to(tmp_path / "profile")
    before = sorted(path.name for path in run.iterdir())
    plot_runs([run], run / "curve.png")
    assert (tmp_path / "profile").read_text() == "mine"
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in run.iterdir()) == before


def test_a_run_without_records_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "a", 0.0, last=0)
    with pytest.raises(NothingToPlotError, match="no metrics"):
        plot_runs([tmp_path / "a"], tmp_path / "x.png")
    with pytest.raises(NoMetricsError, match="does not exist"):
        plot_runs([tmp_path / "b"], tmp_path / "x.png")


def test_without_matplotlib_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(MissingPackageError, match=r"a learning curve needs matplotlib, .*: pip install matplotlib"):
        plot_runs([tmp_path], tmp_path / "a.png")
