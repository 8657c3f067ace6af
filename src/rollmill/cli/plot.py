"""``rollmill plot``: draw learning curves."""

from __future__ import annotations

import argparse
from pathlib import Path

from rollmill.cli.command import Command


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "plot",
        "RUN_DIR [RUN_DIR ...] [OPTIONS]",
        "Draw learning curves; several runs share one picture, with their mean and range.",
        run=run,
        examples=("rollmill plot runs/first", "rollmill plot runs/seed1 runs/seed2 --output curves.png"),
    )
    command.parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", type=Path, help="directories of runs")
    command.option("--output", "the picture (default: RUN_DIR/learning_curve.png)", kind=Path, metavar="FILE.png")
    command.option("--title", "its title (default: the run's name)", metavar="TEXT")
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    from rollmill.reporting.plots import plot_runs

    output = arguments.output or arguments.run_dirs[0] / "learning_curve.png"
    print(plot_runs(arguments.run_dirs, output, title=arguments.title))
    return 0
