"""Draw the README's chart of training speed beside peers, from the figures in ``peers.csv``.

python docs/pictures/peers_chart.py
"""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
OURS, THEIRS = "#0072B2", "#B8B8B8"


def main() -> None:
    with (HERE / "peers.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    tasks: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        tasks.setdefault(row["task"], []).append((row["system"], float(row["agent_steps_per_second"])))

    counts = [len(systems) for systems in tasks.values()]
    figure = Figure(figsize=(8, 0.27 * sum(counts) + 0.42 * len(counts)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(tasks), 1, gridspec_kw={"height_ratios": [count + 0.4 for count in counts]})
    for axes, (task, systems) in zip(panels, tasks.items(), strict=True):
        names, speeds = [name for name, _ in systems], [speed for _, speed in systems]
        bars = axes.barh(names, speeds, color=[OURS if name == "Rollmill" else THEIRS for name in names], height=0.72)
        ours = dict(systems)["Rollmill"]
        labels = [
            f" {speed:,.0f}" + ("" if speed == ours else f"  (Rollmill: {ours / speed:.1f}x)") for speed in speeds
        ]
        axes.bar_label(bars, labels, fontsize=9)
        axes.set_title(task, fontsize=10, loc="left", fontweight="bold")
        axes.set_xlim(0, max(speeds) * 1.12)
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0, labelsize=9)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    figure.supxlabel("agent steps per second of training, two CPU cores", fontsize=10)
    figure.savefig(HERE / "peers.png")


if __name__ == "__main__":
    main()
