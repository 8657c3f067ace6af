"""The curves of a run that learns several tasks, a picture with a panel for each."""

from __future__ import annotations

import math
from pathlib import Path

from rollmill.extras import check_extra
from rollmill.reporting.metrics import read_metrics
from rollmill.reporting.plots import curve_of, save_figure

PREFIX, RETURN, SCORE = "task/", "/episode_return", "/score"
_COLUMNS = 5
_BLUE = "#0072B2"


def tasks_in(record: dict[str, object]) -> list[str]:
    """Return the names of the tasks that a record of metrics has returns of."""
    return [
        key.removeprefix(PREFIX).removesuffix(RETURN)
        for key in record
        if key.startswith(PREFIX) and key.endswith(RETURN)
    ]


def plot_tasks(run_dir: Path, output: Path) -> Path | None:
    """Draw each task's return over the run's agent steps.

    Args:
        run_dir: The run's directory.
        output: PNG file.

    Returns:
        ``output``; None if the run has no tasks.

    Raises:
        MissingPackageError: matplotlib is not installed.
        NoMetricsError: There is no metrics file.
        PlotError: The file cannot be written.
    """
    check_extra("plots", "a learning curve")
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    records = read_metrics(run_dir)
    tasks = tasks_in(records[-1]) if records else []
    if not tasks:
        return None
    columns = min(_COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(3.0 * columns, 2.2 * rows + 0.4), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for task, axes in zip(tasks, panels, strict=False):
        curve = curve_of(records, "agent_steps", f"{PREFIX}{task}{RETURN}")
        axes.plot(curve.x, curve.y, color=_BLUE, linewidth=1.4)
        scores = curve_of(records, "agent_steps", f"{PREFIX}{task}{SCORE}").y
        title = task.rpartition("/")[2] + (f"  ({scores[-1]:.2f} of a human)" if len(scores) else "")
        axes.set_title(title, fontsize=8, parse_math=False)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels:
        axes.set_visible(False)
    figure.supxlabel("agent steps of all tasks", fontsize=8)
    figure.supylabel("return, mean of 100 episodes", fontsize=8)
    return save_figure(figure, output)
