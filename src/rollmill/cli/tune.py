"""``rollmill tune``: find the fastest use of the cores."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from rollmill.cli.command import PRESET, Command, count, printer, seconds
from rollmill.cli.user_modules import import_modules


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "tune",
        "PRESET [OPTIONS] [--KEY VALUE ...]",
        "Find the fastest use of this machine's cores.\n\n"
        "Measures simulation, inference and learning, predicts the speed of every allocation of workers and\n"
        "environments, tries the best, and writes tuned.json. Settings that you give are kept.",
        run=run,
        examples=(
            "rollmill tune atari/pong",
            "rollmill train atari/pong --settings tuning/tuned.json",
            "rollmill tune atari/pong --curves tuning/curves.json --cores 64",
        ),
    )
    command.parser.add_argument("preset", metavar="PRESET", help=PRESET)
    command.add_algorithm()
    command.option("--seconds", "time for trying candidates (default 60)", kind=seconds, default=60.0, metavar="N")
    command.option("--curves", "a file of measured throughput curves; then nothing is measured", metavar="FILE.json")
    command.option("--cores", "number of cores, instead of this machine's (or the curves')", kind=count, metavar="M")
    command.option(
        "--output",
        "directory of tuned.json, curves.json, tuning.txt and tuning.png (default tuning)",
        kind=Path,
        default="tuning",
        metavar="DIR",
    )
    command.flag("--verbose", "also show equations, all candidates and what single changes would bring")
    command.add_json()
    command.add_import()
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    from rollmill.tuning.tune import tune

    result = tune(
        arguments.preset,
        algo=arguments.algo,
        protocol=arguments.protocol,
        seconds=arguments.seconds,
        curves=arguments.curves,
        cores=arguments.cores,
        output=arguments.output,
        say=printer(quiet=arguments.json),
        **overrides,
    )
    if arguments.json:
        print(json.dumps(result.to_dict()))
        return 0
    print(result.describe() if arguments.verbose else result.summary())
    advice = ["rollmill", "train", arguments.preset]
    for option in ("algo", "protocol"):
        if getattr(arguments, option) is not None:
            advice += [f"--{option}", getattr(arguments, option)]
    if not arguments.verbose:
        print(f"--verbose shows the equations and all candidates; {arguments.output / 'tuning.txt'} has them too.")
    print("To train with the settings found:")
    print(shlex.join([*advice, "--settings", str(arguments.output / "tuned.json")]))
    return 0
