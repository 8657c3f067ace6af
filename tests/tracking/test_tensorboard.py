"""TensorBoard's events, read back with TensorBoard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollmill.tracking.base import TrackedPolicy, TrackedRun
from rollmill.tracking.config import TrackingConfig

pytest.importorskip("tensorboard", reason="pip install tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rollmill.tracking.tensorboard import TensorBoardTracker, tensorboard_tag


def tracker(directory: Path, **given: Any) -> TensorBoardTracker:
    run = TrackedRun(directory=directory, name="run", config={"seed": 3}, settings=TrackingConfig(), **given)
    return TensorBoardTracker(run)


def events(directory: Path) -> Any:
    return EventAccumulator(str(directory / "tensorboard")).Reload()


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(directory).Scalars(tag)]


def test_a_resumed_run_hides_what_it_writes_again(tmp_path: Path) -> None:
    first = tracker(tmp_path)
    for steps, value in ((10, 1.0), (20, 2.0), (30, 3.0)):
        first.log({"agent_steps": steps, "loss/policy": value}, steps, None)
        assert scalars(tmp_path, "loss/policy")[-1] == (steps, value), "on disk at once"
    first.finish("total_steps")
    second = tracker(tmp_path, is_resumed=True, resume_at_steps=20)
    second.log({"loss/policy": 9.0}, 25, None)
    second.finish("total_steps")
    assert scalars(tmp_path, "loss/policy") == [(10, 1.0), (20, 2.0), (25, 9.0)]
    assert set(events(tmp_path).Tags()["scalars"]) == {"run/agent_steps", "loss/policy"}


def test_the_settings_are_a_text(tmp_path: Path) -> None:
    tracker(tmp_path).finish("total_steps")
    (text,) = events(tmp_path).Tensors("run/settings")
    assert "| `seed` | 3 |" in text.tensor_proto.string_val[0].decode()


def test_policies_have_events_of_their_own(tmp_path: Path) -> None:
    policies = {name: TrackedPolicy(tmp_path / "policies" / name, None) for name in ("a", "b")}
    both = tracker(tmp_path, policies=policies)
    both.log({"loss/policy": 1.0}, 5, "a")
    both.log({"loss/policy": 2.0}, 10, "b")
    both.finish("total_steps")
    assert scalars(policies["a"].directory, "loss/policy") == [(5, 1.0)]
    assert scalars(policies["b"].directory, "loss/policy") == [(10, 2.0)]
    assert events(tmp_path).Tags()["scalars"] == []


def test_metrics_without_a_group_share_one() -> None:
    assert tensorboard_tag("agent_steps") == "run/agent_steps"
    assert tensorboard_tag("loss/policy") == "loss/policy"


def test_writing_events_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rollmill.tracking.base import TrackedRun\n"
        "from rollmill.tracking.config import TrackingConfig\n"
        "from rollmill.tracking.tensorboard import TensorBoardTracker\n"
        f"run = TrackedRun(directory=Path({str(tmp_path)!r}), name='', config={{}}, settings=TrackingConfig())\n"
        "TensorBoardTracker(run).log({'agent_steps': 1.0}, 1, None)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
