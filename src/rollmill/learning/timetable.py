"""Times of metrics rows and checkpoints: by the clock, or at fixed iterations."""

from __future__ import annotations

from typing import Protocol

from rollmill.learning.progress import Progress
from rollmill.learning.report import is_milestone
from rollmill.storage.checkpoints import CheckpointStore

_ROWS = 1000
_MOST_STEPS_BETWEEN_ROWS = 100_000


class Timetable(Protocol):
    """Times of metrics rows and checkpoints.

    Attributes:
        repeats_rows: Whether a resumed run begins with a row.
    """

    repeats_rows: bool

    def is_row_due(self, progress: Progress, last_row: int, *, is_time: bool) -> bool:
        """Whether a row is due.

        Args:
            progress: The run's progress.
            last_row: Batches at the last row.
            is_time: Whether ``report_every_s`` seconds have passed since the last report.
        """
        ...

    def is_save_due(self, progress: Progress) -> bool:
        """Whether a checkpoint is due."""
        ...

    def saved(self, progress: Progress) -> None:
        """Record that a checkpoint was written."""
        ...


def _is_new_milestone(progress: Progress, last_row: int) -> bool:
    return progress.batches > last_row and is_milestone(progress.batches)


class ByTime:
    """Rows every few seconds, and checkpoints by the store's schedule. See :class:`Timetable`.

    Args:
        checkpoints: The store.
        saves: Whether this rank writes checkpoints.
    """

    repeats_rows = True

    def __init__(self, checkpoints: CheckpointStore, *, saves: bool) -> None:
        self._checkpoints = checkpoints
        self._saves = saves

    def is_row_due(self, progress: Progress, last_row: int, *, is_time: bool) -> bool:
        """True after some seconds, and at milestones."""
        return is_time or _is_new_milestone(progress, last_row)

    def is_save_due(self, progress: Progress) -> bool:
        """Ask the store."""
        return self._saves and self._checkpoints.is_due(progress.agent_steps)

    def saved(self, progress: Progress) -> None:
        """Do nothing: the store knows."""


class ByIteration:
    """Rows and checkpoints at fixed iterations, equal in all runs. See :class:`Timetable`.

    Args:
        save_every: Iterations between checkpoints; 0 writes only the last one.
        total_steps: Agent steps of the run.
        batch_size: Samples of an iteration.
        first_iteration: Iteration at which the run starts or resumes.
    """

    repeats_rows = False

    def __init__(self, *, save_every: int, total_steps: int, batch_size: int, first_iteration: int) -> None:
        self._save_every = save_every
        self._saved_at = first_iteration
        # About a thousand rows in most runs; sufficient in unlimited ones.
        self._row_every = max(1, int(min(total_steps / _ROWS, _MOST_STEPS_BETWEEN_ROWS) / batch_size))

    def is_row_due(self, progress: Progress, last_row: int, *, is_time: bool) -> bool:
        """True at fixed iterations, at milestones, and before every checkpoint."""
        return (
            _is_new_milestone(progress, last_row)
            or progress.batches % self._row_every == 0
            or self.is_save_due(progress)
        )

    def is_save_due(self, progress: Progress) -> bool:
        """True every ``save_every`` iterations."""
        return bool(self._save_every) and progress.batches % self._save_every == 0 and progress.batches > self._saved_at

    def saved(self, progress: Progress) -> None:
        """Record the iteration."""
        self._saved_at = progress.batches
