"""Starts a run's trackers, and gives them its checkpoints at the end."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from rollmill.settings.config import Config
from rollmill.settings.options import flatten
from rollmill.storage.checkpoint_file import CheckpointError, read_header
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.tracking.base import TrackedPolicy, TrackedRun
from rollmill.tracking.logins import without_logins
from rollmill.tracking.trackers import Trackers


def start_trackers(
    config: Config,
    run_dir: Path,
    *,
    is_resumed: bool,
    resume_at_steps: int | None = None,
    policies_resume_at: Sequence[int | None] = (),
    note: Callable[[str], None],
    trust: bool = False,
    is_stop_wanted: Callable[[], bool] = lambda: False,
) -> Trackers:
    """Start the trackers of a run.

    Args:
        config: The resolved configuration.
        run_dir: The run's directory.
        is_resumed: Whether the run resumes.
        resume_at_steps: Agent steps of the checkpoint that it resumes from: later metrics are repeated.
        policies_resume_at: Likewise, of each policy; empty if nothing is repeated.
        note: Shows a line and logs it.
        trust: Whether to continue tracked runs that a file of another user names.
        is_stop_wanted: Whether the run was told to end.
    """
    names = config.population.names
    resume_at = policies_resume_at or [None] * len(names)
    folders = config.population.folders(run_dir)
    policies = {
        name: TrackedPolicy(folder, steps) for name, folder, steps in zip(names, folders, resume_at, strict=True)
    }
    run = TrackedRun(
        directory=run_dir,
        name=config.tracking.run_name or run_dir.resolve().name,
        config=without_logins(flatten(config)),
        settings=config.tracking,
        is_resumed=is_resumed,
        resume_at_steps=resume_at_steps,
        policies=policies if len(names) > 1 else {},
    )
    return Trackers(run, note=note, trust=trust, is_stop_wanted=is_stop_wanted)


def log_checkpoints(trackers: Trackers, config: Config, run_dir: Path) -> None:
    """Give the trackers the final and the best checkpoint of each policy."""
    if not config.tracking.upload_checkpoints:
        return
    names = config.population.names
    for name, folder in zip(names, config.population.folders(run_dir), strict=True):
        store = CheckpointStore(folder / "checkpoints", CheckpointConfig())
        for kind, path in (("final", next(iter(store.paths()), None)), ("best", store.best_path)):
            if path is None or not _is_regular(path):
                continue
            try:
                steps = read_header(path).agent_steps
            except CheckpointError:
                continue
            trackers.log_file(path, "checkpoint", kind, steps, name if len(names) > 1 else None)


def _is_regular(path: Path) -> bool:
    """Whether a path is a file and no link, which could lead a tracker to any file of the user."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
