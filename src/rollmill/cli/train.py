"""``rollmill train``: train an agent, or resume a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.cli.command import EXIT_INTERRUPTED, PRESET, Command, natural, printer, whole_number
from rollmill.cli.user_modules import import_modules, make_callbacks
from rollmill.settings.option_values import OptionError

if TYPE_CHECKING:
    from rollmill.runtime.ranks import Ranks


def make_command() -> Command:
    """The command and its options."""
    command = Command(
        "train",
        "PRESET [OPTIONS] [--KEY VALUE ...]",
        "Train an agent.\n\n"
        "The run directory receives checkpoints, metrics, TensorBoard events and the learning curve. Ctrl-C\n"
        "saves what was learned; --resume continues.",
        run=run,
        examples=(
            "rollmill train gym/CartPole-v1",
            "rollmill train atari/pong --total-steps 3e6 --seed 2 --learning-rate 5e-4",
            "rollmill train gym/Pendulum-v1 --algo sac",
            "rollmill train mymodule:MyEnv --run-dir runs/first",
            "rollmill train --tasks atari/pong,atari/breakout",
            "rollmill train --resume runs/first --total-steps 2e6",
        ),
    )
    command.parser.add_argument("preset", metavar="PRESET", nargs="?", help=f"{PRESET}; not needed with --resume")
    command.option(
        "--tasks",
        "several environments that one network learns, instead of PRESET: names or suites joined by commas",
        metavar="A,B,...",
    )
    command.option(
        "--total-steps", "agent steps to train for, e.g. 3e6 (default: the preset's)", kind=whole_number, metavar="N"
    )
    command.option("--run-dir", "the run's directory (default: a new one in runs/)", kind=Path, metavar="DIR")
    command.option("--seed", "seed of all random streams (default 1)", kind=natural, metavar="S")
    command.add_algorithm()
    command.parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="RUN_DIR",
        help="continue the run in this directory (or in --run-dir) with its settings; those given here replace them",
    )
    command.options["--resume"] = False  # What follows is a word of its own.
    command.flag("--tune", "first find the fastest use of the cores, as `rollmill tune` does; not with --resume")
    command.option("--settings", "a JSON file of settings, such as tuned.json; those given here win", metavar="FILE")
    command.flag("--quiet", "show no progress")
    command.flag(
        "--trust", "run the code that the resumed run or the settings file names, even if another user wrote it"
    )
    command.option(
        "--callback",
        "a rollmill.Callback of your own, called during training: module:Class or file.py:Class; may be repeated",
        metavar="NAME",
        repeatable=True,
        dest="callbacks",
    )
    command.add_import()
    return command


def run(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run the command and return its exit code."""
    from rollmill import api
    from rollmill.runtime.ranks import Ranks

    if arguments.tasks is not None:
        if arguments.preset is not None:
            raise OptionError(
                f"both {arguments.preset} and --tasks {arguments.tasks} were given: name all environments in --tasks"
            )
        # Of a single task, a preset like any other.
        arguments.preset = arguments.tasks.strip(",")
    if arguments.resume:
        _find_resumed(arguments)
    if arguments.settings is not None:
        from rollmill.tuning.settings import read_settings, under

        overrides = under(read_settings(arguments.settings, trust=arguments.trust), overrides)
    import_modules(arguments, overrides)  # Including those that the file names.
    for name in ("total_steps", "seed"):
        if getattr(arguments, name) is not None:
            overrides[name] = getattr(arguments, name)
    callbacks = make_callbacks(arguments.callbacks or ())
    if arguments.tune:
        overrides = _tuned(arguments, overrides, ranks=Ranks.of_this_process())
    done = api.train(
        arguments.preset,
        run_dir=arguments.run_dir,
        resume=bool(arguments.resume),
        quiet=arguments.quiet,
        algo=arguments.algo,
        protocol=arguments.protocol,
        trust=arguments.trust,
        callbacks=callbacks,
        **overrides,
    )
    if not Ranks.of_this_process().rank:
        print(done.dir, flush=True)  # Flushed here, where a closed reader is not an error.
    return EXIT_INTERRUPTED if done.ended_by == "signal" else 0


def _find_resumed(arguments: argparse.Namespace) -> None:
    """Tell the directory of the run to resume from the preset: either may follow ``--resume``, or stand before it."""
    from rollmill.settings.run_config import CONFIG_FILE
    from rollmill.storage.missing_runs import why_no_run

    words = [word for word in (arguments.preset, arguments.resume) if isinstance(word, str)]
    if arguments.run_dir is None and words:
        arguments.run_dir = Path(words.pop())
        if not (arguments.run_dir / CONFIG_FILE).exists():
            raise OptionError(f"--resume {why_no_run(arguments.run_dir)}")
    if len(words) > 1:
        raise OptionError(f"{words[0]} and --resume {words[1]} with --run-dir {arguments.run_dir}: omit one of them")
    arguments.preset = words[0] if words else None


def _tuned(arguments: argparse.Namespace, overrides: dict[str, Any], *, ranks: Ranks) -> dict[str, Any]:
    """The settings with which ``train --tune`` trains."""
    from rollmill import api
    from rollmill.settings.run_config import refuse_a_run_in
    from rollmill.settings.run_plan import check_packages
    from rollmill.tuning.tune import tune

    if arguments.resume:
        print("a resumed run keeps its allocation; --tune applies to new runs only", file=sys.stderr)
        return overrides
    if not ranks.is_alone:
        raise OptionError(
            "--tune with several ranks: each rank would choose its own allocation; tune first, and give --settings"
        )
    if arguments.preset is None:
        raise OptionError("--tune needs a preset: name what to train")
    # Before a minute of tuning.
    if arguments.run_dir is not None:
        refuse_a_run_in(arguments.run_dir)
    check_packages(api.make_config(arguments.preset, overrides, algo=arguments.algo, protocol=arguments.protocol))
    tuning = tune(
        arguments.preset,
        algo=arguments.algo,
        protocol=arguments.protocol,
        say=printer(quiet=arguments.quiet),
        **overrides,
    )
    if not arguments.quiet:
        print(tuning.summary(), file=sys.stderr)
    return tuning.settings
