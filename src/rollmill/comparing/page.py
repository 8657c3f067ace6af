"""The report: one self-contained HTML page, its pictures as PNG files, and its figures as JSON."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rollmill
from rollmill.comparing.figures import draw_aggregates, draw_curves, draw_profiles, draw_scores
from rollmill.comparing.lineage import draw_population, lineage_section, populations
from rollmill.comparing.lineage import figures_of as figures_of_population
from rollmill.comparing.markup import picture, write_page
from rollmill.comparing.method_curves import curve_notes
from rollmill.comparing.opponents import draw_evaluated_run, evaluated_runs, figures_of_opponents, opponents_section
from rollmill.comparing.populations import draw_rated_run, figures_of, population_section, rated_runs
from rollmill.comparing.run_details import (
    details_of,
    details_section,
    draw_details,
    figures_of_details,
    videos_section,
)
from rollmill.comparing.runs import Comparison, ComparisonError, compare
from rollmill.comparing.statistics import (
    AGGREGATES,
    MissingReportExtraError,
    aggregates,
    mean_intervals,
    profile,
    score_matrices,
)
from rollmill.comparing.tables import scores_section, table
from rollmill.comparing.task_results import draw_tasks, figures_of_tasks, runs_of_tasks, tasks_section
from rollmill.evaluation.stats import Estimate
from rollmill.extras import check_extra
from rollmill.reporting.metrics import NoMetricsError
from rollmill.reporting.plots import PlotError

PAGE = "report.html"
FIGURES = "report.json"
_LONGEST_NAME = 200  # bytes, of the 255 that file systems allow


class NotWritableError(ValueError):
    """The report cannot be written to the given directory."""


@dataclass(frozen=True)
class Report:
    """A written report.

    Attributes:
        page: The HTML page; needs no other file.
        pictures: The PNG files.
        figures: The content of ``report.json``: runs, scores, aggregates with their intervals.
        notes: Sentences on runs that are left out.
    """

    page: Path
    pictures: tuple[Path, ...]
    figures: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def write_report(
    runs: Sequence[str | Path],
    output: Path | str = "report",
    *,
    title: str = "",
    seed: int = 0,
    notes: Sequence[str] = (),
) -> Report:
    """Compare runs and write the page.

    Aggregates over Atari games need rliable; without it a note on the page says so.

    Args:
        runs: Run directories, or ``NAME=DIRECTORY``, see :func:`rollmill.comparing.runs.compare`.
        output: Directory of the page and the pictures.
        title: The page's; by default it says how many runs are compared.
        seed: Key of the bootstrap, so that the same runs give the same page.
        notes: Sentences below the title.

    Raises:
        ComparisonError: The runs cannot be compared, or a file of one cannot be read.
        MissingPackageError: matplotlib is not installed.
        NotWritableError: The directory cannot be created or written to.
    """
    check_extra("plots", "a report")
    try:
        comparison = compare(runs)
    except NoMetricsError:
        raise
    except OSError as error:
        raise ComparisonError(f"{error.filename} cannot be read ({error.strerror})") from error
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write(comparison, folder, title=title, seed=seed, notes=[*notes, *comparison.notes])
    except PlotError as error:
        raise NotWritableError(str(error)) from error
    except NoMetricsError:
        raise
    except OSError as error:
        if error.filename is not None and not Path(error.filename).is_relative_to(folder):
            raise ComparisonError(f"{error.filename} cannot be read ({error.strerror})") from error
        raise NotWritableError(
            f"the report cannot be written to {folder} ({error.strerror or error}): give another directory (--output)"
        ) from error


def _write(comparison: Comparison, folder: Path, *, title: str, seed: int, notes: Sequence[str]) -> Report:
    intervals = {env: mean_intervals(comparison, env, seed=seed) for env in comparison.envs}
    pictures_of = {env: _draw(comparison, env, intervals[env], folder) for env in comparison.envs}
    pictures: list[Path] = []
    games, matrices = score_matrices(comparison)
    found: Mapping[str, Mapping[str, Estimate]] = {}
    if games:
        try:
            found = aggregates(matrices, seed=seed)
            pictures = [draw_aggregates(found, folder / "aggregates.png")]
            pictures += [draw_profiles(profile(matrices, seed=seed), folder / "profiles.png")]
        except MissingReportExtraError as error:  # Hours of training may have led here.
            games, matrices = [], {}
            notes = [*notes, f"The aggregates over all games are left out: {error}."]
    rated = rated_runs(comparison)
    pictures_of_rated = [
        draw_rated_run(each, folder / f"ratings-{number}.png") for number, each in enumerate(rated, start=1)
    ]
    evaluated = evaluated_runs(comparison)
    pictures_of_evaluated = [
        draw_evaluated_run(each, folder / f"opponents-{number}.png") for number, each in enumerate(evaluated, start=1)
    ]
    bred = populations(comparison)
    pictures_of_bred = [
        draw_population(each, folder / f"pbt-{number}.png") for number, each in enumerate(bred, start=1)
    ]
    detailed = details_of(comparison)
    pictures_of_details = [
        draw_details(each, folder / f"run-{number}.png") for number, each in enumerate(detailed, start=1)
    ]
    with_tasks = runs_of_tasks(comparison)
    pictures_of_tasks = [
        draw_tasks(each, folder / f"tasks-{number}.png") for number, each in enumerate(with_tasks, start=1)
    ]
    runs_of_game = {label: len(scores) for label, scores in matrices.items()}
    figures = _figures(comparison, intervals, games, runs_of_game, found)
    if rated:
        figures["populations"] = [figures_of(each) for each in rated]
    if evaluated:
        figures["opponents"] = [figures_of_opponents(each) for each in evaluated]
    if bred:
        figures["pbt"] = [figures_of_population(each) for each in bred]
    if with_tasks:
        figures["tasks"] = [figures_of_tasks(each) for each in with_tasks]
    if detailed:
        figures["details"] = [figures_of_details(each) for each in detailed]
    (folder / FIGURES).write_text(json.dumps(figures, indent=2) + "\n")
    page = folder / PAGE
    if not title:
        number = len(comparison.runs)
        title = f"Comparison of {number} runs" if number > 1 else f"A run of {comparison.runs[0].env}"
    parts = [f"<h1>{html.escape(title)}</h1>", *(f'<p class="note">{html.escape(note)}</p>' for note in notes)]
    for env in comparison.envs:
        parts += [scores_section(comparison, env, intervals[env]), *map(picture, pictures_of[env])]
        parts += [f'<p class="note">{html.escape(note)}</p>' for note in curve_notes(comparison, env)]
    if games:
        parts += ["<h2>Over all games</h2>", _aggregate_table(found), _note(games, figures), *map(picture, pictures)]
    for of_tasks, drawn_tasks in zip(with_tasks, pictures_of_tasks, strict=True):
        parts += [tasks_section(of_tasks), picture(drawn_tasks)]
    for each, drawn_run in zip(rated, pictures_of_rated, strict=True):
        parts += [population_section(each), picture(drawn_run)]
    for evaluated_run, drawn_evaluated in zip(evaluated, pictures_of_evaluated, strict=True):
        parts += [opponents_section(evaluated_run), picture(drawn_evaluated)]
    for population, drawn_population in zip(bred, pictures_of_bred, strict=True):
        parts += [lineage_section(population), picture(drawn_population)]
    for details, drawn_details in zip(detailed, pictures_of_details, strict=True):
        parts.append(details_section(details))
        parts += [] if drawn_details is None else [picture(drawn_details)]
        parts.append(videos_section(details))
    write_page(page, title, parts)
    drawn = (
        *(path for paths in pictures_of.values() for path in paths),
        *pictures,
        *pictures_of_tasks,
        *pictures_of_rated,
        *pictures_of_evaluated,
        *pictures_of_bred,
        *(path for path in pictures_of_details if path is not None),
    )
    return Report(page, drawn, figures, tuple(comparison.notes))


def _draw(comparison: Comparison, env: str, intervals: Mapping[str, Estimate], folder: Path) -> list[Path]:
    """The pictures of one environment."""
    name = _file_name(env)
    alike = [other for other in comparison.envs if _file_name(other) == name]
    if len(alike) > 1:
        name += f"-{alike.index(env)}"
    drawn = [draw_curves(comparison, env, folder / f"curves-{name}.png")]
    if intervals:
        drawn.append(draw_scores(comparison, env, intervals, folder / f"scores-{name}.png"))
    return drawn


def _file_name(env: str) -> str:
    # In the run of a stranger the name of the environment may be any text.
    return re.sub(r"[^\w.+-]", "-", env).encode()[:_LONGEST_NAME].decode(errors="ignore")


def _figures(
    comparison: Comparison,
    intervals: Mapping[str, Mapping[str, Estimate]],
    games: Sequence[str],
    runs_of_game: Mapping[str, int],
    found: Mapping[str, Mapping[str, Estimate]],
) -> dict[str, Any]:
    differing = {env: comparison.differing_settings(env) for env in comparison.envs}
    return {
        "rollmill": rollmill.__version__,
        "runs": [
            {
                "directory": str(run.path),
                "method": run.label,
                "env": run.env,
                "seed": run.seed,
                "settings": {key: str(run.settings[key]) for key in differing[run.env] if key in run.settings},
                "agent_steps": run.agent_steps,
                "minutes": run.minutes,
                "score": run.score,
                "human_normalised_score": run.human_normalised_score,
                "is_evaluated": run.is_evaluated,
                "return_at_equal_steps": run.return_at("agent_steps", comparison.common(run.env)[0]),
                "return_at_equal_time": run.return_at("time_s", 60.0 * comparison.common(run.env)[1]),
            }
            for run in comparison.runs
        ],
        "returns": {
            env: {label: interval._asdict() for label, interval in of_env.items()} for env, of_env in intervals.items()
        },
        "notes": {env: curve_notes(comparison, env) for env in comparison.envs},
        "games": list(games),
        "runs_of_each_game": dict(runs_of_game),
        "aggregates": {
            label: {
                name: {key: None if np.isnan(number) else number for key, number in interval._asdict().items()}
                for name, interval in of_method.items()
            }
            for label, of_method in found.items()
        },
    }


def _aggregate_table(found: Mapping[str, Mapping[str, Estimate]]) -> str:
    rows = [[label, *(_with_interval(of_method[name]) for name in AGGREGATES)] for label, of_method in found.items()]
    return table(["method", "median", "interquartile mean", "mean", "optimality gap"], rows)


def _with_interval(found: Estimate) -> str:
    interval = "" if np.isnan(found.low) else f" [{found.low:.3f}, {found.high:.3f}]"
    return f"{found.value:.3f}{interval}"


def _note(games: Sequence[str], figures: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{html.escape(label)}: {count}" for label, count in figures["runs_of_each_game"].items())
    return (
        f'<p class="note">Human-normalised scores of {len(games)} game(s) that every method has played '
        f"({html.escape(', '.join(games))}); runs of each game: {counts}. 95 % intervals of the stratified bootstrap "
        "(Agarwal et al. 2021, rliable); they are too narrow with fewer than about five runs, and a single run has "
        "none.</p>"
    )
