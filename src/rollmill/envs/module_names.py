"""Explanations for a ``module:name`` that does not refer to an environment."""

from __future__ import annotations

import os
import pkgutil
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import gymnasium

from rollmill.envs.factory import suggest
from rollmill.envs.user_code import import_if_there

_MOST_LISTED = 8
_FORM = "an environment of your own is given as 'module:Class'"


def environments_of(module: ModuleType) -> list[str]:
    """Names of the environment classes that a module defines or imports from its own package.

    Excludes Gymnasium's base classes, which nearly every such module imports.
    """
    kinds = (gymnasium.Env, gymnasium.vector.VectorEnv)
    package = module.__name__.partition(".")[0]
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, kinds) and value.__module__.partition(".")[0] == package
    ]


def explain(given: str) -> str | None:
    """Explain why a name that refers to a user's module is not an environment, and what to use.

    Args:
        given: ``module:name``, or that with a dot, a slash or ``.py``; a name with a colon imports the module.

    Returns:
        A message; None for a name that refers to no module.

    Raises:
        Exception: Any error of importing the module.
    """
    module, colon, name = given.partition(":")
    if module.endswith(".py"):
        path, stem = module, os.path.basename(module).removesuffix(".py")
        wanted = f"'{stem}:{name or 'Class'}'"
        beside = os.path.dirname(path) in ("", ".")
        return f"{given!r} names a file; {_FORM}: use {wanted}" + ("" if beside else f" with --import {path}")
    if colon:
        return _explain_colon(given, module, name)
    top, _, rest = given.replace("/", ".").partition(".")
    if not top.isidentifier() or PathFinder.find_spec(top, [os.getcwd()]) is None:
        return None
    # Not imported: the module may share its name with the first part by chance.
    if not rest:
        return f"{given!r} is a module in {os.getcwd()}; {_FORM}: name one of its classes"
    inner, dot, last = rest.rpartition(".")
    return f"{given!r} begins with a module in {os.getcwd()}; {_FORM}: use '{top}{dot}{inner}:{last}'"


def _explain_colon(given: str, module_name: str, name: str) -> str:
    is_name = bool(module_name) and all(part.isidentifier() for part in module_name.split("."))
    module = import_if_there(module_name) if is_name else None
    if module is None:
        beside = [info.name for info in pkgutil.iter_modules([os.getcwd()])]
        near = suggest(module_name, (), {found.lower(): f"{found}:{name}" for found in beside})
        what = f"{given!r}: there is no module {module_name!r} in {os.getcwd()} or on PYTHONPATH"
        return what + (near or "; import its file first (--import FILE.py), or put its folder on PYTHONPATH")
    found = _find(module, name)
    if found is not None:
        return f"{given!r} is {found!r}, {type(found).__name__}; {_FORM}, or a function that makes one{_listed(module)}"
    classes = environments_of(module)
    functions = [
        key
        for key, value in vars(module).items()
        if callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == module_name
    ]
    offered = [f"{module_name}:{key}" for key in (*classes, *functions) if not key.startswith("_")]
    # Compares last parts only: the shared module name would make any two names similar.
    offered += _ids_of(module_name)
    near = suggest(name, (), {full.partition(":")[2].lower(): full for full in offered})
    return f"{given!r}: the module {module_name!r} has no environment {name!r}{near or _listed(module)}"


def _find(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _ids_of(module_name: str) -> list[str]:
    """``module:id`` of the ids that the module's package has registered with Gymnasium."""
    package = module_name.partition(".")[0]
    places = {
        id: str(spec.entry_point if isinstance(spec.entry_point, str) else getattr(spec.entry_point, "__module__", ""))
        for id, spec in gymnasium.registry.items()
    }
    return [f"{module_name}:{id}" for id, place in places.items() if place.replace(":", ".").split(".")[0] == package]


def _listed(module: ModuleType) -> str:
    classes = environments_of(module)
    ids = _ids_of(module.__name__)
    names = [repr(f"{module.__name__}:{name}") for name in classes if not name.startswith("_")] + list(map(repr, ids))
    if not names:
        return "; it defines no environment (a subclass of gymnasium.Env)"
    shown = ", ".join(names[:_MOST_LISTED])
    return f"; it has {shown}" + (f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else "")
