"""``rollmill verify``: check that training is reproducible."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rollmill.cli.command import EXIT_FAILED, PRESET, Command, count, printer, seconds
from rollmill.cli.user_modules import import_modules


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "verify",
        "PRESET [OPTIONS] [--KEY VALUE ...]",
        "Check that training is reproducible.\n\n"
        "Trains twice with the same settings, the second time with other workers, random delays and a resume\n"
        "half way, and compares every update bit for bit. In lockstep both must be equal; the first difference\n"
        "is named. The exit code is 0 if all updates are equal, else 1.",
        run=run,
        examples=("rollmill verify gym/CartPole-v1", "rollmill verify atari/pong --updates 3 --lag 0"),
    )
    command.parser.add_argument("preset", metavar="PRESET", help=PRESET)
    command.option("--updates", "updates to compare (default 5)", kind=count, default=5, metavar="N")
    command.option("--delay", "longest delay of the second run (default 0.05)", kind=seconds, metavar="SECONDS")
    command.add_algorithm("ppo, impala or one of your own (default: the preset's, in lockstep)")
    command.add_json()
    command.add_import()
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    from rollmill.verification import DELAY_S, verify

    result = verify(
        arguments.preset,
        updates=arguments.updates,
        algo=arguments.algo,
        protocol=arguments.protocol,
        delay_s=DELAY_S if arguments.delay is None else arguments.delay,
        say=printer(quiet=False),
        **overrides,
    )
    print(json.dumps(result.to_dict()) if arguments.json else result.describe())
    return 0 if result.equal else EXIT_FAILED
