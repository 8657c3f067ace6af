"""Shares of the points against fixed opponents, in the evaluations of runs with ``eval_against``."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.comparing.figures import draw_points
from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.comparing.tables import table
from rollmill.reporting.plots import Curve, curve_of
from rollmill.storage.evaluations import EVALUATIONS_FILE, EvaluationQueue
from rollmill.storage.population_config import POLICIES_FOLDER

_AGAINST = "against"


@dataclass(frozen=True)
class EvaluatedRun:
    """A run whose policies met fixed opponents in their evaluations.

    Attributes:
        run: The run.
        points: Policy -> opponent -> the policy's share of the points over its agent steps; no curve is empty.
    """

    run: ComparedRun
    points: Mapping[str, Mapping[str, Curve]]

    @property
    def opponents(self) -> list[str]:
        """All opponents, in the order in which they were first met."""
        return list(dict.fromkeys(name for curves in self.points.values() for name in curves))


def evaluated_runs(comparison: Comparison) -> list[EvaluatedRun]:
    """Return the runs that have results against fixed opponents, in their order."""
    found = []
    for run in comparison.runs:
        points = {name: _points(records) for name, records in _evaluations_of(run).items()}
        points = {name: curves for name, curves in points.items() if curves}
        if points:
            found.append(EvaluatedRun(run, points))
    return found


def draw_evaluated_run(evaluated: EvaluatedRun, path: Path) -> Path:
    """Draw the share of the points of each policy against each opponent over the policy's agent steps."""
    return draw_points(evaluated.points, path, title=f"{evaluated.run.env}: {evaluated.run.path.name}")


def opponents_section(evaluated: EvaluatedRun) -> str:
    """Return heading, table and note of a run."""
    rows = [
        [name, f"{max(curve.x[-1] for curve in curves.values()):,.0f}", *_shares(curves, evaluated.opponents)]
        for name, curves in evaluated.points.items()
    ]
    head = ["policy", "agent steps", *(f"against {name}" for name in evaluated.opponents)]
    return (
        f"<h2>Opponents of {html.escape(str(evaluated.run.path))}</h2>"
        + table(head, rows)
        + '<p class="note">Share of the points in the matches of evaluations: 1 for a win, 1/2 for a draw; of the last '
        "evaluation that met the opponent. The mean over the opponents decides which network is the best.</p>"
    )


def figures_of_opponents(evaluated: EvaluatedRun) -> dict[str, Any]:
    """Return the numbers for ``report.json``."""
    return {
        "directory": str(evaluated.run.path),
        "policies": {
            name: {
                opponent: {"agent_steps": int(curve.x[-1]), "points": float(curve.y[-1])}
                for opponent, curve in curves.items()
            }
            for name, curves in evaluated.points.items()
        },
    }


def _evaluations_of(run: ComparedRun) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Policy -> its evaluations."""
    folder = run.path / POLICIES_FOLDER
    if not folder.is_dir():
        return {"policy": run.evaluations}
    files = sorted(folder.glob(f"*/{EVALUATIONS_FILE}"))
    return {path.parent.name: EvaluationQueue(path.parent).records() for path in files}


def _points(records: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Opponent -> share of the points over agent steps, of the evaluations that have it."""
    # The file of another user's run may hold anything under the key.
    met: list[tuple[Any, dict[str, Any]]] = [
        (record.get("agent_steps"), against) for record in records if isinstance(against := record.get(_AGAINST), dict)
    ]
    curves = {
        name: curve_of([{"steps": steps, "points": against.get(name)} for steps, against in met], "steps", "points")
        for name in dict.fromkeys(name for _, against in met for name in against)
    }
    return {name: curve for name, curve in curves.items() if len(curve.x)}


def _shares(curves: Mapping[str, Curve], opponents: Sequence[str]) -> list[str]:
    return [f"{curves[name].y[-1]:.3f}" if name in curves else "-" for name in opponents]
