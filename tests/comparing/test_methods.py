"""Which settings make a method, and how methods are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollmill.comparing.methods import differing_settings, is_of_method, labels, settings_of_run


def test_settings_that_identify_a_run_are_left_out(tmp_path: Path) -> None:
    identity = {
        "seed": 1,
        "preset": "gym/a",
        "env.name": "gym/a",
        "env.imports": (),
        "tracker": None,
        "tracking.group": "g",
    }
    others = {"learner.epochs": 4, "env.frameskip": 2, "learner.precision": "fp32"}
    assert settings_of_run(identity | others, tmp_path, []) == others


@pytest.mark.parametrize(
    ("records", "log", "expected"),
    [
        ([], None, "auto"),
        ([], "nothing of the learner", "auto"),
        ([{"precision": "bf16"}], "12:00 learner: fp32, channels_last", "bf16"),
        ([{"precision": None}, {}], "12:00 learner: fp32, channels_last", "fp32"),
        ([{"precision": p} for p in ("bf16", "bf16", "fp32", "fp32", "bf16")], None, "bf16, then fp32, then bf16"),
        ([], "1 learner: bf16, a\n2 learner: bf16, b\n3 xlearner: fp64\n4 learner: fp16x\n", "bf16"),
    ],
)
def test_an_automatic_precision_is_the_one_that_was_used(
    tmp_path: Path, records: list[dict[str, Any]], log: str | None, expected: str
) -> None:
    if log is not None:
        (tmp_path / "run.log").write_text(log)
    assert settings_of_run({"learner.precision": "auto"}, tmp_path, records) == {"learner.precision": expected}
    given = settings_of_run({"learner.precision": "fp64"}, tmp_path, records)
    assert given == {"learner.precision": "fp64"}


def test_a_log_that_is_no_text_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes(b"\xff\xfe learner: bf16, \xff")
    assert settings_of_run({"learner.precision": "auto"}, tmp_path, []) == {"learner.precision": "bf16"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("learner.epochs", True),
        ("num_envs", True),
        ("env.frameskip", True),
        ("rollout_length", True),
        ("max_seconds", False),
        ("eval_episodes", False),
        ("rollout.num_workers", False),
        ("placement.pin", False),
        ("checkpoint.every_s", False),
        ("debug_delay_s", False),
    ],
)
def test_where_and_how_long_a_run_is_trained_makes_no_method(key: str, expected: bool) -> None:
    assert is_of_method(key) is expected


def test_settings_differ_within_an_environment_only() -> None:
    settings = [{"epochs": 1, "lag": 0, "same": 5}, {"epochs": 4, "lag": 0, "same": 5}, {"epochs": 9, "lag": 1}]
    assert differing_settings(settings, ["a", "b", "c"]) == []
    assert differing_settings(settings, ["a", "a", "b"]) == ["epochs"]
    assert differing_settings(settings, ["a", "a", "a"]) == ["epochs", "lag"]
    assert differing_settings([], []) == []


def test_a_setting_that_a_run_lacks_does_not_differ() -> None:
    settings: list[dict[str, Any]] = [{"regime": "async"}, {"regime": "lockstep", "lag": 1}]
    assert differing_settings(settings, ["a", "a"]) == ["regime"]


def test_equal_numbers_of_different_types_differ_as_they_are_written() -> None:
    assert differing_settings([{"x": 1}, {"x": 1.0}], ["a", "a"]) == ["x"]
    assert differing_settings([{"x": (1, 2)}, {"x": (1, 2)}], ["a", "a"]) == []


def test_labels_are_the_settings_that_tell_methods_apart() -> None:
    settings: list[dict[str, Any]] = [
        {"regime": "async", "learner.epochs": 1},
        {"regime": "lockstep", "learner.epochs": 4, "lag": 1},
        {"regime": "lockstep", "learner.epochs": 1, "lag": 1},
    ]
    assert labels(settings, ["regime", "learner.epochs"]) == [
        "regime=async, epochs=1",
        "regime=lockstep, epochs=4",
        "regime=lockstep, epochs=1",
    ]


def test_labels_have_no_more_settings_than_are_needed() -> None:
    settings = [{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 2}]
    assert labels(settings, ["a", "b", "c"]) == ["a=1", "a=2"]
    of_four = [{"a": a, "b": b, "c": a} for a in (1, 2) for b in (1, 2)]
    assert labels(of_four, ["c", "a", "b"]) == ["c=1, a=1, b=1", "c=1, a=1, b=2", "c=2, a=2, b=1", "c=2, a=2, b=2"]


def test_runs_of_one_method_have_its_name() -> None:
    settings = [{"max_seconds": 1, "rollout.num_workers": 1}, {"max_seconds": 2, "rollout.num_workers": 2}]
    assert labels(settings, ["max_seconds", "rollout.num_workers"]) == ["rollmill", "rollmill"]
    assert labels(settings, []) == ["rollmill", "rollmill"]


def test_a_label_leaves_out_what_its_run_lacks() -> None:
    settings: list[dict[str, Any]] = [
        {"regime": "async"},
        {"regime": "lockstep", "lag": 1},
        {"regime": "lockstep", "lag": 2},
    ]
    assert labels(settings, ["regime", "lag"]) == ["regime=async", "regime=lockstep, lag=1", "regime=lockstep, lag=2"]
