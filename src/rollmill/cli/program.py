"""The program ``rollmill``: finds the command, runs it, and prints errors.

Exit codes: 0 success, 1 the run failed, 2 wrong usage, 130 interrupted (Ctrl-C, SIGTERM or a closed terminal;
what was learned is saved).
Errors that Rollmill raises are printed as messages without a traceback, except for that of the environment. Errors in
the user's modules are printed with the traceback of those modules. Any other error is a defect and keeps its traceback.

Commands import their implementation when they run, so that ``--help`` imports neither torch nor Gymnasium.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rollmill import __version__
from rollmill.cli import (
    bench,
    doctor,
    envs,
    evaluate,
    export,
    plot,
    push,
    record,
    report,
    suite,
    sweep,
    tournament,
    train,
    tune,
    verify,
    watch,
)
from rollmill.cli.command import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, Command, split_overrides
from rollmill.runtime.user_frames import format_error, is_of_user_code, is_ours
from rollmill.settings.option_values import OptionError, UnknownSettingError
from rollmill.settings.options import parse_overrides

_SAFE_PATH = "PYTHONSAFEPATH"
_COMMANDS: Final[tuple[Callable[[], Command], ...]] = (
    train.make_command,
    tune.make_command,
    sweep.make_command,
    suite.make_command,
    evaluate.make_command,
    watch.make_command,
    tournament.make_command,
    export.make_command,
    record.make_command,
    push.make_command,
    plot.make_command,
    report.make_command,
    verify.make_command,
    bench.make_command,
    envs.make_command,
    doctor.make_command,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; by default those of the process.

    Returns:
        The exit code.
    """
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")  # A path may have bytes that are not UTF-8.
    argv = list(sys.argv[1:] if argv is None else argv)
    safe_path = os.environ.get(_SAFE_PATH)
    try:
        try:
            code = _dispatch(argv)
        except SystemExit as leaving:  # argparse: --help, or a usage error that it printed
            code = leaving.code if isinstance(leaving.code, int) else EXIT_USAGE
        if sys.stdout is not None:
            sys.stdout.flush()  # Here, so that a reader that has gone is noticed.
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError as error:
        if _is_read():
            print(f"rollmill: {error}", file=sys.stderr)
            return EXIT_FAILED
        # The reader has what it wanted (`rollmill envs | head`). Redirect stdout: flushing it would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not is_ours(type(error)):
            if not is_of_user_code(error):
                if isinstance(error, PermissionError) and error.filename is not None:
                    print(
                        f"rollmill: permission denied for {error.filename!s}: change the permissions of the file or "
                        "its folders, or run this as the user who owns it",
                        file=sys.stderr,
                    )
                    return EXIT_FAILED
                raise
            # For example, a module of the user's that cannot be imported.
            print(format_error(error), end="", file=sys.stderr)
            print("rollmill: the error above was raised by code outside of Rollmill: correct it there", file=sys.stderr)
            return EXIT_FAILED
        _print_environment_traceback(error)
        print(f"rollmill: {error}", file=sys.stderr)
        return EXIT_USAGE if _is_usage(error) else EXIT_FAILED
    else:
        return code
    finally:  # A program that calls this function may continue.
        if safe_path is None:
            os.environ.pop(_SAFE_PATH, None)


def _is_read() -> bool:
    """Whether standard output still has a reader."""
    try:
        output = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # It is closed, or no file.
        return True
    poll = select.poll()
    poll.register(output, 0)  # Errors are reported although nothing is asked for.
    return not poll.poll(0)


def _is_usage(error: Exception) -> bool:
    """Whether the command, a setting or a name was wrong, as opposed to a run that failed."""
    from rollmill.envs import errors

    if not getattr(error, "is_usage", True):
        return False
    kinds = (ValueError, LookupError, ImportError, FileNotFoundError)
    return isinstance(error, (*kinds, errors.UnknownEnvironment, errors.MissingExtra, errors.UnsupportedSpace))


def _print_environment_traceback(error: Exception) -> None:
    from rollmill.envs.errors import EnvironmentFailure

    if isinstance(error, EnvironmentFailure) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)


def make_commands() -> dict[str, Command]:
    """Make all commands, by name, in the order of the help."""
    return {command.name: command for command in (make() for make in _COMMANDS)}


def _dispatch(argv: list[str]) -> int:
    commands = make_commands()
    parser = _parser(commands)
    if not argv or argv[0] not in commands:
        if argv and not argv[0].startswith("-"):
            close = difflib.get_close_matches(argv[0], commands, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; choose one of {', '.join(commands)}"
            raise OptionError(f"unknown command {argv[0]!r}{hint}")
        parser.parse_args(argv)  # --help, --version or an error: leaves
        parser.print_help()
        return EXIT_USAGE
    command = commands[argv[0]]
    known, overrides = split_overrides(argv[1:], command.options)
    asked = set(known) & ({"-h", "--help", "--help-all"} if command.takes_settings else set())
    if asked:
        # Not at the top: it needs the native module, and `rollmill doctor` tells why that does not load.
        from rollmill.cli.settings_help import settings_help

        command.parser.print_help()
        print(settings_help(command, [word for word in known if word not in asked], overrides, "--help-all" in asked))
        return 0
    if overrides and not command.takes_settings:
        raise OptionError(_unknown_option(command, overrides[0]))
    arguments = command.parser.parse_args(known)
    settings = parse_overrides(overrides)
    if "preset" in settings:
        raise OptionError(f"--preset {settings['preset']}: the preset is not a setting; give its name without --preset")
    try:
        if settings:
            _check_names(settings)
        return command.run(arguments, settings)
    except UnknownSettingError as error:
        option = "--" + error.given.replace("_", "-")
        close = [name for name in command.options if name.startswith(f"{option}-")]
        if not close and not error.has_advice:
            close = difflib.get_close_matches(option, command.options, n=1, cutoff=0.8)
        if not close:
            raise
        raise OptionError(f"{argv[0]} has no option and no setting {option}; did you mean {close[0]}?") from None


def _check_names(settings: Mapping[str, object]) -> None:
    """Raise for a name that is no setting: the commands' functions have arguments beside settings."""
    from rollmill.envs.config import EnvConfig
    from rollmill.settings.config import Config
    from rollmill.settings.options import full_keys

    full_keys(Config(env=EnvConfig(name="any")), settings)


def _unknown_option(command: Command, given: str) -> str:
    """The message about an option that a command without settings does not have."""
    name = given.partition("=")[0].replace("_", "-")
    # A setting of training may be an option here: --env.max-episode-steps is --max-episode-steps.
    close = difflib.get_close_matches(f"--{name.strip('-').rpartition('.')[2]}", command.options, n=1, cutoff=0.8)
    hint = f"did you mean {close[0]}?" if close else f"rollmill {command.name} --help lists them"
    return f"rollmill {command.name} has no option {given}; {hint}"


def _parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollmill",
        usage="rollmill COMMAND ...",
        description="Train reinforcement-learning agents at the speed of the machine, or reproducibly.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n"
        + "\n".join(f"  {name:<12}{command.summary.splitlines()[0]}" for name, command in commands.items())
        + "\n\nFirst steps:\n"
        "  rollmill train gym/CartPole-v1      train an agent\n"
        "  rollmill eval RUN_DIR               measure the trained agent\n"
        "  rollmill COMMAND --help             show the options of a command",
    )
    parser.add_argument("--version", action="version", version=f"rollmill {__version__}")
    return parser
