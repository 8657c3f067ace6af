"""Returns, scores and shares of each task, of runs that learn several."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.comparing.tables import table
from rollmill.reporting.metrics import is_number
from rollmill.reporting.task_plots import PREFIX, RETURN, SCORE, plot_tasks, tasks_in

_SAMPLES, _COMPUTE = "/samples", "/compute"


class TaskResult(NamedTuple):
    """What a run has reached in a task, in its last row that has each; None where none has.

    Attributes:
        episode_return: Mean of its last 100 episodes.
        score: Human-normalised.
        samples: Its share of the samples.
        compute: Its share of the time of rollout workers.
    """

    episode_return: float | None
    score: float | None
    samples: float | None
    compute: float | None


@dataclass(frozen=True)
class RunOfTasks:
    """A run that learns several tasks.

    Attributes:
        run: The run.
        results: Task -> what it has reached.
    """

    run: ComparedRun
    results: Mapping[str, TaskResult]


def runs_of_tasks(comparison: Comparison) -> list[RunOfTasks]:
    """Return the runs that learn several tasks, in their order."""
    found = []
    for run in comparison.runs:
        if names := tasks_in(run.records[-1]) if run.records else []:
            found.append(RunOfTasks(run, {name: _result(run.records, name) for name in names}))
    return found


def draw_tasks(of_tasks: RunOfTasks, path: Path) -> Path:
    """Draw each task's return over the run's agent steps."""
    plot_tasks(of_tasks.run.path, path)
    return path


def tasks_section(of_tasks: RunOfTasks) -> str:
    """Return heading, table and note of a run."""
    results = of_tasks.results
    has_scores = any(result.score is not None for result in results.values())
    head = ["task", "return", *["human = 1"] * has_scores, "samples", "compute"]
    rows = []
    for name, result in results.items():
        shares = [_percent(result.samples), _percent(result.compute)]
        rows.append([name, _number(result.episode_return), *[_number(result.score)] * has_scores, *shares])
    return (
        f"<h2>Tasks of {html.escape(str(of_tasks.run.path))}</h2>"
        + table(head, rows)
        + '<p class="note">Return: mean of the last 100 training episodes of the task. Shares of the samples and of '
        "the time of rollout workers: of the newest rows of metrics.</p>"
    )


def figures_of_tasks(of_tasks: RunOfTasks) -> dict[str, Any]:
    """Return the numbers for ``report.json``."""
    results = {name: result._asdict() for name, result in of_tasks.results.items()}
    return {"directory": str(of_tasks.run.path), "tasks": results}


def _result(records: Sequence[Mapping[str, Any]], name: str) -> TaskResult:
    def last(kind: str) -> float | None:
        values = (record.get(f"{PREFIX}{name}{kind}") for record in reversed(records))
        return next((float(value) for value in values if is_number(value)), None)

    return TaskResult(last(RETURN), last(SCORE), last(_SAMPLES), last(_COMPUTE))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
