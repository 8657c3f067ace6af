"""The pictures of a sweep: values over trials, over each setting, and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rollmill.campaigns.follow import RunFollower
from rollmill.campaigns.space import Choices, Dimension
from rollmill.comparing.figures import new_figure, save, styles, tidy
from rollmill.settings.option_values import format_value

if TYPE_CHECKING:
    from rollmill.campaigns.study import Trial
    from rollmill.campaigns.sweep_result import SweepResult

_COLUMNS = 3
_BEST, _START, _OTHER = (style.colour for style in styles(3))
_GREY = "#8C8C8C"


def draw_history(result: SweepResult, path: Path) -> Path:
    """Draw the value of each trial, and the best until then."""
    figure = new_figure(9.0, 3.6)
    axes = figure.subplots()
    complete = sorted(result.ranked, key=lambda trial: trial.number)
    numbers, values = [t.number for t in complete], np.array([t.value for t in complete], np.float64)
    best = (np.maximum if result.sign > 0 else np.minimum).accumulate(values)
    axes.step(numbers, best, where="post", color=_BEST, linewidth=1.8, label="best so far")
    axes.plot(numbers, values, "o", color=_OTHER, markersize=5, label="complete")
    pruned = [t for t in result.trials if t.state == "pruned" and t.value is not None]
    if pruned:
        axes.plot([t.number for t in pruned], [t.value for t in pruned], "x", color=_GREY, label="pruned, value then")
    if result.start is not None and result.start.value is not None:
        axes.axhline(result.start.value, color=_START, linestyle="--", linewidth=1.2, label="start")
    axes.set_xlabel("trial")
    axes.set_ylabel(result.metric, parse_math=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize="small")
    tidy(axes)
    save(figure, path)
    return path


def draw_settings(result: SweepResult, path: Path) -> Path:
    """Draw the value of each trial over each setting."""
    count = len(result.space)
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    figure = new_figure(3.6 * columns + 1.0, 3.2 * rows)
    grid = np.atleast_1d(figure.subplots(rows, columns, sharey=True)).ravel()
    for axes in grid[count:]:
        axes.set_visible(False)
    for axes, dimension in zip(grid, result.space, strict=False):
        _draw_setting(axes, result, dimension)
    for axes in grid[::columns]:
        axes.set_ylabel(result.metric, parse_math=False)
    save(figure, path)
    return path


def draw_trial_curves(result: SweepResult, path: Path) -> Path:
    """Draw the metric of the first seed of each trial over agent steps."""
    from matplotlib.ticker import EngFormatter

    figure = new_figure(9.0, 4.0)
    axes = figure.subplots()
    best, start = result.best, result.start
    for trial in result.trials:
        run_dirs = result.run_dirs.get(trial.number, ())
        if not run_dirs:
            continue
        follower = RunFollower(run_dirs[0])
        follower.update()
        curve = follower.curve(result.metric)
        is_best = best is not None and trial.number == best.number
        is_start = start is not None and trial.number == start.number
        colour, label = (_BEST, "best") if is_best else (_START, "start") if is_start else (_GREY, None)
        axes.plot(
            [steps for steps, _ in curve],
            [value for _, value in curve],
            color=colour,
            linewidth=2.0 if label else 0.8,
            alpha=1.0 if label else 0.6,
            zorder=3 if label else 2,
            label=label,
        )
    axes.set_xlabel("agent steps")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylabel(result.metric, parse_math=False)
    axes.legend(frameon=False, fontsize="small")
    tidy(axes)
    save(figure, path)
    return path


def _draw_setting(axes: Any, result: SweepResult, dimension: Dimension) -> None:
    from matplotlib.ticker import NullFormatter

    key = dimension.key
    for trials, marker, colour in (
        ([t for t in result.trials if t.state == "pruned" and t.value is not None], "x", _GREY),
        (result.ranked, "o", _OTHER),
        ([t for t in (result.start,) if t is not None and t.value is not None], "o", _START),
        (result.ranked[:1], "o", _BEST),
    ):
        known = [trial for trial in trials if key in trial.settings]
        axes.plot(_places(known, dimension), [trial.value for trial in known], marker, color=colour, markersize=5)
    if isinstance(dimension, Choices):
        names = [format_value(v) for v in dimension.values]
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif dimension.log:
        axes.set_xscale("log")
        axes.set_xlim(dimension.low / 1.2, dimension.high * 1.2)
        if dimension.high >= 10.0 * dimension.low:  # A power of ten has a label; those between would overlap.
            axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(key, parse_math=False)
    tidy(axes)


def _places(trials: Sequence[Trial], dimension: Dimension) -> list[float]:
    values = [trial.settings[dimension.key] for trial in trials]
    return (
        [dimension.values.index(v) for v in values] if isinstance(dimension, Choices) else cast("list[float]", values)
    )
