"""Metrics that are read while they are written."""

from __future__ import annotations

import json
from pathlib import Path

from rollmill.campaigns.follow import RunFollower, RunLength, curve_of_metric, known_until, metric_keys, value_at


def row(steps: int, value: float | None) -> str:
    return json.dumps({"agent_steps": steps, "episode_return": value}) + "\n"


def test_each_row_is_read_once_and_a_torn_one_later(tmp_path: Path) -> None:
    follower = RunFollower(tmp_path)
    assert not follower.update()
    assert follower.agent_steps == 0
    file = tmp_path / "metrics.jsonl"
    second = row(20, 2.0)
    file.write_text(row(10, None) + second[:5])
    assert follower.update()
    assert follower.agent_steps == 10
    file.write_text(row(10, None) + second)
    assert follower.update()
    assert not follower.update()
    assert follower.curve("episode_return") == [(20, 2.0)]


def test_a_resumed_run_that_drops_rows_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(row(10, 1.0) + row(20, 2.0) + row(30, 3.0))
    follower = RunFollower(tmp_path)
    follower.update()
    file.write_text(row(10, 1.0))
    assert follower.update()
    file.write_text(row(10, 1.0) + row(25, 5.0))
    follower.update()
    assert follower.curve("episode_return") == [(10, 1.0), (25, 5.0)]


def test_lines_that_are_no_rows_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("[1]\n{broken\n" + row(10, 1.0))
    follower = RunFollower(tmp_path)
    follower.update()
    assert follower.rows == [{"agent_steps": 10, "episode_return": 1.0}]


def test_how_much_of_a_run_is_done_goes_by_steps_or_by_time(tmp_path: Path) -> None:
    rows = [
        {"agent_steps": 10, "time_s": 5.0},
        {"agent_steps": 20, "time_s": 10.0},
        {"agent_steps": 50, "time_s": 12.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    follower = RunFollower(tmp_path)
    assert follower.share(RunLength(100)) == 0.0
    follower.update()
    assert follower.share(RunLength(100)) == 0.5
    assert [follower.share(RunLength(100), steps) for steps in (0, 10, 15, 50, 60)] == [0.0, 0.1, 0.15, 0.5, 0.5]
    in_time = RunLength(1000, max_seconds=20.0)
    assert [follower.share(in_time, steps) for steps in (10, 15, 20, 50)] == [0.25, 0.5, 0.5, 0.6]
    assert follower.share(RunLength(40, max_seconds=1000.0)) == 1.0


def test_evaluations_are_a_curve_too(tmp_path: Path) -> None:
    (tmp_path / "evaluations.jsonl").write_text(
        json.dumps({"agent_steps": 20, "mean_return": 7.5}) + "\n" + json.dumps({"agent_steps": 10, "mean_return": 5})
    )
    assert curve_of_metric(tmp_path, [], "evaluation/mean_return") == [(10, 5.0), (20, 7.5)]


def test_each_of_several_policies_has_a_curve_of_evaluations(tmp_path: Path) -> None:
    folder = tmp_path / "policies" / "prey"
    folder.mkdir(parents=True)
    (folder / "evaluations.jsonl").write_text(json.dumps({"agent_steps": 20, "mean_return": 7.5, "env": "a"}))
    metric = "policy/prey/evaluation/mean_return"
    assert curve_of_metric(tmp_path, [], metric) == [(20, 7.5)]
    assert curve_of_metric(tmp_path, [], "evaluation/mean_return") == []
    assert metric_keys(tmp_path, [{"x": 1}]) == {"x", metric, "policy/prey/evaluation/agent_steps"}
    assert known_until(metric, [(20, 7.5)], 35) == 20


def test_a_curve_of_evaluations_is_known_until_the_newest() -> None:
    curve = [(10, 1.0), (20, 2.0)]
    assert known_until("episode_return", curve, 35) == 35
    assert known_until("evaluation/mean_return", curve, 35) == 20
    assert known_until("evaluation/mean_return", [], 35) == 0


def test_the_value_at_a_place_is_the_last_before_it() -> None:
    curve = [(10, 1.0), (20, 2.0)]
    assert [value_at(curve, steps) for steps in (9, 10, 19, 50)] == [None, 1.0, 1.0, 2.0]


def test_values_that_are_no_numbers_are_no_points(tmp_path: Path) -> None:
    rows = [{"agent_steps": n, "x": value} for n, value in enumerate([None, True, "a", float("nan"), 3, [1]])]
    assert curve_of_metric(tmp_path, rows, "x") == [(4, 3.0)]
