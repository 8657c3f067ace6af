"""A run's metrics: one JSON object a line in ``metrics.jsonl``, from which the trackers get the numbers, too.

A record is flat: name -> number (or a list of counts, of a histogram). Names that several figures share are grouped
with a slash (``loss/policy``, ``share/learner/learning``). Every record has ``time_s`` (seconds trained) and
``agent_steps``. What each name means: :mod:`rollmill.reporting.metric_table`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self, TypeGuard

from rollmill.reporting.metric_table import EVALUATION_GROUP
from rollmill.storage.evaluations import EvaluationQueue
from rollmill.tracking.trackers import Trackers

Record = dict[str, float | int | str | list[int] | None]

METRICS_FILE = "metrics.jsonl"
_EVALUATION_SCALARS = ("mean_return", "std_return", "min_return", "max_return", "mean_length")


class NoMetricsError(FileNotFoundError):
    """There is no metrics file."""


class MetricsNotWrittenError(OSError):
    """A record could not be written, for example because the disk is full."""


class _Number(Protocol):
    """A NumPy scalar or a tensor of one element."""

    def item(self) -> float: ...


class MetricsWriter:
    """Appends records to a run directory's metrics.

    A record is on disk when ``write`` returns, so that a killed run loses none. Opening an existing file drops a last
    line that was torn by such a death.

    Args:
        run_dir: The run's directory; made if it is not there.
        resume_at_steps: Agent steps of the checkpoint that the run resumes from: later records, which the run will
            write again, are dropped. None keeps all.
        trackers: Get the numbers of every record; None for none. They stay open.
        policy: The policy, of several, whose metrics these are; None for those of the run.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        resume_at_steps: int | None = None,
        trackers: Trackers | None = None,
        policy: str | None = None,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        path = self.run_dir / METRICS_FILE
        _repair(path, resume_at_steps)
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self._has_failed = False
        self._trackers = trackers
        self._policy = policy
        self._evaluations = EvaluationQueue(self.run_dir)
        # Trackers have those of earlier sessions; TensorBoard hides those of steps that are repeated.
        self._evaluated = {
            steps
            for record in self._evaluations.records()
            if (steps := int(record["agent_steps"])) <= (math.inf if resume_at_steps is None else resume_at_steps)
        }
        self._evaluations_size = 0

    def write(self, record: Mapping[str, float | int | str | Sequence[int] | _Number | None]) -> None:
        """Write one record.

        Args:
            record: Name -> value; has ``agent_steps``. Histograms (lists of counts) go to the file only. NaN and
                infinity become ``null``, because JSON cannot represent them.

        Raises:
            ValueError: ``agent_steps`` is missing.
            MetricsNotWrittenError: The disk did not take it.
        """
        plain = {name: _plain(value) for name, value in record.items()}
        steps = plain.get("agent_steps")
        if not isinstance(steps, int | float):
            raise ValueError(f"a metrics record needs agent_steps, the axis of its curves; given: {sorted(plain)}")
        numbers = {name: value for name, value in plain.items() if isinstance(value, int | float)}
        try:
            self._file.write(json.dumps(plain, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._not_written(error) from error
        if self._trackers is not None:
            self._trackers.log(numbers, int(steps), self._policy)

    def write_evaluations(self) -> list[dict[str, Any]]:
        """Report evaluations since the last call to the trackers, with their videos.

        Each is at the agent steps of the network that was evaluated, which may be before the last record's.

        Returns:
            The new records of ``evaluations.jsonl``.
        """
        size = self._evaluations.nbytes
        if size == self._evaluations_size:
            return []
        self._evaluations_size = size
        new = [
            record
            for record in self._evaluations.records()
            if int(record["agent_steps"]) not in self._evaluated and _is_whole(record)
        ]
        for record in new:
            steps = int(record["agent_steps"])
            self._evaluated.add(steps)
            numbers = {f"{EVALUATION_GROUP}/{name}": float(record[name]) for name in _EVALUATION_SCALARS}
            for opponent, points in record.get("against", {}).items():
                numbers[f"{EVALUATION_GROUP}/against/{opponent}"] = float(points)
            if self._trackers is not None:
                self._trackers.log(numbers, steps, self._policy)
                if record.get("video") and (video := self._evaluations.video_of(steps)) is not None:
                    self._trackers.log_file(video, "video", EVALUATION_GROUP, steps, self._policy)
        return new

    def _not_written(self, error: OSError) -> MetricsNotWrittenError:
        self._has_failed = True
        return MetricsNotWrittenError(
            f"metrics cannot be written to {self.run_dir} ({error.strerror}): make room on its disk; with --resume "
            "the run continues from its newest checkpoint"
        )

    def close(self) -> None:
        """Close the file; calling it twice does nothing.

        Raises:
            OSError: The remaining data could not be written, and no ``write`` reported it.
        """
        if not self._has_failed:
            self._file.close()
            return
        with contextlib.suppress(OSError):  # What a disk did not take, it does not take now; `write` has said so.
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read_metrics(run_dir: Path | str) -> list[dict[str, Any]]:
    """All whole records of a run, in order, without a torn last line, as of a run that is writing now.

    Damaged lines are left out, too. Records of earlier versions are given under today's names.

    Args:
        run_dir: Run directory, or the path of a metrics file.

    Raises:
        NoMetricsError: There is no metrics file, or it cannot be read.
    """
    path = Path(run_dir)
    if path.is_dir():
        path = path / METRICS_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NoMetricsError(f"{path} does not exist; give the directory of a run that has written metrics") from None
    except OSError as error:
        raise NoMetricsError(f"{path} cannot be read ({error.strerror})") from error
    records = map(parse_record, content.splitlines(keepends=True))
    return [_renamed(record) for record in records if record is not None]


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record under today's names: until 2026-11 batches were called updates, and SGD steps policy versions."""
    if "updates" not in record:
        return record
    today = {"updates": "batches", "policy_version": "sgd_steps"}
    return {today.get(name, name): value for name, value in record.items()}


def parse_record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None for a torn or damaged one, which :meth:`MetricsWriter.write` cannot have written."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not is_number(record.get("agent_steps")):
        return None
    return record if is_number(record.get("time_s", 0)) and all(map(_is_value, record.values())) else None


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value can be a point of a curve: no bool, no NaN, nothing that a float cannot hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _is_whole(evaluation: Mapping[str, Any]) -> bool:
    """Whether an evaluation has what its readers need: a line that Rollmill did not write may have less."""
    interval = evaluation.get("interval_95")
    return (
        all(is_number(evaluation.get(name)) for name in _EVALUATION_SCALARS)
        and is_number(evaluation.get("episodes"))
        and isinstance(interval, list)
        and len(interval) == 2
        and all(map(is_number, interval))
        and isinstance(evaluation.get("against", {}), dict)
    )


def _is_value(value: object) -> bool:
    return value is None or isinstance(value, str | list | bool) or is_number(value)


def _repair(path: Path, resume_at_steps: int | None) -> None:
    """Drop torn and damaged lines, and what lies after the resumed checkpoint; the file changes in one step."""
    if not path.exists():
        return
    at_most = math.inf if resume_at_steps is None else resume_at_steps
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if (record := parse_record(line)) is not None and record["agent_steps"] <= at_most]
    if len(kept) == len(lines):
        return
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _plain(
    value: float | int | str | Sequence[int] | _Number | None,
) -> float | int | str | list[int] | None:
    if isinstance(value, list | tuple):
        return list(value)
    assert not isinstance(value, Sequence) or isinstance(value, str)
    number = value if value is None or isinstance(value, int | float | str) else value.item()
    return None if isinstance(number, float) and not math.isfinite(number) else number
