"""What a report shows of runs with few rows of metrics, of many methods, and of settings that differ."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rollmill
from rollmill.comparing.figures import draw_curves, styles
from rollmill.comparing.method_curves import curve_notes, curves_of_method
from rollmill.comparing.page import write_report
from rollmill.comparing.runs import compare
from rollmill.settings.run_config import write_config

CARTPOLE = "gym/CartPole-v1"
MakeRun = Callable[..., str]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(name: str, seed: int, points: list[tuple[int, float | None]], **settings: object) -> str:
        """A run's directory with rows at (agent steps, return)."""
        folder = tmp_path / f"{name}-{seed}"
        folder.mkdir()
        write_config(folder, rollmill.make_config(CARTPOLE, {"seed": seed, **settings}))
        rows = [{"agent_steps": x, "time_s": x / 100, "episode_return": y} for x, y in points]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return f"{name}={folder}" if name else str(folder)

    return make


def colours_in(picture: Path) -> set[str]:
    from matplotlib.image import imread

    pixels = (imread(picture)[..., :3].reshape(-1, 3) * 255).round().astype(np.uint8)
    return {"#" + bytes(pixel).hex() for pixel in np.unique(pixels, axis=0)}


def test_runs_without_a_common_part_of_the_axis_are_drawn_one_by_one(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("short", 1, [(0, None), (10_000, 20.0)]), make_run("short", 2, [(0, None), (40_000, 90.0)])]
    runs.append(make_run("long", 1, [(1000 * i, float(i)) for i in range(1, 41)]))
    found = compare(runs)
    for axis in ("agent_steps", "time_s"):
        curves = curves_of_method(found.of("short", CARTPOLE), axis)
        assert [curve.y.tolist() for curve in curves.singles] == [[20.0], [90.0]]
        assert curves.mean is None
    picture = draw_curves(found, CARTPOLE, tmp_path / "curves.png")
    # The legend's line has the colour too, so it is the points that are looked for.
    short, _ = styles(2)
    alone = draw_curves(compare([make_run("short", 3, [(0, None)]), runs[-1]]), CARTPOLE, tmp_path / "none.png")
    assert count_of(picture, short.colour) > count_of(alone, short.colour) + 20
    notes = " ".join(curve_notes(found, CARTPOLE))
    assert "short: runs of seed 1, 2 have curves of at most 10 points" in notes
    assert "each is drawn separately" in notes
    assert "long" not in notes


def count_of(picture: Path, colour: str) -> int:
    from matplotlib.image import imread

    pixels = (imread(picture)[..., :3] * 255).round().astype(np.uint8)
    return int((pixels == np.frombuffer(bytes.fromhex(colour[1:]), np.uint8)).all(-1).sum())


def test_runs_that_cover_most_of_the_axis_have_a_mean(make_run: MakeRun) -> None:
    points = [[(1000 * i, float(s * i)) for i in range(1, 31)] for s in (1, 3)]
    found = compare([make_run("x", s, points[s - 1]) for s in (1, 2)])
    curves = curves_of_method(found.of("x", CARTPOLE), "agent_steps")
    assert curves.mean is not None
    assert curves.mean.mean[-1] == pytest.approx(60.0)
    assert curve_notes(found, CARTPOLE) == []


def test_a_run_without_a_curve_is_named(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("none", 1, []), make_run("none", 2, [(0, None), (1000, None)]), make_run("some", 1, [(1000, 5.0)])]
    report = write_report(runs, tmp_path / "page")
    page = report.page.read_text()
    assert "none: runs of seed 1 have no curve, because their metrics have no rows." in page
    assert "none: runs of seed 2 have no curve, because no row of their metrics has a return." in page
    assert report.figures["notes"][CARTPOLE][-1].startswith("some: runs of seed 1 have curves of at most 10 points")


@pytest.mark.parametrize("count", [1, 8, 9, 12, 40, 150])
def test_any_number_of_methods_has_distinct_colours_and_neighbours_distinct_lines(count: int) -> None:
    found = styles(count)
    assert len({style.colour for style in found}) == count
    for one, other in itertools.pairwise(found):
        assert one.line != other.line
        assert one.marker != other.marker


def test_nine_methods_are_told_apart_in_the_picture(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(f"method {i}", 1, [(1000 * k, float(i * k)) for k in range(20)]) for i in range(9)]
    report = write_report(runs, tmp_path / "page")
    curves = next(path for path in report.pictures if path.name.startswith("curves"))
    assert {style.colour for style in styles(9)} <= colours_in(curves)


def test_every_environment_has_bootstrap_intervals_and_rows_sorted_by_return(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("weak", s, [(1000, 10.0 * s)]) for s in (1, 2, 3)]
    runs += [make_run("strong", s, [(1000, 100.0 + s)]) for s in (1, 2, 3)]
    runs += [make_run("one", 1, [(1000, 50.0)]), make_run("none", 1, [(1000, None)])]
    report = write_report(runs, tmp_path / "page")
    page = report.page.read_text()
    assert "human = 1" not in page
    methods = re.findall(r"<tr><td>(\w+)</td>", page)
    assert methods == ["strong", "one", "weak", "none"]
    of_env = report.figures["returns"][CARTPOLE]
    assert set(of_env) == {"weak", "strong", "one"}
    # Means of three draws of 10, 20 and 30: 1 of 27 has 10 and 30 each, so 95 % lie between them.
    assert of_env["weak"]["value"] == pytest.approx(20.0)
    assert of_env["weak"]["low"] == pytest.approx(10.0)
    assert of_env["weak"]["high"] == pytest.approx(30.0)
    assert "10.00 to 30.00" in page
    assert any(path.name == "scores-gym-CartPole-v1.png" for path in report.pictures)
    assert write_report(runs, tmp_path / "again").figures == report.figures


def test_settings_that_differ_are_columns(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("", 1, [(1000, 5.0)]), make_run("a", 2, [(1000, 7.0)], **{"learner.epochs": 8, "num_envs": 32})]
    runs.append(make_run("a", 3, [(1000, 7.0)], **{"learner.epochs": 8, "num_envs": 16, "rollout.num_workers": 1}))
    report = write_report(runs, tmp_path / "page")
    page = report.page.read_text()
    assert "<th>method</th><th>epochs</th><th>num_workers</th><th>num_envs</th><th>seeds</th>" in page
    assert "<td>a</td><td>8</td><td>auto (1); 1 (1)</td><td>32 (1); 16 (1)</td><td>2</td>" in page
    assert report.figures["runs"][1]["settings"] == {
        "learner.epochs": "8",
        "rollout.num_workers": "auto",
        "num_envs": "32",
    }


@pytest.mark.parametrize("source", ["metrics", "log"])
def test_the_precision_that_was_resolved_tells_methods_apart(make_run: MakeRun, tmp_path: Path, source: str) -> None:
    runs = [make_run("", seed, [(1000, 5.0)]) for seed in (1, 2, 3)]
    for run, precisions in zip(runs, (["fp32"], ["bf16"], ["bf16", "fp32"]), strict=True):
        folder = Path(run)
        if source == "log":
            lines = [f"12:00:00 learner: {one}, channels_first, micro-batch 512: 4 us/sample" for one in precisions]
            (folder / "run.log").write_text("\n".join(lines) + "\n")
        else:
            row = {"agent_steps": 1000, "time_s": 1.0, "episode_return": 5.0}
            rows = [{**row, "precision": one} for one in precisions]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = compare(runs)
    assert found.labels == ["precision=fp32", "precision=bf16", "precision=bf16, then fp32"]
    page = write_report(runs, tmp_path / "page").page.read_text()
    assert "<th>precision</th>" in page
    assert "<td>bf16, then fp32</td>" in page
