"""What a run leaves in its directory besides metrics and checkpoints; none of it may fail the run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from rollmill.evaluation.saved_spaces import SPACES_FILE, write_spaces
from rollmill.extras import missing_modules
from rollmill.reporting.ledger_report import LEDGER_FILE
from rollmill.reporting.plots import plot_runs
from rollmill.reporting.task_plots import plot_tasks
from rollmill.runtime.ranks import Ranks, folder_of_rank
from rollmill.storage.replay_file import adopt_replay, close_replay, discard_new_replay, remove_replay


def settle_replays(run_dir: Path, ranks: Ranks, *, has_file: bool) -> None:
    """Discard replays that the run has started without, once it learns."""
    if has_file:
        adopt_replay(run_dir)
    else:
        remove_replay(run_dir)
    if not ranks.rank:
        other = ranks.world_size
        while (folder := folder_of_rank(run_dir, other)).is_dir():
            remove_replay(folder)
            other += 1


def discard_new_replay_of(run_dir: Path) -> None:
    """Discard a new replay at the end of a run; must not hide the run's error."""
    with contextlib.suppress(OSError):
        discard_new_replay(run_dir)


def close_replay_of(run_dir: Path, *, note: Callable[[str], None]) -> None:
    """Flush the replay to disk at the end of a run; must not fail the run."""
    try:
        close_replay(run_dir)
    except (OSError, ValueError) as error:
        note(f"the replay may not have reached the disk, and is recreated if the machine crashes: {error}")


def leave_spaces(run_dir: Path, spaces: Mapping[str, object]) -> None:
    """Write the environment's spaces, so that the agent can act without the environment's code."""
    try:
        write_spaces(run_dir, spaces)
    except OSError as error:
        logging.getLogger("rollmill").warning("%s could not be written: %s", run_dir / SPACES_FILE, error)


def leave_ledger(run_dir: Path, summary: str, *, note: Callable[[str], None]) -> None:
    """Write the ledger at the end of a run; must not fail the run."""
    try:
        (run_dir / LEDGER_FILE).write_text(summary + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        note(f"{LEDGER_FILE} could not be written: {error}")


def leave_curve(run_dir: Path, *, title: str, note: Callable[[str], None]) -> None:
    """Plot the curves at the end of a run, if matplotlib is installed; must not fail the run."""
    if missing_modules("plots"):
        return  # The log said so when the run began.
    try:
        plot_runs([run_dir], run_dir / "learning_curve.png", title=title)
        plot_tasks(run_dir, run_dir / "tasks.png")
    except Exception as error:  # a plotting library may raise anything
        note(f"learning_curve.png could not be plotted: {error!r}; try again with rollmill plot {run_dir}")
