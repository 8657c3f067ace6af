"""The agent steps that the checkpoints of a run hold, and those that a resumed run repeats."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rollmill.reporting.metrics import is_number, read_metrics
from rollmill.storage.checkpoint_file import CheckpointError
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore


def saved_steps(folders: Sequence[Path], *, to_resume: bool = True) -> int | None:
    """Return the agent steps of the newest checkpoints of all policies; metrics after them will be repeated.

    Args:
        folders: Of the policies.
        to_resume: Whether to leave out checkpoints that cannot be resumed.
    """
    found = [steps for folder in folders if (steps := _saved_steps_in(folder, to_resume=to_resume)) is not None]
    return sum(found) if found else None


def trained_seconds(folders: Sequence[Path]) -> float:
    """Return the training time, over all sessions, that the newest checkpoints of a run have recorded; in seconds.

    Args:
        folders: Of the policies.
    """
    found = [0.0]
    for folder in folders:
        with contextlib.suppress(CheckpointError):  # the learner reports the error
            state, _ = CheckpointStore(folder / "checkpoints", CheckpointConfig()).load_latest(to_resume=True)
            found.append(float(state.get("training_s", 0.0)))
    return max(found)


def steps_done_again(folders: Sequence[Path], resumed_at: int | None) -> list[str]:
    """Describe the steps that a run repeats which resumes at this number of steps; empty if it repeats none."""
    if resumed_at is None or (newest := saved_steps(folders, to_resume=False) or 0) <= resumed_at:
        return []
    return [
        f"the run resumes from {resumed_at:,} agent steps, the newest checkpoint that it can resume "
        f"exactly; the {newest - resumed_at:,} steps after it are repeated"
    ]


def episodes_reported(folder: Path) -> int:
    """Return how many episodes of a policy its metrics have counted."""
    rows = read_metrics(folder)
    episodes = rows[-1].get("episodes") if rows else 0
    return int(episodes) if is_number(episodes) else 0


def _saved_steps_in(folder: Path, *, to_resume: bool = True) -> int | None:
    try:
        store = CheckpointStore(folder / "checkpoints", CheckpointConfig())
        return store.latest_header(to_resume=to_resume).agent_steps
    except CheckpointError:
        return None  # the learner reports the error
