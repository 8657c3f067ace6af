"""``rollmill sweep``: search settings by many runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollmill.cli.campaign_result import show_result
from rollmill.cli.command import PRESET, Command, count
from rollmill.cli.user_modules import import_modules
from rollmill.settings.option_values import OptionError


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "sweep",
        "PRESET --space FILE.toml [OPTIONS] [--KEY VALUE ...]",
        "Search settings: train with many, and compare the results on a page.\n\n"
        "The space file has a table for each setting: [learner.learning_rate] with low, high and log = true or a\n"
        "step, or with choices = [...]. Settings given here are shared by all trials; of one that is also in the\n"
        "space, the value is the start. The same command continues an interrupted sweep (docs/sweeps.md).",
        run=run,
        examples=(
            "rollmill sweep gym/CartPole-v1 --space space.toml --total-steps 1e5",
            "rollmill sweep atari/pong --space space.toml --trials 50 --jobs 4 --pruner hyperband",
            "rollmill sweep gym/Pendulum-v1 --algo sac --space space.toml --seeds-per-trial 3 --metric episode_return",
        ),
    )
    command.parser.add_argument("preset", metavar="PRESET", help=PRESET)
    command.option("--space", "TOML file of the settings that vary", kind=Path, metavar="FILE")
    command.option("--trials", "how many points are tried (default 20)", kind=count, default=20, metavar="N")
    command.option(
        "--jobs", "runs at the same time, each with its share of the cores (default 1)", kind=count, default=1,
        metavar="J",
    )  # fmt: skip
    command.add_algorithm()
    command.option("--sampler", "tpe (default), random, cmaes or grid", default="tpe", metavar="NAME")
    command.option(
        "--pruner",
        "which trials end early, by their learning curves: median (default), hyperband or none",
        default="median",
        metavar="NAME",
    )
    command.option(
        "--metric",
        "what is compared: a key of metrics.jsonl (default episode_return), or evaluation/mean_return",
        default="episode_return",
        metavar="KEY",
    )
    command.option("--direction", "maximize (default) or minimize", default="maximize", metavar="WHICH")
    command.option("--seeds-per-trial", "runs of each trial (default 1)", kind=count, default=1, metavar="N")
    command.option("--output", "folder of the sweep (default runs/sweep_PRESET)", kind=Path, metavar="DIR")
    command.flag("--retry-failed", "try the settings of failed trials again")
    command.flag("--quiet", "show no progress")
    command.add_json()
    command.add_import()
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the command and return its exit code."""
    if arguments.space is None:
        raise OptionError("--space is missing: give a TOML file with a table for each setting that varies")
    import_modules(arguments, overrides)
    from rollmill.campaigns.sweeping import sweep

    result = sweep(
        arguments.preset,
        arguments.space,
        trials=arguments.trials,
        jobs=arguments.jobs,
        algo=arguments.algo,
        protocol=arguments.protocol,
        sampler=arguments.sampler,
        pruner=arguments.pruner,
        metric=arguments.metric,
        direction=arguments.direction,
        seeds=arguments.seeds_per_trial,
        output=arguments.output,
        retry_failed=arguments.retry_failed,
        quiet=arguments.quiet,
        **overrides,
    )
    return show_result(result, as_json=arguments.json, has_failed=result.best is None)
