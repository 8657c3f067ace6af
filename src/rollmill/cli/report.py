"""``rollmill report``: compare runs on one page."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rollmill.cli.command import Command


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "report",
        "RUN [RUN ...] [OPTIONS]",
        "Compare runs on one page: learning curves and scores with confidence intervals.\n\n"
        "Runs that differ only in their seed form one method, named by the settings that differ from the\n"
        "others'. NAME=RUN_DIR names the method instead. The folder of a sweep or suite means its finished runs.\n"
        "Runs that are starting, or have failed at their start, are left out.",
        run=run,
        examples=(
            "rollmill report runs/gym_CartPole-v1/*",
            "rollmill report ppo=runs/a ppo=runs/b impala=runs/c --output report",
        ),
    )
    command.parser.add_argument("runs", metavar="RUN", nargs="+", help="directory of a run, or NAME=RUN_DIR")
    command.option(
        "--output",
        "directory of the page and its pictures (default report)",
        kind=Path,
        default="report",
        metavar="DIR",
    )
    command.option("--title", "the page's title (default: how many runs are compared)", default="", metavar="TEXT")
    command.add_json("figures")
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the command and return its exit code."""
    from rollmill.campaigns.jobs import expanded
    from rollmill.comparing.page import write_report

    report = write_report(expanded(arguments.runs), arguments.output, title=arguments.title)
    for note in report.notes:
        print(f"rollmill: {note}", file=sys.stderr)
    print(report.page)
    if arguments.json:
        print(json.dumps(report.figures))
    return 0
