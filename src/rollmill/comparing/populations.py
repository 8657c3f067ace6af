"""Ratings over time and results between players, of runs in environments with several agents."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.comparing.figures import draw_ratings
from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.comparing.tables import table
from rollmill.reporting.metrics import METRICS_FILE, is_number, read_metrics
from rollmill.reporting.plots import Curve, curve_of
from rollmill.storage.population_config import POLICIES_FOLDER

_RESULT = "win_rate/"
_PAST = "past_win_rate"


@dataclass(frozen=True)
class RatedRun:
    """A run whose policies have ratings.

    Attributes:
        run: The run.
        ratings: Policy -> its rating over its agent steps.
        results: Policy -> opponent -> its share of the points at the end; "past selves" is one of the opponents.
    """

    run: ComparedRun
    ratings: Mapping[str, Curve]
    results: Mapping[str, Mapping[str, float]]


def rated_runs(comparison: Comparison) -> list[RatedRun]:
    """Return the runs that have ratings, in their order."""
    found = []
    for run in comparison.runs:
        records_of = _records_of(run)
        ratings = {name: curve_of(records, "agent_steps", "rating") for name, records in records_of.items()}
        ratings = {name: curve for name, curve in ratings.items() if len(curve.x)}
        if ratings:
            results = {name: _results(records_of[name]) for name in ratings}
            found.append(RatedRun(run, ratings, results))
    return found


def draw_rated_run(rated: RatedRun, path: Path) -> Path:
    """Draw the ratings of a run's policies over their agent steps."""
    return draw_ratings(rated.ratings, path, title=f"{rated.run.env}: {rated.run.path.name}")


def population_section(rated: RatedRun) -> str:
    """Return heading, table of results and note of a run."""
    met = {name for results in rated.results.values() for name in results}
    # The policies in their order, then guests and past selves.
    opponents = [name for name in rated.results if name in met] + sorted(met - rated.results.keys())
    rows = [
        [name, f"{rated.ratings[name].y[-1]:+.0f}", *(_share(results.get(opponent)) for opponent in opponents)]
        for name, results in rated.results.items()
    ]
    head = ["policy", "rating", *(f"against {name}" for name in opponents)]
    return (
        f"<h2>Policies of {html.escape(str(rated.run.path))}</h2>"
        + table(head, rows)
        + '<p class="note">Share of the points in matches during training: 1 for a win, 1/2 for a draw; older matches '
        "count less. Against past selves: since the row before the last that has such matches.</p>"
    )


def figures_of(rated: RatedRun) -> dict[str, Any]:
    """Return the numbers for ``report.json``."""
    return {
        "directory": str(rated.run.path),
        "ratings": {name: float(curve.y[-1]) for name, curve in rated.ratings.items()},
        "results": {name: dict(results) for name, results in rated.results.items()},
    }


def _records_of(run: ComparedRun) -> dict[str, Sequence[dict[str, Any]]]:
    folder = run.path / POLICIES_FOLDER
    if not folder.is_dir():
        return {"policy": run.records}
    return {path.parent.name: read_metrics(path.parent) for path in sorted(folder.glob(f"*/{METRICS_FILE}"))}


def _results(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the last known share of the points against each opponent."""
    found: dict[str, float] = {}
    for record in records:
        for key, value in record.items():
            if is_number(value) and (key.startswith(_RESULT) or key == _PAST):
                found["past selves" if key == _PAST else key.removeprefix(_RESULT)] = float(value)
    return found


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
