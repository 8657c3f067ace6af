"""The pictures of a report: learning curves, aggregate scores, performance profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.comparing.statistics import AGGREGATES, Profile, ScoreInterval
from rollmill.reporting.plots import Curve, NothingToPlotError, curve_of, overlay

__all__ = ["draw_aggregates", "draw_curves", "draw_profiles"]

# Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#000000")
_TITLES = {"median": "median", "iqm": "interquartile mean", "mean": "mean", "optimality_gap": "optimality gap"}


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: Any) -> None:
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def draw_curves(comparison: Comparison, env: str, path: Path) -> Path:
    """Return over agent steps and over minutes in one environment: each method's mean, and the range of its runs.

    Evaluations, where there are any, are drawn as points over the curve of the training episodes.
    """
    from matplotlib.ticker import EngFormatter

    figure = _figure(10.0, 3.8)
    by_steps, by_time = figure.subplots(1, 2, sharey=True)
    for axes, key, scale in ((by_steps, "agent_steps", 1.0), (by_time, "time_s", 60.0)):
        for place, label in enumerate(comparison.labels):
            runs = comparison.of(label, env)
            _draw_method(axes, runs, key, scale, _COLOURS[place % len(_COLOURS)], label)
        _tidy(axes)
    by_steps.set_xlabel("agent steps")
    by_steps.xaxis.set_major_formatter(EngFormatter(sep=""))
    by_steps.set_ylabel("return")
    by_time.set_xlabel("minutes")
    if by_steps.get_legend_handles_labels()[0]:
        by_steps.legend(frameon=False, fontsize="small")
    figure.suptitle(env, fontweight="bold", parse_math=False)
    return _save(figure, path)


def _draw_method(axes: Any, runs: list[ComparedRun], key: str, scale: float, colour: str, label: str) -> None:
    curves = [curve_of(run.records, key, "episode_return") for run in runs]
    try:
        band = overlay(curves)
    except NothingToPlotError:
        band = None
    if band is not None:
        count = f" ({len(runs)} runs)" if len(runs) > 1 else ""
        axes.plot(band.x / scale, band.mean, color=colour, linewidth=1.8, label=f"{label}{count}")
        if len(runs) > 1:
            axes.fill_between(band.x / scale, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
    for curve in curves if len(curves) > 1 else ():
        axes.plot(curve.x / scale, curve.y, color=colour, alpha=0.3, linewidth=0.7)
    if key == "agent_steps":
        for run in runs:
            points = _evaluated(run)
            axes.plot(points.x, points.y, "o", color=colour, markersize=3.5)


def _evaluated(run: ComparedRun) -> Curve:
    return curve_of(list(run.evaluations), "agent_steps", "mean_return")


def draw_aggregates(found: Mapping[str, Mapping[str, ScoreInterval]], path: Path) -> Path:
    """Each aggregate with its interval, a line for each method."""
    figure = _figure(10.0, 1.2 + 0.35 * len(found))
    for axes, name in zip(figure.subplots(1, len(AGGREGATES)), AGGREGATES, strict=True):
        for place, (label, of_method) in enumerate(found.items()):
            value, low, high = of_method[name]
            colour = _COLOURS[place % len(_COLOURS)]
            axes.barh(place, max(high - low, 1e-9), left=low, color=colour, alpha=0.35, height=0.6)
            axes.plot([value, value], [place - 0.3, place + 0.3], color=colour, linewidth=2.5, label=label)
        axes.set_yticks(range(len(found)), list(found) if name == AGGREGATES[0] else [""] * len(found))
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_title(_TITLES[name], fontsize="medium")
        axes.set_xlabel("human-normalised", fontsize="small")
        _tidy(axes)
    return _save(figure, path)


def draw_profiles(profiles: Mapping[str, Profile], path: Path) -> Path:
    """Share of runs that score more than tau, over tau."""
    figure = _figure(6.0, 3.8)
    axes = figure.subplots()
    for place, (label, of_method) in enumerate(profiles.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        axes.plot(of_method.scores, of_method.share, color=colour, linewidth=1.8, label=label)
        axes.fill_between(of_method.scores, of_method.low, of_method.high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("human-normalised score, tau")
    axes.set_ylabel("share of runs with a score above tau")
    axes.set_ylim(-0.02, 1.02)
    axes.legend(frameon=False, fontsize="small")
    _tidy(axes)
    return _save(figure, path)
