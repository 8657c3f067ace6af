"""Checks of Python, Rollmill, the packages it needs, and its extras."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import rollmill
from rollmill.doctor.finding import Finding
from rollmill.extras import EXTRAS, MODULES, install_command, missing_modules

# Package -> the oldest version, as in pyproject.toml; a test compares the two.
DEPENDENCIES: Final = {"numpy": "2", "gymnasium": "1.0", "torch": "2.6", "cloudpickle": "2.2", "rich": "13"}

_NEWEST_TESTED = (3, 13)


def check_python() -> Finding:
    """Whether the tests of Rollmill run with this version of Python."""
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info[:2] > _NEWEST_TESTED:
        newest = ".".join(map(str, _NEWEST_TESTED))
        return Finding("Python", "warning", found, f"Rollmill is tested with Python 3.11 to {newest}: use one of them")
    return Finding("Python", "ok", found)


def check_rollmill() -> Finding:
    """Whether Rollmill's native part loads."""
    found = f"{rollmill.__version__}, {Path(rollmill.__file__).parent}"
    try:
        importlib.import_module("rollmill.native")
    except ImportError as error:
        advice = "install a wheel for this version of Python and this machine again; in a checkout, make install"
        return Finding("rollmill", "problem", f"{found}: the native module does not load ({error})", advice)
    return Finding("rollmill", "ok", found)


def check_dependencies() -> Iterator[Finding]:
    """Whether the packages that Rollmill always needs can be imported, in versions that it works with."""
    for package, least in DEPENDENCIES.items():
        yield check_dependency(package, least)


def check_dependency(package: str, least: str) -> Finding:
    """Whether a package can be imported and is new enough.

    Args:
        package: Its name, which is also that of its module.
        least: The oldest version that Rollmill works with.
    """
    advice = f'pip install "{package}>={least}"'
    try:
        importlib.import_module(package)
    except Exception as error:  # a package may raise anything
        return Finding(package, "problem", f"cannot be imported ({type(error).__name__}: {error})", advice)
    version = _version(package)
    if not _numbers(version):
        return Finding(package, "warning", f"{version}; {least} or newer is needed", advice)
    if _numbers(version) < _numbers(least):
        return Finding(package, "problem", f"{version}, older than {least}", advice)
    return Finding(package, "ok", version)


def check_extras(extras: Sequence[str] = tuple(EXTRAS)) -> Iterator[Finding]:
    """Which extras are installed, and whether those can be imported.

    Args:
        extras: Names in :data:`rollmill.extras.EXTRAS`.
    """
    for extra in extras:
        check, command = f"extra {extra}", install_command(extra)
        if missing := missing_modules(extra):
            yield Finding(check, "ok", f"not installed ({', '.join(missing)})", f"if you need it: {command}")
            continue
        packages = [re.split(r"[\[<>]", package)[0] for package in EXTRAS[extra]]
        versions = ", ".join(f"{package} {_version(package)}" for package in packages)
        problem = _import_problem(MODULES[extra])
        if problem:
            yield Finding(check, "warning", f"{versions}: {problem}", f"install what the message names, or: {command}")
        else:
            yield Finding(check, "ok", versions)


def _import_problem(modules: Sequence[str]) -> str:
    """Why one of the modules cannot be imported; empty if all can."""
    for module in modules:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # greetings
                importlib.import_module(module)
        except Exception as error:  # a package may raise anything
            return f"{module} cannot be imported ({type(error).__name__}: {error})"
    return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))
