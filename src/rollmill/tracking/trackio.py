"""Trackio: https://huggingface.co/docs/trackio. On this machine, in ``TRACKIO_DIR``, or in a Space of Hugging Face."""

from __future__ import annotations

import importlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollmill.tracking.base import FileKind, TrackedRun, artifact_name, under_policy

_log = logging.getLogger("rollmill.tracking")

# Modules that print to standard output, which holds the result of `rollmill train`.
_PRINTING = ("trackio", "trackio.run", "trackio.utils")


class TrackioTracker:
    """A run of Trackio.

    Trackio resumes the newest run of a name, so a new run gets a name that no other run of the project on this machine
    has, and a resumed one fails if the newest run of its name is another.

    Args:
        run: The run.

    Attributes:
        id: Trackio's id of the run and its name.
        place: Where to look at the project.
    """

    id: str | None
    place: str

    def __init__(self, run: TrackedRun) -> None:
        self._trackio: Any = importlib.import_module("trackio")
        settings = run.settings
        id, _, name = (run.resume_id or "").partition(":")
        with _printing_to_log():
            self._run = self._trackio.init(
                project=settings.project,
                name=name or self._free_name(settings.project, run.name),
                group=settings.group,
                space_id=settings.trackio_space,
                config={**run.config, "tags": list(settings.tags)},
                resume="must" if id else "never",
                embed=False,
            )
        if id not in ("", self._run.id):
            raise RuntimeError(
                f"the newest run {name!r} of the project {settings.project!r} is not the one to resume: rename it, or "
                "start a new run"
            )
        self.id = f"{self._run.id}:{self._run.name}"
        where = settings.trackio_space or f'`trackio show --project "{settings.project}"`'
        self.place = f"run {self._run.name} in {where}"

    def log(self, numbers: Mapping[str, float], agent_steps: int, policy: str | None) -> None:
        """Log a row, at its agent steps."""
        self._run.log(dict(under_policy(numbers, policy)), step=agent_steps)

    def log_file(self, path: Path, kind: FileKind, name: str, agent_steps: int, policy: str | None) -> None:
        """Log a video as media, or a checkpoint as a version of an artifact."""
        if kind == "video":
            (key,) = under_policy({f"{name}/video": 0}, policy)
            self._run.log({key: self._trackio.Video(str(path), format="mp4")}, step=agent_steps)
            return
        artifact = self._trackio.Artifact(
            artifact_name(self._run.name, name, policy), type="model", metadata={"agent_steps": agent_steps}
        )
        artifact.add_file(str(path), name=path.name)
        self._run.log_artifact(artifact)

    def finish(self, ended_by: str) -> None:
        """Wait until the database or the Space has everything."""
        with _printing_to_log():
            self._run.finish()

    def _free_name(self, project: str, name: str) -> str:
        try:
            taken = {run.name for run in self._trackio.Api().runs(project)}
        except ValueError:  # There is no such project yet.
            return name
        return f"{name}-{secrets.token_hex(3)}" if name in taken else name


@contextmanager
def _printing_to_log() -> Iterator[None]:
    """Send what Trackio prints to the log.

    By a name in its modules that hides the built-in function: replacing ``sys.stdout`` would change it for all threads.
    """
    modules = [vars(importlib.import_module(name)) for name in _PRINTING]
    for module in modules:
        module["print"] = lambda *words, **_: _log.info("trackio: %s", " ".join(map(str, words)))
    try:
        yield
    finally:
        for module in modules:
            module.pop("print", None)
