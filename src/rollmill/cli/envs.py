"""``rollmill envs``: list the environments that have a preset."""

from __future__ import annotations

import argparse

from rollmill.cli.command import Command
from rollmill.cli.user_modules import import_modules
from rollmill.settings.option_values import OptionError


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "envs",
        "[FAMILY] [OPTIONS]",
        "List the environments that have a preset.\n\n"
        "Any other Gymnasium id, and any environment of your own (module:Class), can be trained as well.",
        run=run,
        examples=("rollmill envs", "rollmill envs atari"),
    )
    command.parser.add_argument("family", metavar="FAMILY", nargs="?", help="only those of one family, e.g. vizdoom")
    command.add_import()
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    """Run the command and return its exit code."""
    import_modules(arguments, overrides)
    from rollmill.settings.presets import list_presets, missing_families

    missing = missing_families()
    if arguments.family in missing:
        raise OptionError(missing[arguments.family])
    families: dict[str, list[str]] = {}
    for preset in list_presets():
        families.setdefault(preset.partition("/")[0], []).append(preset)
    if arguments.family is not None and arguments.family not in families:
        raise OptionError(f"unknown family {arguments.family!r}; choose one of {', '.join(families)}")
    for family, presets in families.items():
        if arguments.family in (None, family):
            print(f"{family} ({len(presets)})")
            print("\n".join(f"  {preset}" for preset in presets))
    if arguments.family is None:
        for family, reason in missing.items():
            print(f"{family}: {reason}")
    return 0
