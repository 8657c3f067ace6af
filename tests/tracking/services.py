"""A run at each service, read back from what the service's package has kept on this machine."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Points = list[tuple[int, float]]


class Kept(NamedTuple):
    """What a service has of a run.

    Attributes:
        points: Name of a metric -> its values at agent steps, in the order of their logging.
        config: The settings.
        files: Names of files, of videos with their suffix and of checkpoints.
        state: How the run ended, in the service's words; empty where the service keeps none.
    """

    points: Callable[[str], Points]
    config: dict[str, Any]
    files: list[str]
    state: str


def wandb_kept(run_dir: Path, id: str, project: str) -> Kept:
    """From the transaction logs of the offline runs of one id, in the format of ``wandb sync``."""
    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    axes: dict[str, str] = {}
    files: list[str] = []
    state = ""
    # A run that is resumed within a second has a folder with the same name and a number.
    for log in sorted((run_dir / "wandb").glob(f"offline-run-*-{id}*/run-{id}.wandb")):
        for record in _wandb_records(log):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                assert (record.run.run_id, record.run.project) == (id, project)
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "metric":
                axes[record.metric.name.replace("\\.", ".")] = record.metric.step_metric
            elif kind == "history":
                rows.append(
                    {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
                )
            elif kind == "artifact":
                files.append(record.artifact.name)
            elif kind == "exit":
                state = str(record.exit.exit_code)
    files += [path.name for path in (run_dir / "wandb").glob("offline-run-*/files/media/videos/**/*.mp4")]

    def points(name: str) -> Points:
        return [(row[axes[name]], row[name]) for row in rows if name in row]

    return Kept(points, config, files, state)


def _wandb_records(log: Path) -> Iterator[Any]:
    """The records of a file of LevelDB's log format, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = log.read_bytes()
    assert content[:4] == b":W&B"
    at, data = 7, b""
    while at < len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        data += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or last part
            record = Record()
            record.ParseFromString(data)
            yield record
            data = b""


def mlflow_kept(run_dir: Path, id: str, project: str) -> Kept:
    """Through MLflow's client."""
    import mlflow

    client = mlflow.MlflowClient()
    run = client.get_run(id)
    assert client.get_experiment(run.info.experiment_id).name == project

    def points(name: str) -> Points:
        return [(metric.step, metric.value) for metric in client.get_metric_history(id, name)]

    def walk(folder: str | None = None) -> Iterator[str]:
        for each in client.list_artifacts(id, folder):
            yield from walk(each.path) if each.is_dir else [each.path]

    return Kept(points, dict(run.data.params), list(walk()), run.info.status)


def trackio_kept(run_dir: Path, id: str, project: str) -> Kept:
    """Through Trackio's interface, its storage for rows."""
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    run_id, _, name = id.partition(":")
    (run,) = [run for run in trackio.Api().runs(project) if run.id == run_id]
    assert run.name == name
    rows = SQLiteStorage.get_logs(project, name, run_id=run_id)
    files = [path.name for path in (Path(trackio.TRACKIO_DIR) / "media" / project / name).rglob("*.mp4")]
    possible = [f"{name}-{kind}" for kind in ("final", "best", "a-final")]
    files += [each for each in possible if SQLiteStorage.resolve_artifact_version(project, each, "latest") is not None]

    def points(wanted: str) -> Points:
        return [(row["step"], row[wanted]) for row in rows if wanted in row]

    return Kept(points, run.config or {}, files, "")


KEPT = {"wandb": wandb_kept, "mlflow": mlflow_kept, "trackio": trackio_kept}


def require(name: str) -> None:
    """Skip a test whose service is not installed."""
    package = "mlflow-skinny" if name == "mlflow" else name
    pytest.importorskip(name, reason=f"pip install {package}", exc_type=ImportError)
