"""Runs with trackers: what these have of a run and of its resumption, and that none of them ends a run."""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.regimes import tracked_run
from rollmill.reporting.metrics import read_metrics
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.evaluations import EvaluationQueue
from rollmill.tracking.base import FileKind, TrackedRun
from rollmill.tracking.ids import TRACKING_FILE
from rollmill.tracking.registry import TRACKERS, is_installed

sys.path.insert(0, str(Path(__file__).parents[1] / "tracking"))

from services import KEPT

# Those of the services' packages, which are raised in the trackers' threads.
pytestmark = pytest.mark.filterwarnings("ignore")

TINY: dict[str, Any] = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 8,
    "learner.batch_size": 64,
    "learner.minibatches": 1,
    "learner.epochs": 1,
    "learner.precision": "fp32",
    "inference.precision": "fp32",
    "model.mlp_sizes": (8,),
    "rollout.num_workers": 1,
    "report_every_s": 0.05,
    "quiet": True,
}


def ids_in(run_dir: Path) -> dict[str, str]:
    content = json.loads((run_dir / TRACKING_FILE).read_text())
    return {name: id for name, id in content.items() if name != "signature"}


# One run for all services that are installed; tests/tracking has one test each.
@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_services_have_a_run_and_its_resumption(tmp_path: Path) -> None:
    run_dir, project = tmp_path / "run", f"p{uuid.uuid4().hex[:8]}"
    services = [name for name in KEPT if is_installed(name)]
    settings = {
        **TINY,
        "tracker": ",".join(["tensorboard", *services]),
        "tracking.project": project,
        "eval_every": 1000,
        "eval_episodes": 2,
        "eval_video": 2,
    }
    first = rollmill.train("gym/CartPole-v1", run_dir=run_dir, total_steps=1000, **settings)
    ids = ids_in(run_dir) if services else {}
    last = rollmill.train(run_dir=run_dir, resume=True, total_steps=2000, quiet=True)
    assert last.agent_steps >= 2000 > first.agent_steps >= 1000
    rows, records = read_metrics(run_dir), EvaluationQueue(run_dir).records()
    for number, record in enumerate(records):
        video = f"videos/steps_{record['agent_steps']:012d}.mp4" if number % 2 == 0 else None
        assert record["video"] == video
        assert video is None or (run_dir / video).stat().st_size > 1000
    assert len(records) >= 3
    log = (run_dir / "run.log").read_text()
    assert "failed" not in log
    for name in services:
        assert ids_in(run_dir)[name] == ids[name]
        assert log.count(f"tracker {name}: ") == 2, "where to look is noted in each session"
        kept = KEPT[name](run_dir, ids[name], project)
        losses = [(row["agent_steps"], row["loss/policy"]) for row in rows if row.get("loss/policy") is not None]
        assert losses == [(steps, pytest.approx(value)) for steps, value in sorted(kept.points("loss/policy"))]
        returns = [(record["agent_steps"], pytest.approx(record["mean_return"])) for record in records]
        assert sorted(kept.points("evaluation/mean_return")) == returns
        assert int(kept.config["num_envs"]) == 4
        assert len([file for file in kept.files if file.endswith(".mp4")]) == len(list(run_dir.glob("videos/*.mp4")))
        assert [kind for kind in ("final", "best") if any(kind in file for file in kept.files)] == ["final", "best"]
        assert kept.state in ("", "0", "FINISHED")
    if is_installed("tensorboard"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
        steps = [event.step for event in events.Scalars("run/agent_steps")]
        assert steps == [row["agent_steps"] for row in rows]


class Mine:
    """A tracker of a user, which keeps what it gets and may fail."""

    id: str | None = None
    place = ""
    runs: list[Mine] = []  # noqa: RUF012  one for all

    def __init__(self, run: TrackedRun) -> None:
        self.run = run
        self.rows: list[tuple[dict[str, float], int, str | None]] = []
        self.files: list[tuple[str, str, str | None]] = []
        self.ended_by = ""
        Mine.runs.append(self)

    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        self.rows.append((dict(numbers), agent_steps, policy))

    def log_file(self, path: Path, kind: FileKind, name: str, agent_steps: int, policy: str | None) -> None:
        assert path.is_file()
        self.files.append((kind, name, policy))

    def finish(self, ended_by: str) -> None:
        self.ended_by = ended_by


class Raising(Mine):
    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        raise ConnectionError("the service is down")


class Hanging(Mine):
    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        threading.Event().wait(60.0)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Mine]]:
    monkeypatch.setattr(TRACKERS, "factories", dict(TRACKERS.factories))
    monkeypatch.setattr(Mine, "runs", [])
    for name, factory in (("mine", Mine), ("raising", Raising), ("hanging", Hanging)):
        rollmill.register_tracker(name, factory)
    return Mine.runs


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_trackers_that_raise_and_hang_do_not_end_a_run(tmp_path: Path, mine: list[Mine]) -> None:
    run = rollmill.train(
        "gym/CartPole-v1",
        run_dir=tmp_path / "run",
        total_steps=3000,
        tracker=("raising", "hanging", "mine"),
        **TINY,
        **{"tracking.call_timeout_s": 1.0},
    )
    assert run.ended_by == "total_steps"
    assert run.agent_steps >= 3000
    log = (run.dir / "run.log").read_text()
    failed = "failed, and the run continues without it"
    assert log.count(f"tracker raising {failed}: ConnectionError: the service is down") == 1
    assert log.count(f"tracker hanging {failed}: a call has not returned within 1 s") == 1
    (good,) = [each for each in mine if type(each) is Mine]
    assert [steps for _, steps, _ in good.rows] == [row["agent_steps"] for row in read_metrics(run.dir)]
    assert good.run.config["total_steps"] == 3000
    assert good.ended_by == "total_steps"
    assert ("checkpoint", "final", None) in good.files
    assert not (run.dir / "tensorboard").exists()


@pytest.mark.slow
def test_policies_are_tracked_under_their_names(tmp_path: Path, mine: list[Mine]) -> None:
    run = rollmill.train(
        "gym/CartPole-v1", run_dir=tmp_path / "run", total_steps=3000, policies=2, tracker="mine,tensorboard", **TINY
    )
    (tracker,) = mine
    assert set(tracker.run.policies) == {"0", "1"}
    for name in ("0", "1"):
        folder = run.dir / "policies" / name
        steps = [row["agent_steps"] for row in read_metrics(folder)]
        assert [steps for _, steps, policy in tracker.rows if policy == name] == steps
        assert ("checkpoint", "final", name) in tracker.files
        if is_installed("tensorboard"):
            assert any((folder / "tensorboard").iterdir())
    assert [steps for _, steps, policy in tracker.rows if policy is None] == [
        row["agent_steps"] for row in read_metrics(run.dir)
    ]


@pytest.mark.slow
def test_a_run_without_trackers_has_metrics_alone(tmp_path: Path) -> None:
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", total_steps=500, tracker="none", **TINY)
    assert read_metrics(run.dir)
    assert not {"tensorboard", TRACKING_FILE} & set(os.listdir(run.dir))


def test_a_link_in_place_of_a_checkpoint_is_not_uploaded(tmp_path: Path, mine: list[Mine]) -> None:
    config = rollmill.make_config("gym/CartPole-v1", {"tracker": "mine"})
    store = CheckpointStore(tmp_path / "run" / "checkpoints", CheckpointConfig())
    other = CheckpointStore(tmp_path / "other", CheckpointConfig()).save({"model": {}}, 5)
    store.folder.mkdir(parents=True)
    store.best_path.symlink_to(other)
    with tracked_run.start_trackers(config, tmp_path / "run", is_resumed=False, note=lambda line: None) as trackers:
        tracked_run.log_checkpoints(trackers, config, tmp_path / "run")
    assert mine[0].files == []
