"""The report: one HTML page that holds everything, its pictures as PNG files, and its figures as JSON."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rollmill
from rollmill.comparing.figures import draw_aggregates, draw_curves, draw_profiles
from rollmill.comparing.runs import ComparedRun, Comparison, compare
from rollmill.comparing.statistics import AGGREGATES, ScoreInterval, aggregates, profile, score_matrices

__all__ = ["Report", "write_report"]

PAGE = "report.html"
FIGURES = "report.json"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .25rem .8rem; text-align: right; }
th { border-bottom: 1px solid #888; } td:first-child, th:first-child { text-align: left; }
tr:nth-child(even) td { background: #f5f5f5; } img { max-width: 100%; } .note { color: #666; font-size: .9em; }
"""


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        page: The HTML page; needs no other file.
        pictures: The PNG files.
        figures: What ``report.json`` holds: runs, scores, aggregates with their intervals.
    """

    page: Path
    pictures: tuple[Path, ...]
    figures: Mapping[str, Any]


def write_report(
    runs: Sequence[str | Path], output: Path | str = "report", *, title: str = "", seed: int = 0
) -> Report:
    """Compares runs and writes the page.

    Args:
        runs: Run directories, or ``NAME=DIRECTORY``, see :func:`rollmill.comparing.runs.compare`.
        output: Directory of the page and the pictures.
        title: The page's; by default it names the environments.
        seed: Keys the bootstrap, so that the same runs give the same page.

    Raises:
        ComparisonError: The runs cannot be compared.
        MissingReportExtraError: Some are of Atari games, and rliable is not installed.
    """
    comparison = compare(runs)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [
        draw_curves(comparison, env, folder / f"curves-{env.replace('/', '-').replace(':', '-')}.png")
        for env in comparison.envs
    ]
    games, matrices = score_matrices(comparison)
    found: Mapping[str, Mapping[str, ScoreInterval]] = {}
    if games:
        found = aggregates(matrices, seed=seed)
        pictures += [draw_aggregates(found, folder / "aggregates.png")]
        pictures += [draw_profiles(profile(matrices, seed=seed), folder / "profiles.png")]
    figures = _figures(comparison, games, {label: len(scores) for label, scores in matrices.items()}, found)
    (folder / FIGURES).write_text(json.dumps(figures, indent=2) + "\n")
    page = folder / PAGE
    page.write_text(_page(comparison, games, found, figures, pictures, title or ", ".join(comparison.envs)))
    return Report(page, tuple(pictures), figures)


def _figures(
    comparison: Comparison,
    games: Sequence[str],
    runs_of_game: Mapping[str, int],
    found: Mapping[str, Mapping[str, ScoreInterval]],
) -> dict[str, Any]:
    return {
        "rollmill": rollmill.__version__,
        "runs": [
            {
                "directory": str(run.path),
                "method": run.label,
                "env": run.env,
                "seed": run.seed,
                "agent_steps": run.agent_steps,
                "minutes": run.minutes,
                "score": run.score,
                "human_normalised_score": run.human_normalised_score,
                "is_evaluated": bool(run.evaluations),
                "return_at_equal_steps": run.return_at("agent_steps", comparison.common(run.env)[0]),
                "return_at_equal_time": run.return_at("time_s", 60.0 * comparison.common(run.env)[1]),
            }
            for run in comparison.runs
        ],
        "games": list(games),
        "runs_of_each_game": dict(runs_of_game),
        "aggregates": {
            label: {name: interval._asdict() for name, interval in of_method.items()}
            for label, of_method in found.items()
        },
    }


def _page(
    comparison: Comparison,
    games: Sequence[str],
    found: Mapping[str, Mapping[str, ScoreInterval]],
    figures: Mapping[str, Any],
    pictures: Sequence[Path],
    title: str,
) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>", _scores(comparison)]
    if games:
        parts += ["<h2>Over all games</h2>", _aggregate_table(found), _note(games, figures)]
    parts += [_picture(path) for path in pictures]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _scores(comparison: Comparison) -> str:
    rows = []
    for env in comparison.envs:
        for label in comparison.labels:
            if runs := comparison.of(label, env):
                rows.append([env, label, *_summary(runs), *_at_common_places(runs, comparison.common(env))])
    head = ["environment", "method", "seeds", "agent steps", "minutes", "return", "smallest", "largest", "human = 1"]
    head += ["at equal steps", "at equal time"]
    ends = "; ".join(
        f"{html.escape(env)}: {steps:,} agent steps, {minutes:.1f} minutes"
        for env, (steps, minutes) in ((env, comparison.common(env)) for env in comparison.envs)
    )
    note = (
        "Return: mean over the seeds of the last evaluation, or of the last 100 training episodes where a run has no "
        "evaluations; raw, neither scaled nor clipped. At equal steps and at equal time: of the last 100 training "
        f"episodes, where the first of all runs has ended ({ends})."
    )
    return f'{_table(head, rows)}<p class="note">{note}</p>'


def _summary(runs: Sequence[ComparedRun]) -> list[str]:
    scores = [run.score for run in runs if run.score is not None]
    normalised = [run.human_normalised_score for run in runs if run.human_normalised_score is not None]
    steps, minutes = np.mean([run.agent_steps for run in runs]), np.mean([run.minutes for run in runs])
    of_scores = (np.mean(scores), min(scores), max(scores)) if scores else (None,) * 3
    return [
        str(len(runs)),
        f"{steps:,.0f}",
        f"{minutes:,.1f}",
        *("-" if value is None else f"{value:,.2f}" for value in of_scores),
        f"{np.mean(normalised):.3f}" if normalised else "-",
    ]


def _at_common_places(runs: Sequence[ComparedRun], common: tuple[int, float]) -> list[str]:
    """Mean return over the runs at so many agent steps, and minutes."""
    steps, minutes = common
    cells = []
    for axis, place in (("agent_steps", float(steps)), ("time_s", 60.0 * minutes)):
        found = [run.return_at(axis, place) for run in runs]
        known = [value for value in found if value is not None]
        cells.append(f"{np.mean(known):,.2f}" if len(known) == len(found) else "-")
    return cells


def _aggregate_table(found: Mapping[str, Mapping[str, ScoreInterval]]) -> str:
    rows = [
        [label, *(f"{v.value:.3f} [{v.low:.3f}, {v.high:.3f}]" for v in (of_method[name] for name in AGGREGATES))]
        for label, of_method in found.items()
    ]
    return _table(["method", "median", "interquartile mean", "mean", "optimality gap"], rows)


def _note(games: Sequence[str], figures: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{html.escape(label)}: {count}" for label, count in figures["runs_of_each_game"].items())
    return (
        f'<p class="note">Human-normalised scores of {len(games)} game(s) that every method has played '
        f"({html.escape(', '.join(games))}); runs of each game: {counts}. 95 % intervals of the stratified bootstrap "
        "(Agarwal et al. 2021, rliable).</p>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>"


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}"></p>'
