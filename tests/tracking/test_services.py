"""Weights & Biases, MLflow and Trackio with their real packages, on this machine alone."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from services import KEPT, require

from rollmill.tracking.base import TrackedRun, TrackerFactory
from rollmill.tracking.config import TrackingConfig
from rollmill.tracking.mlflow import MlflowTracker
from rollmill.tracking.trackio import TrackioTracker
from rollmill.tracking.wandb import WandbTracker

TRACKERS: dict[str, TrackerFactory] = {"wandb": WandbTracker, "mlflow": MlflowTracker, "trackio": TrackioTracker}

# What the packages themselves do, in the threads that they start as well.
pytestmark = pytest.mark.filterwarnings("ignore")


def tracked(directory: Path) -> TrackedRun:
    settings = TrackingConfig(project=f"p{uuid.uuid4().hex[:8]}", group="seeds", tags=("first", "second"))
    config = {"learner.epochs": 2, "model.mlp_sizes": (8, 8), "seed": None}
    return TrackedRun(directory=directory, name="run", config=config, settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_a_service_keeps_a_run_and_its_resumption(tmp_path: Path, name: str) -> None:
    require(name)
    run = tracked(tmp_path)
    video, checkpoint = tmp_path / "steps_10.mp4", tmp_path / "checkpoint_000001.pt"
    video.write_bytes(b"\0" * 100)
    checkpoint.write_bytes(b"\1" * 100)
    first = TRACKERS[name](run)
    for steps in (10, 20, 30):
        first.log({"agent_steps": steps, "loss/policy": steps / 10}, steps, None)
    first.log({"evaluation/mean_return": 5.0}, 10, None)
    first.log({"agent_steps": 15, "loss/policy": 7.0, "episode_return": 1.0}, 15, "a")
    first.log_file(checkpoint, "checkpoint", "final", 30, "a")
    first.finish("failure")
    assert first.id is not None
    assert first.place
    resumed = replace(
        run, is_resumed=True, resume_id=first.id, resume_at_steps=20, config={**run.config, "learner.epochs": 3}
    )
    second = TRACKERS[name](resumed)
    assert second.id == first.id
    second.log({"agent_steps": 25, "loss/policy": 9.0}, 25, None)
    second.finish("total_steps")
    kept = KEPT[name](tmp_path, first.id, run.settings.project)
    # A service that sorts shows those of one step together; which come first is its affair.
    assert sorted(kept.points("loss/policy")) == [(10, 1.0), (20, 2.0), (25, 9.0), (30, 3.0)]
    assert kept.points("evaluation/mean_return") == [(10, 5.0)]
    assert kept.points("policy/a/loss/policy") == [(15, 7.0)]
    assert kept.points("policy/a/episode_return") == [], "the run's own rows have it"
    assert str(kept.config["learner.epochs"]) == {"wandb": "3", "mlflow": "2", "trackio": "3"}[name]
    assert [path for path in kept.files if "a-final" in path]
    assert kept.state in {"wandb": ["0"], "mlflow": ["FINISHED"], "trackio": [""]}[name]


@pytest.mark.parametrize("name", KEPT)
def test_two_runs_of_one_name_stay_two(tmp_path: Path, name: str) -> None:
    require(name)
    run = tracked(tmp_path)
    ids = []
    for value in (1.0, 2.0):
        tracker = TRACKERS[name](run)
        tracker.log({"agent_steps": 1, "x": value}, 1, None)
        tracker.finish("total_steps")
        ids.append(str(tracker.id))
    assert [KEPT[name](tmp_path, id, run.settings.project).points("x") for id in ids] == [[(1, 1.0)], [(1, 2.0)]]


def test_tags_and_names_are_such_as_mlflow_allows(tmp_path: Path) -> None:
    require("mlflow")
    import mlflow

    run = tracked(tmp_path)
    tags = ("lr=3e-4", "#1", "v1/", "a/b", "..", "group")
    tracker = MlflowTracker(replace(run, settings=replace(run.settings, tags=tags)))
    tracker.log({"env//x": 2.0, "/y": 3.0}, 1, None)
    data = mlflow.MlflowClient().get_run(str(tracker.id)).data
    assert {"lr_3e-4", "_1", "v1_", "a/b", "_"} <= set(data.tags)
    assert data.tags["group"] == "seeds"
    assert {"env__x": 2.0, "_y": 3.0}.items() <= data.metrics.items()


def test_settings_that_a_resumed_run_changes_are_tags_in_mlflow(tmp_path: Path) -> None:
    require("mlflow")
    import mlflow

    run = tracked(tmp_path)
    first = MlflowTracker(run)
    MlflowTracker(replace(run, resume_id=first.id, config={**run.config, "seed": 4, "env/<x>": 1}))
    data = mlflow.MlflowClient().get_run(first.id).data
    assert data.tags["resumed.seed"] == "4"
    assert data.tags["group"] == "seeds"
    assert data.params["seed"] == "None"
    assert data.params["env/_x_"] == "1"
    MlflowTracker(replace(run, resume_id=first.id))
    assert mlflow.MlflowClient().get_run(first.id).data.tags["resumed.seed"] == "None", "changed back"


def test_a_resume_at_another_store_of_mlflow_begins_a_run_there(tmp_path: Path) -> None:
    require("mlflow")
    run = tracked(tmp_path)
    first = MlflowTracker(run)
    elsewhere = replace(run.settings, mlflow_uri=f"sqlite:///{tmp_path / 'other.db'}")
    second = MlflowTracker(replace(run, resume_id=first.id, settings=elsewhere))
    second.log({"agent_steps": 1, "x": 1.0}, 1, None)
    second.finish("total_steps")
    assert second.id != first.id
    assert f"a new one: run {first.id} is deleted or not there" in second.place


def test_a_resume_of_a_run_that_was_deleted_in_mlflow_begins_another(tmp_path: Path) -> None:
    require("mlflow")
    import mlflow

    run = tracked(tmp_path)
    first = MlflowTracker(run)
    mlflow.MlflowClient().delete_run(first.id)
    second = MlflowTracker(replace(run, resume_id=first.id))
    second.log({"agent_steps": 1, "x": 1.0}, 1, None)
    second.finish("total_steps")
    assert second.id != first.id
    assert f"a new one: run {first.id} is deleted or not there" in second.place
    assert mlflow.MlflowClient().get_run(first.id).info.lifecycle_stage == "deleted"


def test_a_deleted_experiment_of_mlflow_is_named(tmp_path: Path) -> None:
    require("mlflow")
    import mlflow

    run, client = tracked(tmp_path), mlflow.MlflowClient()
    first = MlflowTracker(run)
    experiment = client.get_experiment_by_name(run.settings.project)
    client.delete_experiment(experiment.experiment_id)
    expected = rf"'{run.settings.project}' is deleted: restore it .* {experiment.experiment_id}`\), or give another"
    for resume_id in (None, first.id):  # Its runs are deleted with it.
        with pytest.raises(RuntimeError, match=expected):
            MlflowTracker(replace(run, resume_id=resume_id))
    client.restore_experiment(experiment.experiment_id)
    assert MlflowTracker(replace(run, resume_id=first.id)).id == first.id


def test_a_disabled_run_of_weights_and_biases_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    tracker = WandbTracker(tracked(tmp_path))
    tracker.log({"agent_steps": 1, "x": 1.0}, 1, None)
    tracker.finish("total_steps")
    assert tracker.place == "disabled (WANDB_MODE); nothing is kept"


def test_names_that_a_service_does_not_allow_are_changed(tmp_path: Path) -> None:
    require("mlflow")
    require("wandb")
    import mlflow

    run = tracked(tmp_path)
    first = MlflowTracker(run)
    long = "evaluation/against/" + "x" * 300
    first.log({"agent_steps": 1, f"{long}a": 1.0, f"{long}b": 3.0, "..env/x": 2.0}, 1, None)
    metrics = mlflow.MlflowClient().get_run(str(first.id)).data.metrics
    assert metrics["env/x"] == 2.0
    assert sorted(value for name, value in metrics.items() if name.startswith("evaluation/against/xxx")) == [1.0, 3.0]
    second = WandbTracker(run)
    second.log({"agent_steps": 1, "env/a*b": 1.0, "env/*": 2.0}, 1, None)
    second.finish("total_steps")
    kept = KEPT["wandb"](tmp_path, str(second.id), run.settings.project)
    assert kept.points("env/a_b") == [(1, 1.0)]
    assert kept.points("env/_") == [(1, 2.0)]


def test_weights_and_biases_never_asks_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("wandb")
    import wandb

    monkeypatch.setattr(wandb.setup().settings, "mode", "online")
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match=r"no login was found: run `wandb login`"):
        WandbTracker(tracked(tmp_path))


def test_a_run_of_the_users_own_code_is_used_and_not_finished(tmp_path: Path) -> None:
    require("wandb")
    import wandb

    own = wandb.init(project="own", dir=str(tmp_path), settings=wandb.Settings(console="off", silent=True))
    tracker = WandbTracker(tracked(tmp_path))
    tracker.log({"agent_steps": 1, "x": 2.0}, 1, None)
    tracker.finish("total_steps")
    assert wandb.run is own
    assert own.config["learner.epochs"] == 2
    own.finish()
    wandb.teardown()
    assert KEPT["wandb"](tmp_path, own.id, "own").points("x") == [(1, 2.0)]


def test_a_run_begins_while_the_one_before_is_still_being_sent(tmp_path: Path) -> None:
    require("wandb")
    import wandb

    runs = [tracked(tmp_path / name) for name in ("first", "second")]
    trackers = [WandbTracker(run) for run in runs]
    for number, tracker in enumerate(trackers):
        tracker.log({"agent_steps": 1, "x": float(number)}, 1, None)
        tracker.finish("total_steps")
    assert wandb.run is None
    for number, (tracker, run) in enumerate(zip(trackers, runs, strict=True)):
        kept = KEPT["wandb"](run.directory, str(tracker.id), run.settings.project)
        assert kept.points("x") == [(1, float(number))]


def test_trackio_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require("trackio")
    tracker = TrackioTracker(tracked(tmp_path))
    tracker.finish("total_steps")
    assert capsys.readouterr().out == ""


def test_any_name_of_a_run_gives_the_name_of_an_artifact(tmp_path: Path) -> None:
    require("trackio")
    checkpoint = tmp_path / "a.pt"
    checkpoint.write_bytes(b"1")
    run = replace(tracked(tmp_path), name="my run")
    tracker = TrackioTracker(run)
    tracker.log_file(checkpoint, "checkpoint", "final", 1, None)
    tracker.finish("total_steps")
    from trackio.sqlite_storage import SQLiteStorage

    found = SQLiteStorage.resolve_artifact_version(run.settings.project, "my-run-final", "latest")
    assert found is not None
