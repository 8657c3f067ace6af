"""Metrics: what is written is what is read, whatever happened in between."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rollmill.reporting.metrics import (
    METRICS_FILE,
    MetricsNotWrittenError,
    MetricsWriter,
    NoMetricsError,
    TrackerNotInstalledError,
    read_metrics,
)
from rollmill.storage.evaluations import EvaluationQueue


def write(run_dir: Path, *steps: int, resume_at_steps: int | None = None) -> None:
    with MetricsWriter(run_dir, tensorboard=False, resume_at_steps=resume_at_steps) as writer:
        for step in steps:
            writer.write({"agent_steps": step, "time_s": step / 10})


def steps_of(run_dir: Path) -> list[int]:
    return [record["agent_steps"] for record in read_metrics(run_dir)]


def test_records_are_on_disk_at_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "run", tensorboard=False) as writer:
        writer.write({"agent_steps": 1, "episode_return": None, "loss/policy": 0.25, "note": "x"})
        assert read_metrics(tmp_path / "run") == [
            {"agent_steps": 1, "episode_return": None, "loss/policy": 0.25, "note": "x"}
        ]
    writer.close()


def test_numpy_numbers_become_numbers_and_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write({"agent_steps": np.int64(3), "a": np.float32(0.5), "b": float("nan"), "c": np.float64("inf")})
    text = (tmp_path / METRICS_FILE).read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"agent_steps": 3, "a": 0.5, "b": None, "c": None}


def test_a_record_without_steps_is_refused(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer, pytest.raises(ValueError, match="needs agent_steps"):
        writer.write({"loss": 1.0})


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_disk_that_takes_no_more_is_said_once(tmp_path: Path, tensorboard: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsWriter(tmp_path, tensorboard=tensorboard) as writer:
        writer.write({"agent_steps": 1, "time_s": 0.1})
        largest = max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert (largest > (tmp_path / METRICS_FILE).stat().st_size) is tensorboard, "so that the events are what fails"
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 5, hard))
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


def test_tensorboard_reads_the_events_and_a_resumed_run_hides_the_old_end(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resume, records in ((None, [(10, 1.0), (20, 2.0), (30, 3.0)]), (20, [(25, 9.0)])):
        with MetricsWriter(tmp_path, resume_at_steps=resume) as writer:
            for step, value in records:
                writer.write({"agent_steps": step, "episode_return": value, "loss/policy": value, "nothing": None})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/policy")] == [(10, 1.0), (20, 2.0), (25, 9.0)]
    assert set(events.Tags()["scalars"]) == {"run/agent_steps", "run/episode_return", "loss/policy"}


def test_writing_events_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from rollmill.reporting.metrics import MetricsWriter\n"
        f"with MetricsWriter({str(tmp_path)!r}) as w: w.write({{'agent_steps': 1}})\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_tracker_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed, also where it is
    with pytest.raises(TrackerNotInstalledError, match=r"'mill' needs the package wandb: pip install wandb"):
        MetricsWriter(tmp_path, wandb_project="mill")


def test_runs_of_earlier_versions_are_read_under_todays_names(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text('{"agent_steps": 9, "updates": 3, "policy_version": 12}\n')
    write(tmp_path, 10)
    assert read_metrics(tmp_path) == [
        {"agent_steps": 9, "batches": 3, "sgd_steps": 12},
        {"agent_steps": 10, "time_s": 1.0},
    ]


def found(run_dir: Path, *steps: int) -> None:
    queue = EvaluationQueue(run_dir)
    for step in steps:
        figures = {
            "mean_return": 1.0 + step,
            "std_return": 2.0,
            "min_return": 0.0,
            "max_return": 9.0,
            "mean_length": 7.0,
        }
        queue.found(run_dir / "none", {"agent_steps": step, **figures, "returns": [1.0]})


def test_evaluations_are_in_tensorboard_at_the_steps_of_their_networks(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def shown() -> list[tuple[int, float]]:
        events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
        assert {f"evaluation/{name}" for name in ("std_return", "min_return", "max_return", "mean_length")} < set(
            events.Tags()["scalars"]
        )
        return [(event.step, event.value) for event in events.Scalars("evaluation/mean_return")]

    with MetricsWriter(tmp_path) as writer:
        writer.write({"agent_steps": 20})
        found(tmp_path, 0, 10)
        assert [record["agent_steps"] for record in writer.write_evaluations()] == [0, 10]
        assert writer.write_evaluations() == []
        writer.write({"agent_steps": 30})
        found(tmp_path, 30)
        assert len(writer.write_evaluations()) == 1
    assert shown() == [(0, 1.0), (10, 11.0), (30, 31.0)]
    # A resumed run hides what was after its checkpoint, but does not evaluate it again.
    with MetricsWriter(tmp_path, resume_at_steps=20) as writer:
        writer.write_evaluations()
        found(tmp_path, 40)
        writer.write_evaluations()
    assert shown() == [(0, 1.0), (10, 11.0), (30, 31.0), (40, 41.0)]
    with MetricsWriter(tmp_path) as writer:
        assert writer.write_evaluations() == []


def test_without_tensorboard_only_the_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with MetricsWriter(tmp_path) as writer:
        writer.write({"agent_steps": 1, "time_s": 0.1})
    assert steps_of(tmp_path) == [1]
    assert [path.name for path in tmp_path.iterdir()] == [METRICS_FILE]
