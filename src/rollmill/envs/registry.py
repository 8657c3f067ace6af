"""Registry of users' environments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.envs.user_code import import_if_there
from rollmill.runtime.definitions import is_same_definition


@dataclass(frozen=True, kw_only=True)
class Registration:
    """One registered environment.

    Attributes:
        name: The environment's name.
        factory: ``factory(**kwargs)`` returns a ``gymnasium.Env``; with ``vector``, ``factory(num_envs=..., **kwargs)``
            returns a ``gymnasium.vector.VectorEnv``. A class is a factory.
        vector: Whether the factory builds vector environments.
        frameskip: Simulator frames for each agent step.
    """

    name: str
    factory: Callable[..., Any]
    vector: bool = False
    frameskip: int = 1


_registered: dict[str, Registration] = {}


def register_env(name: str, factory: Callable[..., Any], *, vector: bool = False, frameskip: int = 1) -> None:
    """Make an environment available under ``name``, before all built-in names.

    A factory with ``vector=True`` is called as ``factory(num_envs=N, **env.kwargs)`` in several processes, several
    times in each. ``N`` is the run's ``envs_per_group`` in all calls: for training, for probing the spaces, and for
    evaluating, watching, recording and loading the agent. Therefore several agents of one game can be rows of one
    vector environment: if ``envs_per_group`` is a multiple of the number of agents, every call contains whole games.
    ``rollmill tune`` does not change ``envs_per_group`` for such environments.

    Call it at the top level of a module (given with ``--import``, or the user's own script), which worker processes
    import again. Registering the same factory twice is therefore allowed.

    Args:
        name: Any name; ``<family>/<id>`` is allowed and then overrides the built-in one.
        factory: A class or function; must be importable by workers (no lambda, nothing local).
        vector: Whether the factory takes ``num_envs`` and returns a ``gymnasium.vector.VectorEnv`` of that size.
        frameskip: Simulator frames for each agent step, for counting frames.

    Raises:
        ValueError: An empty name, a frameskip below 1, or a name taken by another factory.
        TypeError: ``factory`` is not callable.
    """
    if not name:
        raise ValueError("register_env got an empty name: give the environment a name")
    if not callable(factory):
        raise TypeError(f"register_env({name!r}) got {factory!r}: give a class or function that builds an environment")
    if frameskip < 1:
        raise ValueError(f"register_env({name!r}) got frameskip={frameskip}: at least 1 is allowed")
    old = _registered.get(name)
    if old is not None and not is_same_definition(old.factory, factory):
        raise ValueError(
            f"register_env({name!r}): the name is taken by {old.factory!r}; choose another name for {factory!r}"
        )
    _registered[name] = Registration(name=name, factory=factory, vector=vector, frameskip=frameskip)


def register_factory(factory: Callable[..., Any]) -> str:
    """Register a class or function under its import path, and return that name.

    Args:
        factory: As for :func:`register_env`, at the top level of a module or of the user's own script.

    Returns:
        ``module:name``; a script counts as the module of its file name.

    Raises:
        TypeError: It is not callable, or worker processes could not import it.
    """
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if not callable(factory) or module is None or name is None:
        raise TypeError(
            f"the environment is {factory!r}, {type(factory).__name__}: give the name of a preset, or a class "
            "or function that builds an environment (its arguments as env.kwargs)"
        )
    if "<" in name:
        raise TypeError(
            f"{factory!r} is not at the top level of a module, where worker processes could import it: move it there"
        )
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file is not None else module
    found = f"{module}:{name}"
    register_env(found, factory)
    return found


def find_registration(name: str) -> Registration | None:
    """Return the registration of a name, or None; registers ``module:name`` on first use.

    Raises:
        Exception: Any error of importing the module.
    """
    if ":" in name and "/" not in name and (name not in _registered or name.startswith("__main__:")):
        # A cell or a prompt may have redefined it since it was registered.
        factory = _import(*name.split(":", 1))
        if factory is not None:
            register_env(name, factory)
    return _registered.get(name)


def _import(module: str, name: str) -> Callable[..., Any] | None:
    """Return a module's callable of that name; None if there is no such module or name."""
    # A script that is imported already may have any name ("my-maze").
    found: Any = sys.modules.get(module)
    if found is None:
        if not all(part.isidentifier() for part in module.split(".")):
            return None
        found = import_if_there(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else None


def registrations() -> tuple[Registration, ...]:
    """All registrations, in order; picklable by reference, for child processes."""
    return tuple(_registered.values())


def install(entries: Iterable[Registration]) -> None:
    """Install the registrations of the parent process."""
    for entry in entries:
        _registered[entry.name] = entry
