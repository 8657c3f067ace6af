"""Metrics: what is written is what is read, whatever happened in between."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest

from rollmill.reporting.metrics import (
    METRICS_FILE,
    MetricsNotWrittenError,
    MetricsWriter,
    NoMetricsError,
    read_metrics,
)
from rollmill.storage.evaluations import EVALUATIONS_FILE


def write(run_dir: Path, *steps: int, resume_at_steps: int | None = None) -> None:
    with MetricsWriter(run_dir, resume_at_steps=resume_at_steps) as writer:
        for step in steps:
            writer.write({"agent_steps": step, "time_s": step / 10})


def steps_of(run_dir: Path) -> list[int]:
    return [record["agent_steps"] for record in read_metrics(run_dir)]


def test_records_are_on_disk_at_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "run") as writer:
        writer.write({"agent_steps": 1, "episode_return": None, "loss/policy": 0.25, "note": "x", "is_on": True})
        assert read_metrics(tmp_path / "run") == [
            {"agent_steps": 1, "episode_return": None, "loss/policy": 0.25, "note": "x", "is_on": True}
        ]
    writer.close()


def test_numpy_numbers_become_numbers_and_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write({"agent_steps": np.int64(3), "a": np.float32(0.5), "b": float("nan"), "c": np.float64("inf")})
    text = (tmp_path / METRICS_FILE).read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"agent_steps": 3, "a": 0.5, "b": None, "c": None}


def test_a_record_without_steps_is_refused(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer, pytest.raises(ValueError, match="needs agent_steps"):
        writer.write({"loss": 1.0})


def test_a_disk_that_takes_no_more_is_said_once(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsWriter(tmp_path) as writer:
        writer.write({"agent_steps": 1, "time_s": 0.1})
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / METRICS_FILE).stat().st_size + 5, hard))
        try:
            with pytest.raises(MetricsNotWrittenError, match=f"to {tmp_path} .*: make room on its disk"):
                writer.write({"agent_steps": 2, "time_s": 0.2})
            writer.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    write(tmp_path, 3, resume_at_steps=1)
    assert steps_of(tmp_path) == [1, 3]


@pytest.mark.parametrize("torn", [b'{"agent_steps": 3, "ti', b'{"agent_steps": 3}', b"\n", b"[1]\n", b"\xff\xfe\n"])
def test_a_torn_end_is_left_out_when_reading_and_dropped_when_writing_on(tmp_path: Path, torn: bytes) -> None:
    write(tmp_path, 1, 2)
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(torn)
    assert steps_of(tmp_path) == [1, 2]
    write(tmp_path, 4)
    assert steps_of(tmp_path) == [1, 2, 4]


@pytest.mark.parametrize(
    "line", [b"{}", b'{"agent_steps": "x"}', b'{"agent_steps": 2, "a": {}}', b'{"agent_steps": 2, "a": NaN}', b"\0"]
)
def test_a_damaged_line_costs_no_other_line(tmp_path: Path, line: bytes) -> None:
    write(tmp_path, 1)
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(line + b"\n")
        file.write(b'{"agent_steps": 3}\n')
    assert steps_of(tmp_path) == [1, 3]
    write(tmp_path, 4)
    assert (tmp_path / METRICS_FILE).read_bytes().count(b"\n") == 3
    assert steps_of(tmp_path) == [1, 3, 4]


def test_every_cut_of_the_file_leaves_whole_records(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 3)
    whole = (tmp_path / METRICS_FILE).read_bytes()
    for cut in range(len(whole) + 1):
        (tmp_path / METRICS_FILE).write_bytes(whole[:cut])
        assert steps_of(tmp_path) == [1, 2, 3][: whole[:cut].count(b"\n")]


def test_resuming_drops_what_will_be_written_again(tmp_path: Path) -> None:
    write(tmp_path, 10, 20, 30)
    write(tmp_path, 21, 31, resume_at_steps=20)
    assert steps_of(tmp_path) == [10, 20, 21, 31]
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_FILE]


def test_a_metrics_file_may_be_named_itself(tmp_path: Path) -> None:
    write(tmp_path, 1)
    assert read_metrics(tmp_path / METRICS_FILE) == read_metrics(tmp_path)


def test_reading_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoMetricsError, match="directory of a run"):
        read_metrics(tmp_path)
    (tmp_path / METRICS_FILE).mkdir()
    with pytest.raises(NoMetricsError, match=r"metrics\.jsonl cannot be read \(Is a directory\)"):
        read_metrics(tmp_path)


def test_runs_of_earlier_versions_are_read_under_todays_names(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text('{"agent_steps": 9, "updates": 3, "policy_version": 12}\n')
    write(tmp_path, 10)
    assert read_metrics(tmp_path) == [
        {"agent_steps": 9, "batches": 3, "sgd_steps": 12},
        {"agent_steps": 10, "time_s": 1.0},
    ]


def test_a_foreign_line_among_the_evaluations_is_left_out(tmp_path: Path) -> None:
    whole = {"agent_steps": 5, "mean_return": 1.0, "std_return": 0.0, "min_return": 1.0, "max_return": 1.0}
    whole |= {"mean_length": 3.0, "episodes": 2, "interval_95": [1.0, 1.0]}
    lines = [{"agent_steps": 4}, whole, {**whole, "agent_steps": 6, "interval_95": None}]
    with MetricsWriter(tmp_path) as writer:
        (tmp_path / EVALUATIONS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert [record["agent_steps"] for record in writer.write_evaluations()] == [5]
