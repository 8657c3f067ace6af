"""Learning curves as pictures, from ``metrics.jsonl``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.extras import check_extra
from rollmill.reporting.metrics import is_number, read_metrics
from rollmill.storage.evaluations import EvaluationQueue

Floats = NDArray[np.float64]

# Okabe and Ito's colours, which colour-blind people can tell apart.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
_GRID_POINTS = 400
_LEAST_SHARE = 0.5  # of the axis that any run covers, below which the common part would hide most of the curves
# Room for ticks and labels around four panels, as parts of the figure, and between them, as parts of a panel.
_MARGINS = {"left": 0.085, "right": 0.985, "bottom": 0.085, "top": 0.925, "wspace": 0.2, "hspace": 0.26}
# Of the policies that chose a replay's samples; a replay has no lag.
_AGE = "replay/age"


class PlotError(ValueError):
    """A plot cannot be written to the requested place or in the requested format."""


class NothingToPlotError(ValueError):
    """A run has no record that a curve could be drawn from."""


class Curve(NamedTuple):
    """One quantity over one axis, in float64; ``x`` does not decrease and has no NaN, nor has ``y``."""

    x: Floats
    y: Floats


class Band(NamedTuple):
    """Several curves on a common axis: mean, smallest and largest."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats


def curve_of(records: Sequence[dict[str, Any]], x: str, y: str) -> Curve:
    """Values of ``y`` over ``x``, of those records that have both."""
    pairs = [(r[x], r[y]) for r in records if is_number(r.get(x)) and is_number(r.get(y))]
    array = np.array(pairs, np.float64).reshape(-1, 2)
    order = np.argsort(array[:, 0], kind="stable")
    return Curve(array[order, 0], array[order, 1])


def evaluated(records: Sequence[dict[str, Any]]) -> Band:
    """Mean returns of evaluations over agent steps, with their 95 % intervals; of the records that have them."""
    rows = []
    for record in records:
        interval = record.get("interval_95")
        if isinstance(interval, list) and len(interval) == 2:
            rows.append([record.get("agent_steps"), record.get("mean_return"), *interval])
    numbers = np.array([row for row in rows if all(map(is_number, row))], np.float64).reshape(-1, 4)
    return Band(*numbers[np.argsort(numbers[:, 0], kind="stable")].T)


def draw_evaluations(axes: Any, found: Band, **style: Any) -> None:
    """Draw evaluations as points with their intervals.

    Args:
        axes: Axes of matplotlib, over agent steps.
        found: The evaluations.
        **style: Of the points; see ``matplotlib.axes.Axes.errorbar``.
    """
    if len(found.x):
        # The mean may be outside of its interval by a rounding step, where all episodes have the same return.
        reach = np.maximum(0.0, (found.mean - found.low, found.high - found.mean))
        axes.errorbar(found.x, found.mean, yerr=reach, linestyle="none", elinewidth=1.0, capsize=2.0, **style)


def overlay(curves: Sequence[Curve]) -> Band:
    """Mean and range of several curves, on the part of the axis that all of them cover.

    Each curve is interpolated linearly; curves without points are left out.

    Raises:
        NothingToPlotError: No curve has a point, or no two of them share a part of the axis.
    """
    present = [curve for curve in curves if len(curve.x)]
    if not present:
        raise NothingToPlotError("no record has both of the quantities to plot; has the run ended an episode?")
    start, end = max(curve.x[0] for curve in present), min(curve.x[-1] for curve in present)
    if start > end:
        raise NothingToPlotError("the runs have no part of the axis in common; plot them one by one")
    # A single curve is shown at its own points: interpolating would only blur it.
    x = present[0].x if len(present) == 1 else np.linspace(start, end, _GRID_POINTS)
    values = np.stack([np.interp(x, curve.x, curve.y) for curve in present])
    return Band(x, values.mean(0), values.min(0), values.max(0))


def overlay_if_alike(curves: Sequence[Curve]) -> Band | None:
    """As :func:`overlay`; None if all curves share too little of the axis, so that it would hide most of them.

    Args:
        curves: Those of several runs, each with a point.
    """
    starts, ends = [curve.x[0] for curve in curves], [curve.x[-1] for curve in curves]
    common, covered = min(ends) - max(starts), max(ends) - min(starts)
    if common <= 0 or common < _LEAST_SHARE * covered:
        return None
    return overlay(curves)


def plot_runs(
    run_dirs: Sequence[Path | str], output: Path | str, *, title: str | None = None, goal: float | None = None
) -> Path:
    """Draw return over steps and over time, speed, and policy lag or, of a replay, the age of its samples.

    Evaluations, where there are any, are points with their intervals over steps.

    Args:
        run_dirs: Run directories, of runs that differ in their seed. Of several the mean is drawn, with the range from
            the worst to the best, or each for itself, where one has covered less than half of what another one has.
        output: PNG file; its directory is made. An existing file, or a link, is replaced when the new one is whole.
        title: Title; by default the first run directory's name.
        goal: A return to draw a line at.

    Returns:
        ``output``.

    Raises:
        MissingPackageError: matplotlib is not installed.
        NoMetricsError: A run has no metrics file.
        NothingToPlotError: No run has a record.
        PlotError: The file cannot be written, or evaluations of a run cannot be read.
    """
    check_extra("plots", "a learning curve")
    # matplotlib takes half a second; its object interface leaves no global state behind and needs no display.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    runs = [read_metrics(run_dir) for run_dir in run_dirs]
    if not any(runs):
        raise NothingToPlotError(f"no metrics in {', '.join(map(str, run_dirs))} yet; let the run report once")
    figure = Figure(figsize=(10, 6), dpi=130)
    # A layout of matplotlib's own would draw all of it twice, which costs the end of every run as much again.
    (by_steps, by_time), (speed, lag) = figure.subplots(2, 2, gridspec_kw=_MARGINS)

    has_band = False
    for axes, key, scale, label in (
        (by_steps, "agent_steps", 1.0, "agent steps"),
        (by_time, "time_s", 60.0, "minutes"),
    ):
        has_band |= _draw_returns(axes, runs, key, scale, goal)
        axes.set(xlabel=label, ylabel="return, mean of 100 episodes")
    try:
        evaluations = [record for run_dir in run_dirs for record in EvaluationQueue(Path(run_dir)).records()]
    except OSError as error:
        raise PlotError(f"{error.filename} cannot be read ({error.strerror})") from error
    if len((found := evaluated(evaluations)).x):
        draw_evaluations(by_steps, found, color=_ORANGE, marker="o", markersize=4.0, label="evaluations, 95 % interval")
        by_steps.legend(frameon=False, loc="best")
    by_steps.xaxis.set_major_formatter(EngFormatter(sep=""))

    _draw(speed, runs, "time_s", "frames_per_second", 60.0, _BLUE, None)
    speed.set(xlabel="minutes", ylabel="frames per second")
    speed.yaxis.set_major_formatter(EngFormatter(sep=""))

    if any(len(curve_of(records, "agent_steps", _AGE).x) for records in runs):
        _draw(lag, runs, "agent_steps", _AGE, 1.0, _ORANGE, None)
        lag.set_ylabel("mean age of samples, versions")
        lag.yaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        _draw(lag, runs, "agent_steps", "policy_lag_max", 1.0, _GREY, "maximum")
        _draw(lag, runs, "agent_steps", "policy_lag_mean", 1.0, _ORANGE, "mean")
        lag.set_ylabel("policy lag, versions")
    lag.set(xlabel="agent steps")
    lag.xaxis.set_major_formatter(EngFormatter(sep=""))
    if lag.get_legend_handles_labels()[0]:
        lag.legend(frameon=False, loc="upper right")

    for axes in (speed, lag):
        axes.set_ylim(bottom=0)
    for axes in (by_steps, by_time, speed, lag):
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    name = title if title is not None else Path(run_dirs[0]).resolve().name
    with_rows = sum(map(bool, runs))
    empty = f", {len(runs) - with_rows} without rows" if with_rows < len(runs) else ""
    drawn = "mean and range" if has_band else "one line each"
    title = name if len(runs) == 1 else f"{name} ({with_rows} {'run' if with_rows == 1 else f'runs: {drawn}'}{empty})"
    figure.suptitle(drawable(title), fontweight="bold", parse_math=False)  # A name's "$" begins no formula.
    return save_figure(figure, Path(output))


def drawable(text: str) -> str:
    """Text for a picture: bytes of a path that are not UTF-8 become escapes, because no font can draw them."""
    return text.encode(errors="backslashreplace").decode()


def save_figure(figure: Any, output: Path) -> Path:
    """Write a picture; an existing file, or a link, is replaced when the new one is whole.

    Args:
        figure: A figure of matplotlib's.
        output: The file; its directory is made.

    Raises:
        PlotError: The file cannot be written.
    """
    if output.is_dir():
        raise PlotError(f"the plot {output} cannot be written: it is a folder; name a file in it, such as plot.png")
    aside = output.with_name(f".writing-{os.getpid()}-{output.name}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Without a suffix, matplotlib would add one to the name.
            figure.savefig(aside, format=output.suffix.removeprefix(".") or "png")
            aside.replace(output)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise PlotError(f"the plot {output} cannot be written ({error.strerror}): give another place") from error
    except ValueError as error:  # matplotlib's word for a format that it does not have
        raise PlotError(f"the plot {output} cannot be written: {error}") from error
    return output


def _draw_returns(axes: Any, runs: Sequence[list[dict[str, Any]]], key: str, scale: float, goal: float | None) -> bool:
    has_band = _draw(axes, runs, key, "episode_return", scale, _BLUE, None)
    if goal is not None:
        axes.axhline(goal, color=_GREEN, linestyle="--", linewidth=1.0)
        axes.annotate(f"goal {goal:g}", (0.01, goal), xycoords=("axes fraction", "data"), color=_GREEN, va="bottom")
    return has_band


def _draw(
    axes: Any, runs: Sequence[list[dict[str, Any]]], x: str, y: str, scale: float, colour: str, label: str | None
) -> bool:
    """Draw one quantity; if no run has it, the panel contains a note. Returns whether runs share a mean and a range."""
    curves = [curve for records in runs if len((curve := curve_of(records, x, y)).x)]
    if not curves:
        if not axes.texts:
            axes.text(0.5, 0.5, "no data yet", transform=axes.transAxes, ha="center", va="center", color=_GREY)
        return False
    if len(curves) == 1:
        line = {"color": colour, "linewidth": 1.8, "marker": _marker(curves[0])}
        axes.plot(curves[0].x / scale, curves[0].y, label=label, **line)
        if len(runs) == 1 and y == "episode_return":
            _draw_spread(axes, runs[0], x, scale, colour)
        return False
    band = overlay_if_alike(curves)
    if band is None:
        for index, curve in enumerate(curves):
            line = {"color": colour, "linewidth": 1.0, "marker": _marker(curve)}
            axes.plot(curve.x / scale, curve.y, label=None if index else label, **line)
        return False
    if y == "episode_return":
        for curve in curves:
            axes.plot(curve.x / scale, curve.y, color=colour, alpha=0.3, linewidth=0.8)
    axes.plot(band.x / scale, band.mean, color=colour, linewidth=1.8, label=label)
    axes.fill_between(band.x / scale, band.low, band.high, color=colour, alpha=0.18, linewidth=0)
    return True


def _marker(curve: Curve) -> str | None:
    """The line of a single point has no length."""
    return "o" if len(curve.x) == 1 else None


def _draw_spread(axes: Any, records: Sequence[dict[str, Any]], x: str, scale: float, colour: str) -> None:
    """One run's band: one standard deviation of its last 100 episodes around their mean, where it was recorded."""
    spread = [r for r in records if is_number(r.get("episode_return_std"))]
    mean, deviation = curve_of(spread, x, "episode_return"), curve_of(spread, x, "episode_return_std")
    if len(mean.x) and len(mean.x) == len(deviation.x):
        low, high = mean.y - deviation.y, mean.y + deviation.y
        axes.fill_between(mean.x / scale, low, high, color=colour, alpha=0.18, linewidth=0)
