"""How each run went: its machine, who waited for whom, how fast it was, how old its data was, and its videos."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollmill.comparing.figures import new_figure, save, styles, tidy
from rollmill.comparing.runs import ComparedRun, Comparison
from rollmill.comparing.tables import table
from rollmill.reporting.metrics import is_number
from rollmill.reporting.plots import curve_of
from rollmill.roles import EVALUATOR, GRADIENT_LEARNER, LEARNER, POLICY_WORKER, ROLLOUT_WORKER
from rollmill.runtime.run_log import last_lines
from rollmill.tracking.logins import without_logins

MOST_RUNS = 12
"""Of a comparison of more runs, none is shown in detail."""

_ROLES = (LEARNER, GRADIENT_LEARNER, POLICY_WORKER, ROLLOUT_WORKER, EVALUATOR)
_WAITING = "#d9d9d9"
_LEAST_SHARE = 0.04  # of a bar, to have its name in it
_TOLD = ("machine", "versions", "command", "settings that differ from the defaults", "end")
_LARGEST_VIDEO = 6 * 2**20


class RunDetails(NamedTuple):
    """A run as its section shows it.

    Attributes:
        run: The run.
        shares: Role -> phase -> share of the time of its processes, mean over the run.
        told: What the log says about the last start and end: the machine, versions, the command, settings, how
            it ended.
        videos: The newest first.
    """

    run: ComparedRun
    shares: Mapping[str, Mapping[str, float]]
    told: Mapping[str, str]
    videos: Sequence[Path]


def details_of(comparison: Comparison) -> list[RunDetails]:
    """Return the details of each run; none if there are more than :data:`MOST_RUNS`."""
    if len(comparison.runs) > MOST_RUNS:
        return []
    return [_details_of(run) for run in comparison.runs]


def _details_of(run: ComparedRun) -> RunDetails:
    told = {name: without_logins(text) for name, text in last_lines(run.path, _TOLD).items()}
    return RunDetails(run, shares_of(run.records), told, _videos(run.path))


def shares_of(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return role -> phase -> share of its time, mean over the rows by the time that each stands for."""
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    before = 0.0
    for record in records:
        now = float(record.get("time_s", before))
        seconds, before = max(0.0, now - before), now
        for name, value in record.items():
            if name.startswith("share/") and is_number(value):
                sums[name] = sums.get(name, 0.0) + seconds * float(value)
                weights[name] = weights.get(name, 0.0) + seconds
    found: dict[str, dict[str, float]] = {}
    for role in _ROLES:
        names = {phase: f"share/{role.name}/{phase}" for phase in role.phases}
        shares = {phase: sums[name] / weights[name] for phase, name in names.items() if weights.get(name)}
        if shares:
            found[role.name] = shares
    return found


def draw_details(details: RunDetails, path: Path) -> Path | None:
    """Draw the phases of the processes, and speed and lag over agent steps; None without any of them."""
    from matplotlib.ticker import EngFormatter

    records = details.run.records
    speed = curve_of(records, "agent_steps", "steps_per_second")
    lags = {name: curve_of(records, "agent_steps", f"policy_lag_{name}") for name in ("mean", "max")}
    if not details.shares and not len(speed.x):
        return None
    has_lag = any(len(curve.x) for curve in lags.values())
    bars = 0.7 + 0.55 * len(details.shares)
    figure = new_figure(10.0, bars + 2.8)
    of_phases, of_speed = figure.subfigures(2, 1, height_ratios=[bars, 2.8])
    _draw_shares(of_phases.subplots(), details.shares)
    axes = of_speed.subplots(1, 2 if has_lag else 1, squeeze=False)[0]
    axes[0].plot(speed.x, speed.y, linewidth=1.4, color=styles(1)[0].colour)
    axes[0].set(ylabel="agent steps a second", ylim=(0, None))
    if has_lag:
        for (name, curve), style in zip(lags.items(), styles(2), strict=True):
            axes[1].plot(curve.x, curve.y, linewidth=1.4, color=style.colour, linestyle=style.line, label=name)
        axes[1].set(ylabel="policy lag, in versions", ylim=(0, None))
        axes[1].legend(frameon=False, fontsize="small")
    for each in axes:
        tidy(each)
        each.set(xlabel="agent steps")
        each.xaxis.set_major_formatter(EngFormatter(sep=""))
    return save(figure, path)


def _draw_shares(axes: Any, shares: Mapping[str, Mapping[str, float]]) -> None:
    """A bar for each role, whose parts are the phases; those that wait are grey."""
    waiting = {role.name: role.waiting for role in _ROLES}
    for place, (role, phases) in enumerate(shares.items()):
        left = 0.0
        colours = iter(styles(len(phases)))
        for phase, share in phases.items():
            style = next(colours)
            is_waiting = phase in waiting[role]
            axes.barh(
                place, share, left=left, height=0.7, color=_WAITING if is_waiting else style.colour, edgecolor="white"
            )
            if share >= _LEAST_SHARE:
                axes.text(
                    left + share / 2,
                    place,
                    f"{phase}\n{share:.0%}" if share >= 4 * _LEAST_SHARE else f"{share:.0%}",
                    ha="center",
                    va="center",
                    fontsize="x-small",
                    color="black" if is_waiting else "white",
                )
            left += share
    axes.set(xlim=(0, 1), yticks=range(len(shares)), yticklabels=list(shares))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title("what the processes do (grey: they wait)", fontsize="small", loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.invert_yaxis()


def details_section(details: RunDetails) -> str:
    """Heading, a table of the phases, and what the log says."""
    parts = [f"<h2>Run {html.escape(str(details.run.path))}</h2>"]
    if details.told:
        told = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in details.told.items())
        parts.append(f'<dl class="log">{"".join(told)}</dl>')
    rows = [
        [role, phase, f"{share:.1%}"]
        for role, phases in details.shares.items()
        for phase, share in phases.items()
        if share >= 0.001
    ]
    if rows:
        folded = table(["process", "phase", "share of its time"], rows)
        parts.append(f"<details><summary>What the processes did, in numbers</summary>{folded}</details>")
    return "\n".join(parts)


def videos_section(details: RunDetails) -> str:
    """The videos in the run's directory, embedded where they are small; empty without any."""
    parts = []
    for path in details.videos:
        size = path.stat().st_size
        name = html.escape(str(path.relative_to(details.run.path)))
        if size > _LARGEST_VIDEO:
            parts.append(f'<p class="note">{name} has {size / 2**20:.0f} MB, too many to be embedded.</p>')
            continue
        data = base64.b64encode(path.read_bytes()).decode()
        parts.append(
            f'<figure><video controls muted loop src="data:video/mp4;base64,{data}"></video>'
            f"<figcaption>{name}</figcaption></figure>"
        )
    return "\n".join(parts)


def figures_of_details(details: RunDetails) -> dict[str, Any]:
    """Return the content of ``report.json`` for a run."""
    return {
        "directory": str(details.run.path),
        "shares": {role: dict(phases) for role, phases in details.shares.items()},
        "log": dict(details.told),
        "videos": [str(path.relative_to(details.run.path)) for path in details.videos],
    }


def _videos(run_dir: Path) -> list[Path]:
    """Return the newest three videos of a run."""
    found = [path for folder in (run_dir, run_dir / "videos") for path in folder.glob("*.mp4")]
    # One that is being written has a name that begins with a dot.
    found = [path for path in found if path.name[0] != "." and path.is_file() and not path.is_symlink()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:3]
