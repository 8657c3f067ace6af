"""The page of a sweep: its best trial, all trials, and what each setting has done."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from rollmill.campaigns.jobs import CampaignError
from rollmill.campaigns.space import Choices, Dimension
from rollmill.campaigns.study import POINTS, Trial
from rollmill.campaigns.sweep_figures import draw_history, draw_settings, draw_trial_curves
from rollmill.campaigns.sweep_result import SweepResult, format_metric
from rollmill.comparing.markup import picture, write_page
from rollmill.comparing.tables import table
from rollmill.reporting.metrics import is_number
from rollmill.settings.option_values import format_value

FOLDER = "report"
PAGE = "report.html"
FIGURES = "report.json"
_NONE = "-"
# With fewer trials a rank correlation says nothing.
_FEWEST_FOR_RANKS = 5


def write_sweep_page(result: SweepResult) -> Path:
    """Write the page, its pictures and its figures into the folder ``report`` of a sweep.

    Args:
        result: A sweep with a best trial.

    Returns:
        The page.

    Raises:
        CampaignError: It cannot be written.
    """
    folder = result.folder / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = [
            draw_history(result, folder / "history.png"),
            draw_settings(result, folder / "settings.png"),
            draw_trial_curves(result, folder / "curves.png"),
        ]
        title = f"Sweep: {result.preset}"
        parts = [
            f"<h1>{html.escape(title)}</h1>",
            _best(result),
            picture(pictures[0]),
            "<h2>Settings</h2>",
            _space(result),
            picture(pictures[1]),
            "<h2>Learning curves</h2>",
            picture(pictures[2]),
            "<h2>Trials</h2>",
            _trials(result),
        ]
        write_page(folder / PAGE, title, parts)
        figures = replace(result, page=folder / PAGE).to_dict()
        (folder / FIGURES).write_text(json.dumps(figures, indent=2) + "\n")
    except OSError as error:
        raise CampaignError(
            f"the page cannot be written to {folder} ({error.strerror or error}): free space or give "
            "permission to write there, and repeat the command, which writes it."
        ) from error
    return folder / PAGE


def rank_correlation(result: SweepResult, dimension: Dimension) -> float | None:
    """Spearman's rank correlation of a setting's values with the metric, over complete trials.

    None for choices that are not numbers, for fewer than five trials, and where one of the two is constant.
    """
    pairs = [(trial.settings.get(dimension.key), trial.value) for trial in result.ranked]
    if isinstance(dimension, Choices) and not all(is_number(value) for value in dimension.values):
        return None
    pairs = [pair for pair in pairs if is_number(pair[0])]
    if len(pairs) < _FEWEST_FOR_RANKS:
        return None
    settings, values = (_ranks([cast("float", pair[place]) for pair in pairs]) for place in (0, 1))
    if np.ptp(settings) == 0 or np.ptp(values) == 0:
        return None
    return float(np.corrcoef(settings, values)[0, 1])


def _ranks(values: Sequence[float]) -> Any:
    """Ranks from 0; equal values share the mean of theirs."""
    array = np.asarray(values, np.float64)
    _, places, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2.0)[places]


def _best(result: SweepResult) -> str:
    best = cast("Trial", result.best)
    keys = [dimension.key for dimension in result.space]
    rows = [["best", str(best.number), *_settings(best, keys), format_metric(best.value), _seeds(best)]]
    start = result.start
    if start is not None:
        rows.append(["start", str(start.number), *_settings(start, keys), format_metric(start.value), _seeds(start)])
    counts = {state: sum(t.state == state for t in result.trials) for state in ("complete", "pruned", "failed")}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    what = "largest" if result.sign > 0 else "smallest"
    note = (
        f"{len(result.trials)} trials: {told}. Best is the {what} {result.metric} at the end of training. The best of "
        "many trials looks better than it is, because chance is part of each: train with its settings and other seeds "
        "before you rely on it."
    )
    if not result.is_complete:
        note = f"The sweep was interrupted. {note}"
    return "\n".join(
        [
            table(["", "trial", *keys, result.metric, "of each seed"], rows),
            f'<p class="note">{html.escape(note)}</p>',
            "<p>To train with the settings of the best trial:</p>",
            f"<pre>{html.escape(result.command)}</pre>",
        ]
    )


def _space(result: SweepResult) -> str:
    rows = []
    for dimension in result.space:
        correlation = rank_correlation(result, dimension)
        rows.append([dimension.key, dimension.describe(), _NONE if correlation is None else f"{correlation:+.2f}"])
    note = (
        '<p class="note">Rank correlation (Spearman) of the setting with the metric over complete trials: +1 where '
        "larger values always gave more, -1 where they always gave less. It misses an optimum in the middle, which the "
        "pictures show.</p>"
    )
    return table(["setting", "searched", "rank correlation"], rows) + note


def _trials(result: SweepResult) -> str:
    keys = [dimension.key for dimension in result.space]
    ranked = result.ranked
    others = [trial for trial in result.trials if trial not in ranked]
    rows = [
        [
            str(trial.number),
            trial.state,
            *_settings(trial, keys),
            format_metric(trial.value),
            _seeds(trial),
            trial.error.splitlines()[0] if trial.error else "",
        ]
        for trial in [*ranked, *others]
    ]
    note = (
        f'<p class="note">Complete trials by {html.escape(result.metric)}, then the others. A pruned trial was ended '
        f"early; its value is the last that the pruner saw, at one of {POINTS} equally distant points.</p>"
    )
    return table(["trial", "state", *keys, result.metric, "of each seed", "error"], rows) + note


def _settings(trial: Trial, keys: Sequence[str]) -> list[str]:
    return [_text(trial.settings[key]) if key in trial.settings else _NONE for key in keys]


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return format_value(value)


def _seeds(trial: Trial) -> str:
    return ", ".join(map(format_metric, trial.values)) if len(trial.values) > 1 else ""
