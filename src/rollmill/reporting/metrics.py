"""A run's metrics: one JSON object a line in ``metrics.jsonl``, TensorBoard events, and Weights & Biases if asked for.

TensorBoard events need the package tensorboard. Without it only the file is written, and ``run.log`` says so.

A record is flat: name -> number (or a list of counts, of a histogram). Names that several figures share are grouped
with a slash (``loss/policy``, ``share/learner/learning``). Every record has ``time_s`` (seconds trained) and
``agent_steps``. What each name means: :mod:`rollmill.reporting.metric_table`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from rollmill.extras import missing_modules
from rollmill.reporting.metric_table import EVALUATION_GROUP, tensorboard_tag
from rollmill.storage.evaluations import EvaluationQueue

Record = dict[str, float | int | str | list[int] | None]

METRICS_FILE = "metrics.jsonl"
_TENSORBOARD_DIR = "tensorboard"
_WANDB_ID_FILE = "wandb_id.txt"
_EVALUATION_SCALARS = ("mean_return", "std_return", "min_return", "max_return", "mean_length")


class TrackerNotInstalledError(ImportError):
    """Weights & Biases was asked for and is not installed."""


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
        tensorboard: Whether to write TensorBoard events into ``run_dir/tensorboard``, if tensorboard is installed.
        wandb_project: Project to report to with Weights & Biases; None for no report.
        config: Flat configuration, shown by Weights & Biases.

    Raises:
        TrackerNotInstalledError: ``wandb_project`` was given and the package is missing.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        resume_at_steps: int | None = None,
        tensorboard: bool = True,
        wandb_project: str | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        path = self.run_dir / METRICS_FILE
        _repair(path, resume_at_steps)
        self._wandb = _start_wandb(wandb_project, self.run_dir, config or {}) if wandb_project is not None else None
        self._file: IO[str] = path.open("a", encoding="utf-8")
        has_events = tensorboard and not missing_modules("tensorboard")
        self._events = _EventWriter(self.run_dir / _TENSORBOARD_DIR, resume_at_steps) if has_events else None
        self._has_failed = False
        self._evaluations = EvaluationQueue(self.run_dir)
        # Events of earlier sessions; TensorBoard hides those of steps that are repeated.
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
            if self._events is not None:
                self._events.write(int(steps), numbers)
        except OSError as error:
            raise self._not_written(error) from error
        if self._wandb is not None:
            self._wandb.log(numbers, step=int(steps))

    def write_evaluations(self) -> list[dict[str, Any]]:
        """Report evaluations since the last call to TensorBoard and Weights & Biases.

        Each is at the agent steps of the network that was evaluated, which may be before the last record's.

        Returns:
            The new records of ``evaluations.jsonl``.

        Raises:
            MetricsNotWrittenError: The disk did not take it.
        """
        size = self._evaluations.nbytes
        if size == self._evaluations_size:
            return []
        self._evaluations_size = size
        new = [record for record in self._evaluations.records() if int(record["agent_steps"]) not in self._evaluated]
        for record in new:
            steps = int(record["agent_steps"])
            self._evaluated.add(steps)
            numbers = {f"{EVALUATION_GROUP}/{name}": float(record[name]) for name in _EVALUATION_SCALARS}
            for opponent, points in record.get("against", {}).items():
                numbers[f"{EVALUATION_GROUP}/against/{opponent}"] = float(points)
            try:
                if self._events is not None:
                    self._events.write(steps, numbers)
            except OSError as error:
                raise self._not_written(error) from error
            if self._wandb is not None:  # Whose own steps may not go back.
                self._wandb.log({**numbers, f"{EVALUATION_GROUP}/agent_steps": steps})
        return new

    def _not_written(self, error: OSError) -> MetricsNotWrittenError:
        self._has_failed = True
        return MetricsNotWrittenError(
            f"metrics cannot be written to {self.run_dir} ({error.strerror}): make room on its disk; with --resume "
            "the run continues from its newest checkpoint"
        )

    def close(self) -> None:
        """Close all files; calling it twice does nothing.

        Raises:
            OSError: The remaining data could not be written, and no ``write`` reported it.
        """
        with contextlib.ExitStack() as stack:  # Closes the others too where one cannot be.
            if self._wandb is not None:
                stack.callback(self._wandb.finish)
                self._wandb = None
            if self._has_failed:  # What a disk did not take, it does not take now either; `write` has said so.
                stack.enter_context(contextlib.suppress(OSError))
            if self._events is not None:
                stack.callback(self._events.close)
                self._events = None
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read_metrics(run_dir: Path | str) -> list[dict[str, Any]]:
    """All whole records of a run, in order; a torn last line, as of a run that is writing now, is left out.

    Records of earlier versions are given under today's names.

    Args:
        run_dir: Run directory, or the path of a metrics file.

    Raises:
        NoMetricsError: There is no metrics file.
    """
    path = Path(run_dir)
    if path.is_dir():
        path = path / METRICS_FILE
    if not path.exists():
        raise NoMetricsError(f"{path} does not exist; give the directory of a run that has written metrics")
    records: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines(keepends=True):
        record = _parse(line)
        if record is None:
            break
        records.append(_renamed(record))
    return records


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record under today's names: until 2026-11 batches were called updates, and SGD steps policy versions."""
    if "updates" not in record:
        return record
    today = {"updates": "batches", "policy_version": "sgd_steps"}
    return {today.get(name, name): value for name, value in record.items()}


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _repair(path: Path, resume_at_steps: int | None) -> None:
    """Drop a torn end, and what lies after the resumed checkpoint; the file changes in one step or not at all."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept: list[bytes] = []
    for line in lines:
        record = _parse(line)
        if record is None or (resume_at_steps is not None and record.get("agent_steps", 0) > resume_at_steps):
            break
        kept.append(line)
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


class _EventWriter:
    """TensorBoard scalars through TensorBoard's own record format: no torch, no TensorFlow.

    Not through its ``EventFileWriter``, whose thread keeps events back for seconds, and dies of a full disk unseen.
    """

    def __init__(self, directory: Path, resume_at_steps: int | None) -> None:
        # Imported here because it takes 0.4 s.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard knows its files by this beginning and reads them in the order of their names.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((directory / name).open("xb"))
        self._put(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_at_steps is not None:
            # Makes TensorBoard hide what earlier files say of later steps.
            start = SessionLog(status=SessionLog.START)
            self._put(Event(wall_time=time.time(), step=resume_at_steps + 1, session_log=start))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=tensorboard_tag(name), simple_value=value) for name, value in scalars.items()]
        self._put(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def close(self) -> None:
        self._records.close()

    def _put(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()


def _start_wandb(project: str, run_dir: Path, config: Mapping[str, object]) -> Any:
    try:
        wandb = importlib.import_module("wandb")  # by name: an optional package without a place in our extras
    except ImportError as error:
        raise TrackerNotInstalledError(
            f"reporting to the Weights & Biases project {project!r} needs the package wandb: pip install wandb"
        ) from error
    # A resumed run continues the record of the original one.
    kept = run_dir / _WANDB_ID_FILE
    id = kept.read_text().strip() if kept.exists() else None
    run = wandb.init(
        project=project, name=run_dir.name, dir=str(run_dir), config=dict(config), id=id, resume="allow" if id else None
    )
    kept.write_text(f"{run.id}\n")
    return run
