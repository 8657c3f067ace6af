"""The user's modules: named with ``--import``, found in the working directory, and imported by every process."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rollmill.settings.option_values import OptionError, coerce

if TYPE_CHECKING:
    from rollmill.callback import Callback

# Settings of the environment that name code, which may be in the working directory.
_CODE = ("env", "name", "imports", "kwargs", "wrappers")


def import_modules(arguments: argparse.Namespace, overrides: dict[str, object]) -> None:
    """Import the user's modules here, and have every worker import them too."""
    _search_here_if_needed(arguments, overrides)
    modules: list[str] = arguments.modules or []
    for key in ("env.imports", "imports"):
        if key not in overrides:
            continue
        # The same modules as a setting. Import them now, because the preset may be registered by them.
        given = overrides.pop(key)
        named = coerce(given, tuple[str, ...], key, text=isinstance(given, str))
        modules = [*cast("tuple[str, ...]", named), *modules]
    if modules:
        from rollmill.envs.user_code import import_user_code, lasting_name

        for module in modules:
            import_user_code(module)
        overrides["env.imports"] = tuple(map(lasting_name, modules))


def make_callbacks(names: Sequence[str]) -> list[Callback]:
    """Make the callbacks that ``--callback`` names.

    Args:
        names: ``module:Class`` or ``path/to/file.py:Class``, without arguments; import the user's modules first.

    Raises:
        OptionError: One leads to nothing, to something else than a class of callbacks, or to one that needs arguments.
        NoSuchModuleError: There is no such module or file.
    """
    from rollmill.callback import Callback
    from rollmill.envs.user_code import import_user_code

    made = []
    for name in names:
        place, _, last = name.rpartition(":")
        if not place or not last:
            raise OptionError(f"--callback {name}: give module:Class or path/to/file.py:Class")
        module = import_user_code(place, option="--callback")
        kind = getattr(module, last, None)
        if not (isinstance(kind, type) and issubclass(kind, Callback)):
            offered = [
                key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Callback)
            ]
            listed = f"it has {', '.join(offered)}" if offered else "it has no class derived from rollmill.Callback"
            what = "nothing" if kind is None else repr(kind)
            raise OptionError(f"--callback {name}: {last!r} of {place} is {what}, not a callback; {listed}")
        try:
            with contextlib.suppress(ValueError):  # It has no signature.
                inspect.signature(kind).bind()
        except TypeError as error:
            raise OptionError(
                f"--callback {name}: it is made without arguments, but its constructor needs some ({error}); give them "
                "defaults, or pass an object in Python: rollmill.train(..., callbacks=[...])"
            ) from None
        made.append(kind())
    return made


def _search_here_if_needed(arguments: argparse.Namespace, overrides: Mapping[str, object]) -> None:
    """Search the working directory for modules, here and in the processes of a run, if the user names any.

    It is searched last: a directory from somebody else may contain a ``torch.py``.
    """
    from rollmill.envs.user_code import keep_interpreters_out

    is_needed = _names_code(arguments, overrides)
    if is_needed and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    keep_interpreters_out(until_user_code=is_needed, starts_processes=hasattr(arguments, "preset"))


def _names_code(arguments: argparse.Namespace, overrides: Mapping[str, object]) -> bool:
    """Whether a command names code of the user's, or a run of the user's that does."""
    if (
        arguments.modules
        or getattr(arguments, "callbacks", None)
        or any(key.removeprefix("env.").split(".")[0] in _CODE for key in overrides)
    ):
        return True
    if getattr(arguments, "resume", False) or not hasattr(arguments, "preset"):
        from rollmill.settings.run_config import names_own_code

        if any(names_own_code(run_dir, trust=arguments.trust) for run_dir in _run_dirs(arguments)):
            return True
    from rollmill.envs.config import EnvConfig
    from rollmill.envs.trust import named_code

    named = getattr(arguments, "preset", None) or getattr(arguments, "env", None) or ""
    return any(named_code(EnvConfig(name=name)) for name in named.split(",") if name)


def _run_dirs(arguments: argparse.Namespace) -> Iterator[Path]:
    """Yield the folders that may be runs, also of players that are checkpoint files."""
    if (run_dir := getattr(arguments, "run_dir", None)) is not None:
        yield Path(run_dir)
    for player in getattr(arguments, "players", ()):
        path = Path(player)
        yield path.parent.parent if path.is_file() else path
