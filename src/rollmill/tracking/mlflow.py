"""MLflow: https://mlflow.org. Where runs go: ``tracking.mlflow_uri``, or ``MLFLOW_TRACKING_URI``, or its default."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from rollmill.tracking.base import FileKind, TrackedRun, file_name, under_policy
from rollmill.tracking.logins import without_logins

# Limits of MLflow's interface.
_MOST_METRICS = 1000
_MOST_PARAMS = 100
_LONGEST_VALUE = 6000
_LONGEST_NAME = 250
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")
_NOT_FOUND = "RESOURCE_DOES_NOT_EXIST"
_DELETED = "deleted"  # lifecycle stage of what was deleted, and can be restored
_STATUS = {"failure": "FAILED", "signal": "KILLED", "caller": "KILLED"}


class MlflowTracker:
    """A run of MLflow, through its client: the fluent interface has one active run, which may be the user's own.

    Args:
        run: The run.

    Attributes:
        id: The run's id at MLflow.
        place: Its experiment, and the address of the store.
    """

    id: str | None
    place: str

    def __init__(self, run: TrackedRun) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        self._exceptions: Any = importlib.import_module("mlflow.exceptions")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client = mlflow.MlflowClient(tracking_uri=run.settings.mlflow_uri)
        is_known = run.resume_id is not None and self._continue(run.resume_id)
        self._id = str(run.resume_id) if is_known else self._begin(run)
        self.id = self._id
        store = without_logins(self._client.tracking_uri)
        self.place = f"run {self._id} of the experiment {run.settings.project!r} in {store}"
        if run.resume_id is not None and not is_known:
            self.place += f", a new one: run {run.resume_id} is deleted or not there"
        self._log_config(run)

    def _continue(self, id: str) -> bool:
        """Continue a run; False if this store does not have it, or has it among what was deleted."""
        try:
            found = self._client.get_run(id)
        except self._exceptions.MlflowException as error:
            if error.error_code != _NOT_FOUND:
                raise
            return False
        if found.info.lifecycle_stage == _DELETED:
            return False
        self._client.update_run(id, status="RUNNING")
        return True

    def _begin(self, run: TrackedRun) -> str:
        settings = run.settings
        tags = dict.fromkeys(map(_key, settings.tags), "true")
        tags |= {"group": settings.group} if settings.group else {}
        made = self._client.create_run(self._experiment(settings.project), run_name=run.name, tags=tags)
        return str(made.info.run_id)

    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        """Log a row, at its agent steps."""
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(_key(name), float(value), now, agent_steps)
            for name, value in under_policy(numbers, policy).items()
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._log_batch(metrics=metrics[start : start + _MOST_METRICS])

    def log_file(self, path: Path, kind: FileKind, name: str, agent_steps: int, policy: str | None) -> None:
        """Log a file as an artifact, in the folder ``videos`` or ``checkpoints/NAME``."""
        folder = "videos" if kind == "video" else f"checkpoints/{file_name(name, policy)}"
        if kind == "video" and policy is not None:
            folder = f"videos/{policy}"
        self._client.log_artifact(self._id, str(path), folder)

    def finish(self, ended_by: str) -> None:
        """Set the run's status: finished, killed or failed."""
        self._client.set_terminated(self._id, _STATUS.get(ended_by, "FINISHED"))

    def _experiment(self, name: str) -> str:
        """Return the id of an experiment, which is created if there is none.

        Raises:
            RuntimeError: It is deleted, but still has its name; MLflow adds no runs to it.
        """
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return str(self._client.create_experiment(name))
        if found.lifecycle_stage == _DELETED:
            raise RuntimeError(
                f"experiment {name!r} is deleted: restore it (`mlflow experiments restore --experiment-id "
                f"{found.experiment_id}`), or give another tracking.project"
            )
        return str(found.experiment_id)

    def _log_config(self, run: TrackedRun) -> None:
        """Log the settings as parameters, which cannot change: those that a resumed run has changed become tags."""
        wanted = {_key(name): str(value)[:_LONGEST_VALUE] for name, value in run.config.items()}
        data = self._client.get_run(self._id).data
        known, tags = data.params, data.tags
        for name, value in wanted.items():
            tag = f"resumed.{name}"
            if tags.get(tag, known.get(name, value)) != value:
                self._client.set_tag(self._id, tag, value)
        params = [self._entities.Param(name, value) for name, value in wanted.items() if name not in known]
        for start in range(0, len(params), _MOST_PARAMS):
            self._log_batch(params=params[start : start + _MOST_PARAMS])

    def _log_batch(self, *, metrics: Sequence[Any] = (), params: Sequence[Any] = ()) -> None:
        self._client.log_batch(self._id, metrics=metrics, params=params)


def _key(name: str) -> str:
    """A name with the characters that MLflow allows; slashes divide it as they divide a path."""
    name = _NOT_ALLOWED.sub("_", name).lstrip(".")
    if len(name) > _LONGEST_NAME:  # The end tells names apart that begin alike.
        end = f"{crc32(name.encode()):08x}"
        name = f"{name[: _LONGEST_NAME - len(end)]}{end}"
    is_path = all(part.strip(".") for part in name.split("/"))
    return name if is_path else name.replace("/", "_").lstrip(".") or "_"
