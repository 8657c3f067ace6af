"""What a run that is training has reported so far, read while its file grows."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.reporting.metric_table import EVALUATION_GROUP
from rollmill.reporting.metrics import METRICS_FILE, is_number, parse_record
from rollmill.storage.evaluations import EVALUATIONS_FILE, EvaluationQueue
from rollmill.storage.population_config import POLICIES_FOLDER

Point = tuple[int, float]


@dataclass(frozen=True)
class RunLength:
    """When a run ends.

    Attributes:
        total_steps: Agent steps.
        max_seconds: Seconds of training, if they end it before; None for no such limit.
    """

    total_steps: int
    max_seconds: float | None = None

    def share(self, agent_steps: int, seconds: float) -> float:
        """How much of it a run has done, 0 to 1."""
        of_time = 0.0 if self.max_seconds is None else seconds / self.max_seconds
        return min(1.0, max(agent_steps / self.total_steps, of_time))


_OF_EVALUATIONS = re.compile(rf"(?:policy/(\w+)/)?{EVALUATION_GROUP}/(.*)")


class RunFollower:
    """Reads the rows that a run appends to its metrics, each once.

    Args:
        run_dir: The run's directory, which need not exist yet.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._offset = 0
        self.rows: list[dict[str, Any]] = []

    def update(self) -> bool:
        """Read what is new, and return whether there was anything."""
        path = self._run_dir / METRICS_FILE
        try:
            with path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # A resumed run has dropped rows that it will write again.
                    self._offset, self.rows = 0, []
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return False
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        before = len(self.rows)
        parsed = map(parse_record, whole.splitlines(keepends=True))
        self.rows += [row for row in parsed if row is not None]
        return len(self.rows) > before

    @property
    def agent_steps(self) -> int:
        """Agent steps of the newest row."""
        return _steps_of(self.rows[-1]) if self.rows else 0

    def share(self, length: RunLength, agent_steps: float = math.inf) -> float:
        """How much of a run was done at a number of agent steps, 0 to 1.

        Args:
            length: When it ends.
            agent_steps: By default those of the newest row.
        """
        if not self.rows:
            return 0.0
        place = bisect_left(self.rows, agent_steps, key=_steps_of)
        row = self.rows[min(place, len(self.rows) - 1)]
        return length.share(int(min(agent_steps, _steps_of(row))), row.get("time_s", 0.0))

    def curve(self, metric: str) -> list[Point]:
        """The metric's values so far; see :func:`curve_of_metric`."""
        return curve_of_metric(self._run_dir, self.rows, metric)


def curve_of_metric(run_dir: Path, rows: Sequence[Mapping[str, Any]], metric: str) -> list[Point]:
    """The values of a metric, as agent steps and value, in order.

    Args:
        run_dir: The run's directory.
        rows: Its metrics.
        metric: A key of ``metrics.jsonl``, or ``evaluation/KEY`` for a key of ``evaluations.jsonl``, or
            ``policy/NAME/evaluation/KEY`` for that of one of several policies.
    """
    records, key = rows, metric
    if (found := policy_and_key(metric)) is not None:
        name, key = found
        records = EvaluationQueue(run_dir / POLICIES_FOLDER / name if name else run_dir).records()
    return [(int(row["agent_steps"]), float(row[key])) for row in records if is_number(row.get(key))]


def metric_keys(run_dir: Path, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """What :func:`curve_of_metric` may be asked for: keys whose values are numbers, or null so far."""
    keys = _keys(rows)
    for file in (run_dir / EVALUATIONS_FILE, *(run_dir / POLICIES_FOLDER).glob(f"*/{EVALUATIONS_FILE}")):
        prefix = "" if file.parent == run_dir else f"policy/{file.parent.name}/"
        keys |= {f"{prefix}{EVALUATION_GROUP}/{key}" for key in _keys(EvaluationQueue(file.parent).records())}
    return keys


def known_until(metric: str, curve: Sequence[Point], agent_steps: int) -> int:
    """Agent steps until which the curve of a run that is training is complete.

    Evaluations arrive when the learner is further already.

    Args:
        metric: Which one it is.
        curve: What is known of it; see :func:`curve_of_metric`.
        agent_steps: Of the run's newest row.
    """
    if policy_and_key(metric) is None:
        return agent_steps
    return curve[-1][0] if curve else 0


def value_at(curve: Sequence[tuple[float, float]], place: float) -> float | None:
    """The newest value at a place of a curve; None before the first."""
    found = [value for at, value in curve if at <= place]
    return found[-1] if found else None


def policy_and_key(metric: str) -> tuple[str, str] | None:
    """Policy, empty for the only one, and key of a metric of ``evaluations.jsonl``; None for other metrics."""
    match = _OF_EVALUATIONS.fullmatch(metric)
    return (match[1] or "", match[2]) if match is not None else None


def _steps_of(row: Mapping[str, Any]) -> int:
    return int(row.get("agent_steps", 0))


def _keys(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    return {key for row in rows for key, value in row.items() if value is None or is_number(value)}
