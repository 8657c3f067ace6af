"""Options of commands in which trained agents play: which network, and how it chooses actions."""

from __future__ import annotations

import argparse
import sys
import warnings

from rollmill.cli.command import Command
from rollmill.settings.option_values import OptionError


def add_playing(command: Command) -> None:
    """Add the options that say which network plays, and how."""
    command.option("--policy", "name of the policy, in a run with several", default=None, metavar="NAME")
    command.option("--checkpoint", "latest (default), best, or the path of one", default="latest", metavar="WHICH")
    add_how_to_play(command)


def add_how_to_play(command: Command) -> None:
    """Add the options that say how networks play."""
    command.option("--device", "where the network runs (default cpu)", default="cpu", metavar="DEVICE")
    command.flag("--deterministic", "take the most probable action (default for off-policy algorithms)")
    command.flag("--explore", "sample or explore as in training (default for on-policy algorithms)")
    command.flag(
        "--trust", "run the code that the run's files name, even if another user wrote them (docs/security.md)"
    )
    command.add_import()


def deterministic(arguments: argparse.Namespace) -> bool | None:
    """The value of the two flags; None leaves the choice to the policy."""
    if arguments.deterministic and arguments.explore:
        raise OptionError("--deterministic and --explore contradict each other; give one of them, or neither")
    return True if arguments.deterministic else False if arguments.explore else None


def show_warnings() -> None:
    """Print warnings as messages, without their location in our code."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"rollmill: {message}", file=sys.stderr)

    warnings.showwarning = show
