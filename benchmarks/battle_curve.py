"""Doom's battle beside Sample Factory's own training of it, at equal samples.

    python benchmarks/battle_curve.py --steps 1e6 --python .venv-peers-sf/bin/python --output docs/curves/battle.png

Trains the preset ``vizdoom/battle`` for so many agent steps, then Sample Factory 2.1.1 with its own settings for Doom
(``benchmarks/peers/sample_factory_appo.py --env battle --own --curve``); ``peers.py --env battle`` makes its
environment. Both report the mean kills of their last 100 episodes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

import rollmill
from rollmill.reporting.metrics import read_metrics
from rollmill.reporting.plots import save_figure

PEER = Path(__file__).parent / "peers" / "sample_factory_appo.py"
Row = dict[str, Any]
"""``agent_steps``, ``seconds`` and ``mean``: kills in an episode."""


def own_curve(steps: int, seed: int, run_dir: Path) -> list[Row]:
    """Train the preset."""
    run = rollmill.train("vizdoom/battle", run_dir=run_dir, total_steps=steps, seed=seed, quiet=True)
    rows = [
        {"agent_steps": row["agent_steps"], "seconds": row["time_s"], "mean": row["episode_return"]}
        for row in read_metrics(run.dir)
    ]
    return [row for row in rows if row["mean"] is not None]


def peers_curve(python: Path, steps: int, seed: int) -> list[Row]:
    """Train with Sample Factory, and show its rows."""
    command = [str(python), str(PEER), "--env", "battle", "--own", "--curve", str(steps), f"--seed={seed}"]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{") and (row := json.loads(line))["mean"] is not None:
                rows.append(row)
                print(f"sample-factory: {row}", file=sys.stderr, flush=True)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return rows


def at(rows: list[Row], steps: float) -> float | None:
    """Return the last mean by so many agent steps."""
    means = [row["mean"] for row in rows if row["agent_steps"] <= steps]
    return float(means[-1]) if means else None


def draw(curves: dict[str, list[Row]], output: Path) -> None:
    """Draw kills over agent steps."""
    figure = Figure(figsize=(6.0, 3.4), dpi=110, layout="constrained")
    axes = figure.subplots()
    for name, rows in curves.items():
        axes.plot([row["agent_steps"] for row in rows], [row["mean"] for row in rows], label=name, linewidth=1.6)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("agent steps")
    axes.set_ylabel("kills in an episode,\nmean of 100 episodes")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, output)


def main() -> int:
    """Train both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=float, default=1e6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", type=Path, default=Path(".venv-peers-sf/bin/python"), help="of Sample Factory")
    parser.add_argument("--output", type=Path, help="PNG file")
    parser.add_argument("--run-dir", type=Path, help="of Rollmill's run (default: one that is removed)")
    arguments = parser.parse_args()
    if not arguments.python.exists():
        parser.error(
            f"--python {arguments.python} does not exist; name a Python that has Sample Factory, or make this one with "
            "`python benchmarks/peers.py --env battle --only sample-factory`"
        )
    steps = int(arguments.steps)
    with tempfile.TemporaryDirectory(prefix="rollmill-battle-") as folder:
        own = own_curve(steps, arguments.seed, arguments.run_dir or Path(folder) / "run")
    curves = {
        "Rollmill": own,
        "Sample Factory": peers_curve(arguments.python.absolute(), steps, arguments.seed),
    }
    if arguments.output is not None:
        draw(curves, arguments.output)
    places = [steps * tenth // 10 for tenth in range(1, 11)]
    result = {name: {str(place): at(rows, place) for place in places} for name, rows in curves.items()}
    minutes = {name: rows[-1]["seconds"] / 60 for name, rows in curves.items() if rows}
    print(json.dumps({"kills": result, "minutes": minutes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
