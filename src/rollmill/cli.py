"""The command ``rollmill``: argv -> configuration -> run.

Exit codes: 0 done, 1 the run failed, 2 wrong usage, 130 interrupted (Ctrl-C or SIGTERM; what was learned is saved).
Whatever Rollmill itself raises is a message for the user and is printed as one, without the traceback of our own code;
an environment's traceback is part of its message. Errors of the user's modules are shown from their own code on.
Anything else is a defect and shows its full traceback.

Nothing heavy is imported before it is needed: ``--help`` imports neither torch nor Gymnasium.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from rollmill.cli_arguments import Command, split_overrides
from rollmill.cli_help import all_settings, main_settings
from rollmill.cli_parsers import BENCHED_PRESET, parsers
from rollmill.runtime.user_frames import format_error, is_of_user_code, is_ours
from rollmill.settings.option_values import coerce
from rollmill.settings.options import OptionError, parse_overrides

if TYPE_CHECKING:
    from rollmill.runtime.ranks import Ranks
    from rollmill.settings.config import Config

__all__ = ["main"]

_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_SAFE_PATH = "PYTHONSAFEPATH"
# Settings of the environment that name code, which may be in the working directory.
_CODE = ("env", "name", "imports", "kwargs")
_SHORT_KEYS = "the last part of a key is enough where it is unique (--learning-rate 1e-3)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; by default those of the process.

    Returns:
        The exit code.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    safe_path = os.environ.get(_SAFE_PATH)
    try:
        return _dispatch(argv)
    except SystemExit as leaving:  # argparse: --help, or a usage error that it has printed
        return leaving.code if isinstance(leaving.code, int) else _EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`rollmill envs | head`): nothing is left to say, also not when the stream is flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not is_ours(type(error)):
            if not is_of_user_code(error):
                raise
            # A module of the user's that cannot be imported, for example.
            print(format_error(error), end="", file=sys.stderr)
            print("rollmill: the error above was raised by code outside of Rollmill: correct it there", file=sys.stderr)
            return _EXIT_FAILED
        _print_environment_traceback(error)
        print(f"rollmill: {error}", file=sys.stderr)
        return _EXIT_USAGE if _is_usage(error) else _EXIT_FAILED
    finally:  # For a program that has called this function, and goes on.
        if safe_path is None:
            os.environ.pop(_SAFE_PATH, None)


def _is_usage(error: Exception) -> bool:
    """Whether the command, a setting or a name was wrong, as against a run that failed."""
    from rollmill.envs import errors

    kinds = (ValueError, LookupError, ImportError, FileNotFoundError)
    return isinstance(error, (*kinds, errors.UnknownEnvironment, errors.MissingExtra, errors.UnsupportedSpace))


def _print_environment_traceback(error: Exception) -> None:
    from rollmill.envs.errors import EnvironmentFailure

    if isinstance(error, EnvironmentFailure) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)


def _dispatch(argv: list[str]) -> int:
    parser, commands = parsers()
    if not argv or argv[0] not in commands:
        if argv and not argv[0].startswith("-"):
            close = difflib.get_close_matches(argv[0], commands, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(commands)}"
            raise OptionError(f"there is no command {argv[0]!r}{hint}")
        parser.parse_args(argv)  # --help, --version or an error: leaves
        parser.print_help()
        return _EXIT_USAGE
    command = commands[argv[0]]
    known, overrides = split_overrides(argv[1:], command.options)
    asked = set(known) & ({"-h", "--help", "--help-all"} if command.takes_settings else set())
    if asked:
        command.parser.print_help()
        print(_settings_help(command, [word for word in known if word not in asked], overrides, "--help-all" in asked))
        return 0
    if overrides and not command.takes_settings:
        raise OptionError(f"rollmill {argv[0]} has no option {overrides[0]}; rollmill {argv[0]} --help lists them")
    arguments = command.parser.parse_args(known)
    settings = parse_overrides(overrides)
    if "preset" in settings:
        raise OptionError(
            f"--preset {settings['preset']} was given, which is no setting: name the preset alone, without --preset"
        )
    return _RUN[argv[0]](arguments, settings)


def _search_here_if_needed(arguments: argparse.Namespace, overrides: Mapping[str, object]) -> None:
    """Has modules found in the working directory, here and in the processes of a run, if the user names any.

    Behind all installed ones: the directory may have come from somebody else, with a ``torch.py`` in it.
    """
    from rollmill.envs.user_code import keep_interpreters_out

    is_needed = _names_code(arguments, overrides)
    if is_needed and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    keep_interpreters_out(until_user_code=is_needed, starts_processes=hasattr(arguments, "preset"))


def _names_code(arguments: argparse.Namespace, overrides: Mapping[str, object]) -> bool:
    """Whether a command names code of the user's, or uses a run of his that does."""
    if arguments.modules or any(key.removeprefix("env.").split(".")[0] in _CODE for key in overrides):
        return True
    if getattr(arguments, "resume", False) or not hasattr(arguments, "preset"):
        from rollmill.settings.run_config import names_own_code

        run_dir = getattr(arguments, "run_dir", None)
        return run_dir is not None and names_own_code(run_dir, trust=arguments.trust)
    if not arguments.preset:
        return False
    from rollmill.envs.config import EnvConfig
    from rollmill.envs.trust import named_code

    return bool(named_code(EnvConfig(name=arguments.preset)))


def _settings_help(command: Command, known: list[str], overrides: list[str], shows_all: bool) -> str:
    """Settings, with a preset's values where one was named, with the defaults otherwise."""
    arguments = command.parser.parse_args(known) if known else None
    config: Config | None = None
    whose = "their defaults (PRESET before --help shows the values of a preset)"
    if arguments is not None and arguments.preset is not None:
        from rollmill.api import make_config

        values = parse_overrides(overrides)
        _import_modules(arguments, values)
        algo, protocol = getattr(arguments, "algo", None), getattr(arguments, "protocol", None)
        config = make_config(arguments.preset, values, algo=algo, protocol=protocol)
        whose = f"the values of {arguments.preset}"
    if shows_all:
        return f"\nall settings, as --KEY VALUE, with {whose}; {_SHORT_KEYS}:\n\n{all_settings(config)}"
    return (
        f"\nthe settings that matter most, as --KEY VALUE, with {whose}:\n{main_settings(config)}\n\n"
        f"{_SHORT_KEYS[0].upper()}{_SHORT_KEYS[1:]}. --help-all lists all settings."
    )


# ----------------------------------------------------------------------------------------------------------- commands


def _import_modules(arguments: argparse.Namespace, overrides: dict[str, object]) -> None:
    """Import the user's modules here, and have every worker import them too."""
    _search_here_if_needed(arguments, overrides)
    modules: list[str] = arguments.modules or []
    if "env.imports" in overrides:
        # The same, said as a setting: what is trained may be known only after the import.
        given = overrides.pop("env.imports")
        said = coerce(given, tuple[str, ...], "env.imports", text=isinstance(given, str))
        modules = [*cast("tuple[str, ...]", said), *modules]
    if modules:
        from rollmill.envs.user_code import import_user_code, lasting_name

        for module in modules:
            import_user_code(module)
        overrides["env.imports"] = tuple(map(lasting_name, modules))


def _train(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rollmill import api
    from rollmill.runtime.ranks import Ranks

    if arguments.settings is not None:
        from rollmill.tuning.settings import read_settings, under

        overrides = under(read_settings(arguments.settings, trust=arguments.trust), overrides)
    _import_modules(arguments, overrides)  # Also what the file names.
    for name in ("total_steps", "seed"):
        if getattr(arguments, name) is not None:
            overrides[name] = getattr(arguments, name)
    if arguments.tune:
        overrides = _tuned(arguments, overrides, ranks=Ranks.of_this_process())
    run = api.train(
        arguments.preset,
        run_dir=arguments.run_dir,
        resume=arguments.resume,
        quiet=arguments.quiet,
        algo=arguments.algo,
        protocol=arguments.protocol,
        trust=arguments.trust,
        **overrides,
    )
    if not Ranks.of_this_process().rank:
        print(run.dir, flush=True)  # Flushed here, where a reader that has gone is not an error.
    return _EXIT_INTERRUPTED if run.ended_by == "signal" else 0


def _tuned(arguments: argparse.Namespace, overrides: dict[str, Any], *, ranks: Ranks) -> dict[str, Any]:
    """The settings with which ``train --tune`` trains."""
    from rollmill import api
    from rollmill.tuning.settings import under
    from rollmill.tuning.tune import tune

    if arguments.resume:
        # What was chosen when it began is in its configuration.
        print("the run goes on with the allocation that it has; --tune is for new ones", file=sys.stderr)
        return overrides
    if not ranks.is_alone:
        raise OptionError(
            "--tune with several ranks would have each choose for itself; tune first, and give --settings"
        )
    if arguments.preset is None:
        raise OptionError("--tune needs to know what is trained: name a preset")
    if arguments.run_dir is not None:
        api.refuse_a_run_in(arguments.run_dir)  # Now, not after a minute of tuning.
    # What is no setting would be taken for one of tune's own arguments.
    overrides = under({}, overrides)
    tuning = tune(
        arguments.preset, algo=arguments.algo, protocol=arguments.protocol, say=_say_aside(arguments.quiet), **overrides
    )
    if not arguments.quiet:
        print(tuning.summary(), file=sys.stderr)
    return tuning.settings


def _say_aside(quiet: bool) -> Callable[[str], None]:
    return lambda text: None if quiet else print(text, file=sys.stderr, flush=True)


def _tune(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    _import_modules(arguments, overrides)
    from rollmill.tuning.tune import tune

    result = tune(
        arguments.preset,
        algo=arguments.algo,
        protocol=arguments.protocol,
        seconds=arguments.seconds,
        curves=arguments.curves,
        cores=arguments.cores,
        output=arguments.output,
        say=_say_aside(arguments.json),
        **overrides,
    )
    if arguments.json:
        print(json.dumps(result.to_dict()))
        return 0
    print(result.describe() if arguments.verbose else result.summary())
    command = ["rollmill", "train", arguments.preset]
    for option in ("algo", "protocol"):
        if getattr(arguments, option) is not None:
            command += [f"--{option}", getattr(arguments, option)]
    if not arguments.verbose:
        print(f"--verbose shows the equations and all candidates; {arguments.output / 'tuning.txt'} has them too.")
    print("To train with the settings found:")
    print(shlex.join([*command, "--settings", str(arguments.output / "tuned.json")]))
    return 0


def _eval(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    _import_modules(arguments, overrides)
    from rollmill.evaluation.evaluate import evaluate

    _say_warnings()
    result = evaluate(
        arguments.run_dir,
        episodes=arguments.episodes,
        seed=arguments.seed,
        deterministic=_deterministic(arguments),
        video=arguments.video,
        num_envs=arguments.num_envs,
        checkpoint=arguments.checkpoint,
        device=arguments.device,
        max_episode_steps=arguments.max_episode_steps,
        trust=arguments.trust,
    )
    print(json.dumps(result.to_dict()) if arguments.json else result.describe())
    return 0


def _watch(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    _import_modules(arguments, overrides)
    from rollmill.evaluation.watch import watch

    _say_warnings()
    watch(
        arguments.run_dir,
        episodes=arguments.episodes,
        video=arguments.video,
        follow=arguments.follow,
        seed=arguments.seed,
        deterministic=_deterministic(arguments),
        checkpoint=arguments.checkpoint,
        device=arguments.device,
        say=lambda text: print(text, flush=True),
        trust=arguments.trust,
    )
    return 0


def _deterministic(arguments: argparse.Namespace) -> bool | None:
    """What the two flags say; None leaves it to the policy."""
    if arguments.deterministic and arguments.explore:
        raise OptionError("--deterministic and --explore contradict each other; give one of them, or neither")
    return True if arguments.deterministic else False if arguments.explore else None


def _say_warnings() -> None:
    """Shows warnings as messages for the user, without a place in our code."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"rollmill: {message}", file=sys.stderr)

    warnings.showwarning = show


def _plot(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    from rollmill.reporting.plots import plot_runs

    output = arguments.output or arguments.run_dirs[0] / "learning_curve.png"
    print(plot_runs(arguments.run_dirs, output, title=arguments.title))
    return 0


def _verify(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    _import_modules(arguments, overrides)
    from rollmill.verification import DELAY_S, verify

    result = verify(
        arguments.preset,
        updates=arguments.updates,
        algo=arguments.algo,
        delay_s=DELAY_S if arguments.delay is None else arguments.delay,
        say=_say_aside(False),
        **overrides,
    )
    print(json.dumps(result.to_dict()) if arguments.json else result.describe())
    return 0 if result.equal else _EXIT_FAILED


def _report(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from rollmill.comparing.page import write_report

    report = write_report(arguments.runs, arguments.output, title=arguments.title)
    print(report.page)
    if arguments.json:
        print(json.dumps(report.figures))
    return 0


def _bench(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    _import_modules(arguments, overrides)
    benchmark = importlib.import_module(f"rollmill.benchmarking.{arguments.what}")
    if arguments.what != "replay" and (arguments.peers is not None or arguments.install_peers):
        raise OptionError("--peers and --install-peers are of `rollmill bench replay`, which has peers to compare with")
    if arguments.what in ("ring", "replay"):
        if overrides:
            raise OptionError(f"the {arguments.what}'s benchmark has no settings; given: {', '.join(overrides)}")
        if arguments.preset is not None:
            raise OptionError(f"the {arguments.what}'s benchmark has no preset; given: {arguments.preset}")
        options = {} if arguments.what == "ring" else _peers_of(arguments)
        result: Mapping[str, object] = benchmark.run(seconds=arguments.seconds, **options)
    else:
        result = benchmark.run(arguments.preset or BENCHED_PRESET, seconds=arguments.seconds, overrides=overrides)
    if arguments.json:
        print(json.dumps(result))
        return 0
    from rollmill.benchmarking.summary import details, summary

    print(summary(arguments.what, result))
    print(f"\n{details(result)}" if arguments.verbose else "(--verbose shows all measured values.)")
    return 0


def _peers_of(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"environments": arguments.peers, "install_peers": arguments.install_peers}


def _envs(arguments: argparse.Namespace, overrides: dict[str, object]) -> int:
    _import_modules(arguments, overrides)
    from rollmill.settings.presets import list_presets, missing_families

    missing = missing_families()
    if arguments.family in missing:
        raise OptionError(missing[arguments.family])
    families: dict[str, list[str]] = {}
    for preset in list_presets():
        families.setdefault(preset.partition("/")[0], []).append(preset)
    if arguments.family is not None and arguments.family not in families:
        raise OptionError(f"there is no family {arguments.family!r}; there are {', '.join(families)}")
    for family, presets in families.items():
        if arguments.family in (None, family):
            print(f"{family} ({len(presets)})")
            print("\n".join(f"  {preset}" for preset in presets))
    if arguments.family is None:
        for family, reason in missing.items():
            print(f"{family}: {reason}")
    return 0


_RUN: Mapping[str, Callable[[argparse.Namespace, dict[str, Any]], int]] = {
    "train": _train,
    "tune": _tune,
    "eval": _eval,
    "watch": _watch,
    "plot": _plot,
    "bench": _bench,
    "verify": _verify,
    "report": _report,
    "envs": _envs,
}
