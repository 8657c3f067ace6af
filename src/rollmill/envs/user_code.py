"""Import of users' modules and scripts, by name or by path."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

# Keeps child interpreters from searching their script's folder or the working directory first.
_SAFE_PATH = "PYTHONSAFEPATH"
_UNTIL_USER_CODE = "until user code"


class NoSuchModuleError(ImportError):
    """``--import`` names neither a module nor a file."""


class ModuleExitError(ImportError):
    """A module of the user's ended the program when it was imported."""


def import_user_code(name: str, *, option: str = "--import") -> ModuleType:
    """Import a module by its dotted name, or a ``.py`` file by its path; a no-op if it is imported already.

    Args:
        name: The module's name or path.
        option: The command-line option that named it, for messages.

    Raises:
        NoSuchModuleError: There is no such module or file. Errors inside a module propagate.
        ModuleExitError: It ends the program.
    """
    try:
        module = _import_file(name, option) if name.endswith(".py") else import_if_there(name)
    except SystemExit as leaving:
        raise ModuleExitError(
            f"{_given(name, option)}: it ends the program when it is imported (sys.exit({leaving.code!r})); put what "
            'it does as a script under `if __name__ == "__main__":`'
        ) from leaving
    if module is None:
        raise NoSuchModuleError(
            f"{_given(name, option)}: there is no such module in {os.getcwd()} or on PYTHONPATH; a file is given by "
            "its path, ending in .py"
        )
    return module


def import_if_there(name: str) -> ModuleType | None:
    """Import a module by its dotted name; None if there is none. Errors inside the module propagate."""
    if not all(name.split(".")):
        return None  # Empty, or relative to nothing.
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The missing module may also be one that the module itself imports.
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        return None


def keep_interpreters_out(*, until_user_code: bool, starts_processes: bool) -> None:
    """Keep child interpreters from importing from the working directory, unless the user has set that.

    Args:
        until_user_code: Whether processes of a run lift this for their own children, because they run the user's code,
            which may start scripts that import neighbouring files.
        starts_processes: Whether there are such processes; otherwise user code runs here, and nothing changes.
    """
    if os.environ.get(_SAFE_PATH) or (until_user_code and not starts_processes):
        return
    os.environ[_SAFE_PATH] = _UNTIL_USER_CODE if until_user_code else "1"


def let_interpreters_in() -> None:
    """Lift :func:`keep_interpreters_out` in a process of a run, before it runs the user's code."""
    if os.environ.get(_SAFE_PATH) == _UNTIL_USER_CODE:
        del os.environ[_SAFE_PATH]


def lasting_name(name: str) -> str:
    """Return a name that works from any folder: a file's absolute path, a module's own name."""
    return str(Path(name).resolve()) if name.endswith(".py") else name


def _given(name: str, option: str) -> str:
    return f"{option} {name}" + (" (env.imports)" if option == "--import" else "")


def _import_file(name: str, option: str) -> ModuleType:
    path = Path(name).resolve()
    # Named __main__, a package's __main__.py would run as the program.
    module_name = path.parent.name if path.stem == "__main__" else path.stem
    # The running script (also the __main__ of a run's processes) must not run a second time.
    for known in (sys.modules.get(module_name), sys.modules.get("__main__")):
        file = getattr(known, "__file__", None)
        if known is not None and file is not None and Path(file).resolve() == path:
            return known
    if not path.is_file():
        # A run stores the file's path; the file may have been moved since.
        moved = sys.modules.get(module_name)
        if moved is not None and Path(getattr(moved, "__file__", None) or "").name == path.name:
            return moved
        raise NoSuchModuleError(
            f"{_given(name, option)}: there is no such file; if it was moved, give its new path with "
            f"{option}; a file with another name cannot replace it"
        )
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Other processes look up its definitions under this name before they could import the file by its path, so its
    # folder is searched, too. That also finds the neighbouring files that it imports, before files of the same names in
    # the working directory, which may be another project.
    folder, here = str(path.parent), os.getcwd()
    if folder not in sys.path:
        sys.path.insert(sys.path.index(here) if here in sys.path else len(sys.path), folder)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
