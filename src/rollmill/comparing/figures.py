"""The pictures of a report: learning curves, scores with intervals, aggregate scores, performance profiles."""

from __future__ import annotations

import colorsys
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rollmill.comparing.method_curves import curves_of_method, is_coarse
from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.comparing.statistics import AGGREGATES, Profile
from rollmill.evaluation.stats import Estimate
from rollmill.extras import check_extra
from rollmill.pbt.history import PbtEvent
from rollmill.reporting.plots import Curve, draw_evaluations, drawable, evaluated

_TITLES = {"median": "median", "iqm": "interquartile mean", "mean": "mean", "optimality_gap": "optimality gap"}
_LABEL_WIDTH = 60  # characters of a method's name in a line
_LEGEND_WIDTH = 130  # characters of all columns of a legend
# Okabe and Ito's colours, which colour-blind people can tell apart; without yellow, which is faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#000000")
# As matplotlib takes them: solid, dashed, dash-dotted, dotted, long-dashed.
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (6, 2, 1, 2)), (0, (1.2, 1.2)), (0, (10, 3)))
_MARKERS = "osD^vPX"
_PANELS_IN_A_ROW = 3
_MOST_MARKERS = 40  # of a curve, beyond which they would hide it
# Lightness and saturation of neighbouring hues, so that they differ in more than the hue.
_TONES = ((0.38, 0.85), (0.58, 0.70), (0.30, 0.45))
# Single values, on top of curves and intervals.
_POINTS: Final[dict[str, Any]] = {"markersize": 5.0, "markeredgecolor": "white", "markeredgewidth": 0.5}


class Style(NamedTuple):
    """How a method is drawn.

    Attributes:
        colour: Hexadecimal, ``"#rrggbb"``.
        line: A line style of matplotlib.
        marker: A marker of matplotlib.
    """

    colour: str
    line: Any
    marker: str


def styles(count: int) -> list[Style]:
    """``count`` styles with distinct colours; neighbours also differ in line style and marker.

    Up to eight have Okabe and Ito's colours. More have hues at equal distances, in three tones.
    """
    colours = _COLOURS[:count] if count <= len(_COLOURS) else tuple(_hue(i, count) for i in range(count))
    return [Style(colour, _LINES[i % len(_LINES)], _MARKERS[i % len(_MARKERS)]) for i, colour in enumerate(colours)]


def _hue(place: int, count: int) -> str:
    lightness, saturation = _TONES[place % len(_TONES)]
    red, green, blue = (int(255.999 * part) for part in colorsys.hls_to_rgb(place / count, lightness, saturation))
    return f"#{red:02x}{green:02x}{blue:02x}"


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib, in inches."""
    check_extra("plots", "a picture")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def tidy(axes: Any) -> None:
    """Give axes a faint grid, and no frame above and on the right."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: Path) -> Path:
    """Write a figure; returns the path."""
    figure.savefig(path)
    return path


def _wrapped(label: str) -> str:
    # A "$" in a name does not start a formula.
    return textwrap.fill(drawable(label), _LABEL_WIDTH).replace("$", r"\$")


def _legend(figure: Any, handles: Sequence[Any]) -> None:
    """A legend below the axes, where it hides no curve."""
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).splitlines())
    columns = max(1, min(len(handles), _LEGEND_WIDTH // (longest + 8)))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize="small", handlelength=3.5
    )


def _styles_of(labels: Sequence[str]) -> dict[str, Style]:
    return dict(zip(labels, styles(len(labels)), strict=True))


def draw_curves(comparison: Comparison, env: str, path: Path) -> Path:
    """Return over agent steps and over minutes in one environment: each method's mean, and the range of its runs.

    Runs that share little of an axis are drawn one by one. Evaluations, where there are any, are drawn as large points
    with their intervals over the curve of the training episodes. Every method is in the legend, also one without a
    curve.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter

    style_of = _styles_of(comparison.labels)
    ranked = comparison.ranked(env)
    figure = new_figure(10.0, 4.2 + 0.2 * len(ranked))
    by_steps, by_time = figure.subplots(1, 2, sharey=True)
    for axes, key, scale in ((by_steps, "agent_steps", 1.0), (by_time, "time_s", 60.0)):
        for label in ranked:
            _draw_method(axes, comparison.of(label, env), key, scale, style_of[label])
        tidy(axes)
    by_steps.set(xlabel="agent steps", ylabel="return")
    by_steps.xaxis.set_major_formatter(EngFormatter(sep=""))
    by_time.set(xlabel="minutes")
    handles = []
    for label in ranked:
        runs, style = comparison.of(label, env), style_of[label]
        singles = curves_of_method(runs, "agent_steps").singles
        drawn = len(singles)
        count = f" ({drawn} of {len(runs)} runs)" if drawn < len(runs) else f" ({len(runs)} runs)" * (len(runs) > 1)
        has_points = any(map(is_coarse, singles)) or any(run.evaluations for run in runs)
        handles.append(
            Line2D(
                [],
                [],
                color=style.colour,
                linestyle=style.line,
                linewidth=1.8,
                marker=style.marker if has_points else None,
                markersize=4.0,
                label=_wrapped(label + count),
            )
        )
    _legend(figure, handles)
    figure.suptitle(env, fontweight="bold", parse_math=False)
    return save(figure, path)


def draw_ratings(ratings: Mapping[str, Curve], path: Path, *, title: str) -> Path:
    """Draw ratings over agent steps: a line for each policy."""
    from matplotlib.ticker import EngFormatter

    style_of = _styles_of(list(ratings))
    figure = new_figure(8.0, 4.2 + 0.05 * len(ratings))
    axes = figure.subplots()
    handles = []
    for name, curve in ratings.items():
        style = style_of[name]
        handles += axes.plot(
            curve.x, curve.y, color=style.colour, linestyle=style.line, linewidth=1.8, label=_wrapped(name)
        )
    tidy(axes)
    axes.set(xlabel="agent steps of the policy", ylabel="rating")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _legend(figure, handles)
    figure.suptitle(drawable(title), fontweight="bold", parse_math=False)
    return save(figure, path)


def draw_points(points: Mapping[str, Mapping[str, Curve]], path: Path, *, title: str) -> Path:
    """Draw shares of the points over agent steps: a panel for each policy, in it a line for each opponent.

    Args:
        points: Policy -> opponent -> its curve; at least one.
        path: The file.
        title: Of the picture.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter

    style_of = _styles_of(list(dict.fromkeys(name for curves in points.values() for name in curves)))
    columns = min(len(points), _PANELS_IN_A_ROW)
    rows = -(-len(points) // columns)
    figure = new_figure(max(8.0, 4.0 * columns), 1.0 + 3.2 * rows + 0.05 * len(style_of))
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(points) :]:
        axes.set_visible(False)
    for axes, (policy, curves) in zip(panels.flat, points.items(), strict=False):
        for name, curve in curves.items():
            style = style_of[name]
            axes.plot(
                curve.x,
                curve.y,
                color=style.colour,
                linestyle=style.line,
                linewidth=1.4,
                marker=style.marker if len(curve.x) <= _MOST_MARKERS else None,
                **_POINTS,
            )
        tidy(axes)
        axes.set(ylim=(-0.02, 1.02))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if len(points) > 1:
            axes.set_title(policy, fontsize="small", parse_math=False)
        axes.set_xlabel("agent steps of the policy")
        axes.tick_params(labelbottom=True)  # Also above other panels, so that all have the same size.
    for axes in panels[:, 0]:
        axes.set_ylabel("share of the points")
    handles = [
        Line2D([], [], color=style.colour, linestyle=style.line, marker=style.marker, label=_wrapped(name), **_POINTS)
        for name, style in style_of.items()
    ]
    _legend(figure, handles)
    figure.suptitle(drawable(title), fontweight="bold", parse_math=False)
    return save(figure, path)


def draw_lineage(events: Sequence[PbtEvent], path: Path, *, title: str) -> Path:
    """Draw a history of population-based training: replacements, objectives and numbers of each policy.

    Args:
        events: In their order, at least one.
        path: The file.
        title: Of the picture.
    """
    from matplotlib.ticker import EngFormatter

    names = list(dict.fromkeys(event.policy for event in events))
    numbers = list(dict.fromkeys(number for event in events for number in event.numbers))
    style_of, lane = _styles_of(names), {name: place for place, name in enumerate(names)}
    heights = [0.5 + 0.3 * len(names), 1.8, *(1.4 for _ in numbers)]
    figure = new_figure(8.0, 1.0 + sum(heights))
    lanes, scores, *of_numbers = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    handles = []
    for name in names:
        own = [event for event in events if event.policy == name]
        style, steps = style_of[name], [event.agent_steps for event in own]
        drawn: Any = {"color": style.colour, "linestyle": style.line, "linewidth": 1.6}
        lanes.plot([0, steps[-1]], [lane[name]] * 2, color=style.colour, linewidth=3.0, alpha=0.5)
        compared = [event for event in own if name in event.scores]
        handles += scores.plot(
            [event.agent_steps for event in compared],
            [event.scores[name] for event in compared],
            label=_wrapped(name),
            **drawn,
        )
        for axes, number in zip(of_numbers, numbers, strict=True):
            having = [event for event in own if number in event.numbers]
            axes.step(
                [event.agent_steps for event in having],
                [event.numbers[number] for event in having],
                where="post",
                **drawn,
            )
    for event in events:
        if event.source in lane:
            lanes.annotate(
                "",
                xy=(event.agent_steps, lane[event.policy]),
                xytext=(event.agent_steps, lane[event.source]),
                arrowprops={"arrowstyle": "->", "color": style_of[event.source].colour, "linewidth": 1.2},
            )
    lanes.set(yticks=list(lane.values()), yticklabels=[_wrapped(name) for name in names], ylim=(len(names) - 0.5, -0.5))
    for axes, label in zip((scores, *of_numbers), ("objective", *numbers), strict=True):
        axes.set_ylabel(label, parse_math=False)
    for axes in (lanes, scores, *of_numbers):
        tidy(axes)
    for axes, number in zip(of_numbers, numbers, strict=True):
        values = [event.numbers[number] for event in events if number in event.numbers]
        if min(values) > 0 and max(values) > 2 * min(values):
            axes.set_yscale("log")
    bottom = (scores, *of_numbers)[-1]
    bottom.set_xlabel("agent steps of the policy")
    bottom.xaxis.set_major_formatter(EngFormatter(sep=""))
    _legend(figure, handles)
    figure.suptitle(drawable(title), fontweight="bold", parse_math=False)
    return save(figure, path)


def _draw_method(axes: Any, runs: list[ComparedRun], key: str, scale: float, style: Style) -> None:
    found = curves_of_method(runs, key)
    for curve in found.singles:
        is_faint = found.mean is not None
        axes.plot(
            curve.x / scale,
            curve.y,
            color=style.colour,
            linestyle="-" if is_faint else style.line,
            alpha=0.3 if is_faint else 1.0,
            linewidth=0.7 if is_faint else 1.8 if len(found.singles) == 1 else 1.2,
            marker=style.marker if is_coarse(curve) else None,
            markersize=3.0,
        )
    if found.mean is not None:
        x = found.mean.x / scale
        axes.plot(x, found.mean.mean, color=style.colour, linestyle=style.line, linewidth=1.8)
        axes.fill_between(x, found.mean.low, found.mean.high, color=style.colour, alpha=0.12, linewidth=0)
    if key == "agent_steps":
        for run in runs:
            draw_evaluations(axes, evaluated(run.evaluations), marker=style.marker, color=style.colour, **_POINTS)


def draw_scores(comparison: Comparison, env: str, found: Mapping[str, Estimate], path: Path) -> Path:
    """Return at the end of each run in one environment as a point, and each method's mean with its interval."""
    style_of = _styles_of(comparison.labels)
    ranked = [label for label in comparison.ranked(env) if label in found]
    figure = new_figure(10.0, 1.0 + 0.4 * max(1, len(ranked)))
    axes = figure.subplots()
    for place, label in enumerate(ranked):
        style, (value, low, high) = style_of[label], found[label]
        axes.plot([low, high], [place, place], color=style.colour, alpha=0.35, linewidth=9, solid_capstyle="butt")
        axes.plot([value, value], [place - 0.3, place + 0.3], color=style.colour, linewidth=2.5)
        scores = [run.score for run in comparison.of(label, env) if run.score is not None]
        axes.plot(scores, [place] * len(scores), style.marker, color=style.colour, **_POINTS)
    axes.set_yticks(range(len(ranked)), [_wrapped(label) for label in ranked])
    axes.set_ylim(len(ranked) - 0.5, -0.5)
    axes.margins(x=0.05)
    axes.set_xlabel("return at the end")
    axes.set_title(env, fontweight="bold", parse_math=False)
    tidy(axes)
    return save(figure, path)


def draw_aggregates(found: Mapping[str, Mapping[str, Estimate]], path: Path) -> Path:
    """Each aggregate with its interval, a line for each method."""
    style_of = _styles_of(list(found))
    figure = new_figure(10.0, 1.2 + 0.35 * len(found))
    for axes, name in zip(figure.subplots(1, len(AGGREGATES)), AGGREGATES, strict=True):
        for place, (label, of_method) in enumerate(found.items()):
            value, low, high = of_method[name]
            colour = style_of[label].colour
            if not math.isnan(low):
                axes.barh(place, max(high - low, 1e-9), left=low, color=colour, alpha=0.35, height=0.6)
            axes.plot([value, value], [place - 0.3, place + 0.3], color=colour, linewidth=2.5)
        names = [_wrapped(label) for label in found] if name == AGGREGATES[0] else [""] * len(found)
        axes.set_yticks(range(len(found)), names)
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_title(_TITLES[name], fontsize="medium")
        axes.set_xlabel("human-normalised", fontsize="small")
        tidy(axes)
    return save(figure, path)


def draw_profiles(profiles: Mapping[str, Profile], path: Path) -> Path:
    """Share of runs that score more than tau, over tau."""
    figure = new_figure(6.0, 3.8 + 0.2 * len(profiles))
    axes = figure.subplots()
    handles = []
    for (label, of_method), style in zip(profiles.items(), styles(len(profiles)), strict=True):
        handles += axes.plot(
            of_method.scores,
            of_method.share,
            color=style.colour,
            linestyle=style.line,
            linewidth=1.8,
            label=_wrapped(label),
        )
        axes.fill_between(of_method.scores, of_method.low, of_method.high, color=style.colour, alpha=0.12, linewidth=0)
    axes.set(xlabel="human-normalised score, tau", ylabel="share of runs with a score above tau", ylim=(-0.02, 1.02))
    _legend(figure, handles)
    tidy(axes)
    return save(figure, path)
