"""The report's tables: a row for each method of an environment, sorted by return."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np

from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.evaluation.stats import Estimate

_MOST_SETTINGS = 6  # with columns in the table of scores; more get a table of their own
_NONE = "-"


def scores_section(comparison: Comparison, env: str, intervals: Mapping[str, Estimate]) -> str:
    """Heading, table and notes of one environment.

    Args:
        comparison: The runs.
        env: The environment.
        intervals: Mean return of each method with its interval.
    """
    labels = comparison.ranked(env)
    differing = comparison.differing_settings(env)
    beside = differing if len(differing) <= _MOST_SETTINGS else []
    runs_of = {label: comparison.of(label, env) for label in labels}
    has_human = any(run.human_normalised_score is not None for runs in runs_of.values() for run in runs)
    head = ["method", *_short(beside), "seeds", "agent steps", "minutes", "return", "95 % interval"]
    head += ["smallest", "largest", *["human = 1"] * has_human, "at equal steps", "at equal time"]
    common = comparison.common(env)
    rows = [
        [
            label,
            *_settings(runs, beside),
            *_summary(runs, intervals.get(label), has_human=has_human),
            *_at_common_places(runs, common),
        ]
        for label, runs in runs_of.items()
    ]
    parts = [f"<h2>{html.escape(env)}</h2>", table(head, rows), _note(common, has_human=has_human)]
    if len(differing) > _MOST_SETTINGS:
        rows = [[label, *_settings(runs, differing)] for label, runs in runs_of.items()]
        parts += ["<h3>Settings that differ</h3>", table(["method", *differing], rows)]
    if names := sorted({name for runs in runs_of.values() for run in runs for name in run.env_metrics}):
        rows = [[label, *_env_metrics(runs, names)] for label, runs in runs_of.items()]
        head = ["method", *(name.removeprefix("env/") for name in names)]
        note = '<p class="note">The last value of each run, mean over the seeds that have one.</p>'
        parts += ["<h3>Metrics of the environment</h3>", table(head, rows), note]
    return "\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table, which scrolls where it is wider than the page."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = line(head, "th") + "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>{body}</table></div>'


def _short(keys: Sequence[str]) -> list[str]:
    """Last parts of dotted keys, or the complete keys if two of them have the same last part."""
    last = [key.rpartition(".")[2] for key in keys]
    return [key if last.count(name) > 1 else name for key, name in zip(keys, last, strict=True)]


def _settings(runs: Sequence[ComparedRun], keys: Sequence[str]) -> list[str]:
    """Values of the settings; where the runs of a method differ, each value with the number of its runs."""
    cells = []
    for key in keys:
        values = [str(run.settings[key]) if key in run.settings else _NONE for run in runs]
        counts = {value: values.count(value) for value in dict.fromkeys(values)}
        cells.append(values[0] if len(counts) == 1 else "; ".join(f"{value} ({n})" for value, n in counts.items()))
    return cells


def _note(common: tuple[int, float], *, has_human: bool) -> str:
    steps, minutes = common
    human = " Human = 1: scores in units of a human's, where 0 is random play." if has_human else ""
    return (
        '<p class="note">Return: mean over the seeds of the last evaluation, or of the last 100 training episodes '
        "where one of the runs has no evaluations; of the rewards of the environment with its wrappers, before the "
        "learner scales or clips them. Interval: percentile bootstrap "
        f"over the seeds; it is too narrow with fewer than about five seeds, and a single seed has none.{human} At "
        "equal steps and at equal time: of the last 100 training episodes, where the first of all runs has ended "
        f"({steps:,} agent steps, {minutes:.1f} minutes).</p>"
    )


def _summary(runs: Sequence[ComparedRun], interval: Estimate | None, *, has_human: bool) -> list[str]:
    scores = [run.score for run in runs if run.score is not None]
    normalised = [run.human_normalised_score for run in runs if run.human_normalised_score is not None]
    steps, minutes = np.mean([run.agent_steps for run in runs]), np.mean([run.minutes for run in runs])
    cells = [str(len(runs)), f"{steps:,.0f}", f"{minutes:,.1f}"]
    if interval is None:
        cells += [_NONE] * 4
    else:
        spread = f"{interval.low:,.2f} to {interval.high:,.2f}" if len(scores) > 1 else _NONE
        cells += [f"{interval.value:,.2f}", spread, f"{min(scores):,.2f}", f"{max(scores):,.2f}"]
    if has_human:
        cells.append(f"{np.mean(normalised):.3f}" if normalised else _NONE)
    return cells


def _env_metrics(runs: Sequence[ComparedRun], names: Sequence[str]) -> list[str]:
    found = [[run.env_metrics[name] for run in runs if name in run.env_metrics] for name in names]
    return [f"{np.mean(values):,.4g}" if values else _NONE for values in found]


def _at_common_places(runs: Sequence[ComparedRun], common: tuple[int, float]) -> list[str]:
    """Mean return over the runs at given agent steps and minutes."""
    steps, minutes = common
    cells = []
    for axis, place in (("agent_steps", float(steps)), ("time_s", 60.0 * minutes)):
        found = [run.return_at(axis, place) for run in runs]
        known = [value for value in found if value is not None]
        cells.append(f"{np.mean(known):,.2f}" if len(known) == len(found) else _NONE)
    return cells
