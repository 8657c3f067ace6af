"""``rollmill suite``: train in many environments with several seeds, and report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollmill.cli.campaign_result import show_result
from rollmill.cli.command import Command, count
from rollmill.cli.user_modules import import_modules


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "suite",
        "NAME|FILE.toml [OPTIONS] [--KEY VALUE ...]",
        "Train in each environment of a suite, with several seeds, and compare the runs on a page.\n\n"
        "NAME is atari57, atari10, mujoco, minigrid, vizdoom, classic, dmlab30, metaworld or cleanba-wrappers; a file\n"
        "names environments and methods of your own (docs/sweeps.md). Every environment and seed is a run of its\n"
        "own; `rollmill train suite/NAME` is something else: one run that learns all of them with one network.\n"
        "The same command continues an interrupted suite.",
        run=run,
        examples=(
            "rollmill suite atari10 --algo impala --seeds 3 --jobs 4",
            "rollmill suite classic --seeds 5 --total-steps 2e5",
            "rollmill suite atari57 --envs atari/pong,atari/breakout --seeds 2 --output runs/two_games",
            "rollmill suite mine.toml --jobs 8 --retry-failed",
        ),
    )
    command.parser.add_argument("suite", metavar="NAME|FILE.toml", help="a suite, or a file of one")
    command.add_algorithm()
    command.option(
        "--seeds", "runs in each environment (default: the file's, or 1)", kind=count, default=None, metavar="N"
    )
    command.option(
        "--jobs", "runs at the same time, each with its share of the cores (default 1)", kind=count, default=1,
        metavar="J",
    )  # fmt: skip
    command.option("--envs", "only these environments of the suite, joined by commas", metavar="A,B,...")
    command.option("--output", "folder of the suite (default runs/suite_NAME)", kind=Path, metavar="DIR")
    command.flag("--retry-failed", "continue runs that have failed")
    command.flag("--quiet", "show no progress")
    command.add_json()
    command.add_import()
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the command and return its exit code."""
    from rollmill.campaigns.suite_file import find_suite

    # Environments may be the user's own, for which the working directory is searched.
    arguments.preset = ",".join(find_suite(arguments.suite).environments)
    import_modules(arguments, overrides)
    from rollmill.campaigns.suite_runs import suite

    if "name" in overrides:  # The function has an argument of this name.
        overrides["env.name"] = overrides.pop("name")
    envs = None if arguments.envs is None else [env for env in map(str.strip, arguments.envs.split(",")) if env]
    result = suite(
        arguments.suite,
        algo=arguments.algo,
        protocol=arguments.protocol,
        seeds=arguments.seeds,
        jobs=arguments.jobs,
        envs=envs,
        output=arguments.output,
        retry_failed=arguments.retry_failed,
        quiet=arguments.quiet,
        **overrides,
    )
    return show_result(result, as_json=arguments.json, has_failed=bool(result.failed))
