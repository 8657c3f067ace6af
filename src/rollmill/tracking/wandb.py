"""Weights & Biases: https://docs.wandb.ai. Offline with ``WANDB_MODE=offline``; ``wandb sync`` sends the run later."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.tracking.base import FileKind, TrackedRun, artifact_name, under_policy

_AXIS = "agent_steps"
_EVALUATION_AXIS = "evaluation/agent_steps"
# Our runs that are not sent yet. After Ctrl-C in a notebook one may still be, while the next run begins.
_unsent: list[Any] = []


class WandbTracker:
    """A run of Weights & Biases, whose files are in the run's directory.

    Rows have no explicit step, because those of the service must not decrease: after a resume from an earlier
    checkpoint it would drop all rows up to the last step that it has. Instead ``agent_steps`` is the axis of every
    metric, and ``evaluation/agent_steps`` that of evaluations.

    Args:
        run: The run.

    Attributes:
        id: The run's id at Weights & Biases.
        place: Its address, or its folder if it is offline; that it keeps nothing if it is disabled.
    """

    id: str | None
    place: str

    def __init__(self, run: TrackedRun) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        # Without this, `init` would ask for a key on the terminal, where the display is.
        if self._wandb.setup().settings.mode == "online" and not self._wandb.login(prompt=False, verify=False):
            raise RuntimeError("no login was found: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")
        # A run that the user's own code has begun is used, and left to that code to finish. In a notebook, `init`
        # would finish it.
        self._is_own = self._wandb.run is None or any(run is self._wandb.run for run in _unsent)
        if self._is_own:
            self._run = self._begin(run)
        else:
            self._run = self._wandb.run
            self._run.config.update(dict(run.config), allow_val_change=True)
        self.id = str(self._run.id)
        if self._is_own:
            _unsent.append(self._run)
        if self._run.disabled:
            self.place = "disabled (WANDB_MODE); nothing is kept"
        elif self._run.offline:
            self.place = f"offline run in {Path(self._run.dir).parent}; `wandb sync` sends it"
        else:
            self.place = str(self._run.url)
        self._defined: set[str] = set()

    def _begin(self, run: TrackedRun) -> Any:
        settings = run.settings
        return self._wandb.init(
            project=settings.project,
            entity=settings.wandb_entity,
            name=run.name,
            group=settings.group,
            tags=list(settings.tags),
            dir=str(run.directory),
            config=dict(run.config),
            id=run.resume_id,
            resume="allow" if run.resume_id else None,
            allow_val_change=True,  # A resumed run may have other settings.
            reinit="create_new" if _unsent else "default",
            settings=self._wandb.Settings(
                console="off",  # It belongs to the display.
                silent=True,
                # At the end of the run, and after Ctrl-C at the interpreter's exit; by default until all is sent.
                finish_timeout=settings.call_timeout_s,
            ),
        )

    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        """Log a row."""
        axis = _AXIS if _AXIS in numbers else _EVALUATION_AXIS
        # An asterisk in a name would define a pattern.
        row = {name.replace("*", "_"): value for name, value in numbers.items()} | {axis: agent_steps}
        row, axis = dict(under_policy(row, policy)), axis if policy is None else f"policy/{policy}/{axis}"
        row[axis] = agent_steps
        for name in row.keys() - self._defined - {axis}:
            self._run.define_metric(name, step_metric=axis)
        self._defined.update(row)
        self._run.log(row)

    def log_file(self, path: Path, kind: FileKind, name: str, agent_steps: int, policy: str | None) -> None:
        """Log a video in the media panel, or a checkpoint as a version of an artifact."""
        if kind == "video":
            (key,) = under_policy({f"{name}/video": 0}, policy)
            (axis,) = under_policy({_EVALUATION_AXIS: 0}, policy)
            self._run.log({key: self._wandb.Video(str(path), format="mp4"), axis: agent_steps})
            return
        artifact = self._wandb.Artifact(
            artifact_name(str(self.id), name, policy), type="model", metadata={_AXIS: agent_steps}
        )
        artifact.add_file(str(path), name=path.name)
        self._run.log_artifact(artifact)

    def finish(self, ended_by: str) -> None:
        """Wait until the service has everything, and end the process that sends it."""
        if self._is_own:
            try:
                self._run.finish(exit_code=1 if ended_by == "failure" else 0)
            finally:
                _unsent[:] = [run for run in _unsent if run is not self._run]
            if not _unsent:  # It would end all others.
                self._wandb.teardown()
