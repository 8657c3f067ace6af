"""A command and its options, which :func:`split_overrides` separates from settings (``--KEY VALUE``)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollmill.runtime.standard_error import say
from rollmill.settings.option_values import OptionError, coerce

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
_ALGORITHMS: Final = "ppo, impala, dqn, ddpg, td3, sac or a registered one (default: the preset's, asynchronous PPO)"
PRESET: Final = (
    "the environment, e.g. gym/CartPole-v1 (`rollmill envs` lists all); one of your own as module:Class, or by the "
    "name that it is registered under"
)


class Command:
    """A command of the program: its parser, its options, and its action.

    Args:
        name: Its name on the command line.
        usage: What follows the name. If it contains ``--KEY VALUE``, the command accepts settings.
        summary: Its description; the list of commands shows the first line.
        run: Runs the command with its arguments and the settings by key, and returns the exit code.
        examples: Complete commands, shown below the options.
    """

    def __init__(
        self,
        name: str,
        usage: str,
        summary: str,
        *,
        run: Callable[[argparse.Namespace, dict[str, Any]], int],
        examples: Sequence[str],
    ) -> None:
        self.name = name
        self.run = run
        self.parser = argparse.ArgumentParser(
            prog=f"rollmill {name}",
            usage=f"rollmill {name} {usage}",
            description=summary,
            epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # an abbreviation could be a setting's name
        )
        self.summary = summary
        self.takes_settings = "--KEY VALUE" in usage
        self.options: dict[str, bool] = {"-h": False, "--help": False}  # name -> whether a value follows
        if self.takes_settings:
            self.flag("--help-all", "show all settings, each with its default and what it means")

    def flag(self, name: str, text: str) -> None:
        """Add an option without a value."""
        self.parser.add_argument(name, action="store_true", help=text)
        self.options[name] = False

    def option(
        self,
        name: str,
        text: str,
        *,
        kind: Callable[[str], object] = str,
        default: object = None,
        metavar: str | None = None,
        repeatable: bool = False,
        dest: str | None = None,
    ) -> None:
        """Add an option with a value."""
        self.parser.add_argument(
            name,
            help=text,
            type=kind,
            default=default,
            metavar=metavar,
            action="append" if repeatable else "store",
            dest=dest or name.strip("-").replace("-", "_"),
        )
        self.options[name] = True

    def add_run_dir(self) -> None:
        """Add the argument RUN_DIR."""
        self.parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of a run")

    def add_json(self, what: str = "result") -> None:
        """Add the option that prints JSON."""
        self.flag("--json", f"print the {what} as one line of JSON, the last of the output")

    def add_algorithm(self, names: str = _ALGORITHMS) -> None:
        """Add the options that choose an algorithm and a protocol."""
        self.option("--algo", f"the algorithm: {names}", metavar="NAME")
        self.option(
            "--protocol",
            "machado: play and count Atari games by the protocol of Machado et al. (2018), with sticky actions",
            metavar="NAME",
        )

    def add_import(self) -> None:
        """Add the option that imports the user's modules (see :func:`rollmill.cli.user_modules.import_modules`)."""
        self.option(
            "--import",
            "import a module or a .py file that registers environments, models or algorithms; may be repeated",
            metavar="MODULE",
            repeatable=True,
            dest="modules",
        )


def printer(*, quiet: bool) -> Callable[[str], None]:
    """A function that prints progress to stderr, or nothing if quiet."""
    return (lambda text: None) if quiet else say


def split_overrides(words: Sequence[str], options: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Separate a command's own words from those of settings: unknown options and their values.

    The command's own options may be written with underscores, as settings may.
    """
    known: list[str] = []
    overrides: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in options:
            name = name.replace("_", "-")
            word = f"{name}{equals}{value}"
        into = overrides if word.startswith("--") and name not in options else known
        into.append(word)
        takes_value = options.get(name, word.startswith("--")) and not equals
        if takes_value and index < len(words) and not words[index].startswith("--"):
            into.append(words[index])
            index += 1
    return known, overrides


def whole_number(text: str) -> int:
    """Argument type: an integer, also as ``3e6`` or ``3_000_000``."""
    try:
        return int(str(coerce(text, int, "value", text=True)))
    except OptionError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number such as 3000000 or 3e6") from None


def natural(text: str) -> int:
    """Argument type: an integer of at least 0."""
    value = whole_number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} was given; give 0 or more")
    return value


def count(text: str) -> int:
    """Argument type: an integer of at least 1."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} was given; give at least 1")
    return value


def seconds(text: str) -> float:
    """Argument type: a positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value
