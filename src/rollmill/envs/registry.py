"""Environments of the user's own, under names of the user's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Registration", "find_registration", "install", "register_env", "registrations"]


@dataclass(frozen=True, kw_only=True)
class Registration:
    """One registered environment.

    Attributes:
        name: Its name.
        factory: ``factory(**kwargs)`` gives a ``gymnasium.Env``; with ``vector``, ``factory(num_envs=..., **kwargs)``
            gives a ``gymnasium.vector.VectorEnv``. A class is a factory.
        vector: Whether it makes vector environments.
        frameskip: Simulator frames for each agent step.
    """

    name: str
    factory: Callable[..., Any]
    vector: bool = False
    frameskip: int = 1


_registered: dict[str, Registration] = {}


def register_env(name: str, factory: Callable[..., Any], *, vector: bool = False, frameskip: int = 1) -> None:
    """Make an environment available under ``name``, before all built-in names.

    Call it at the top level of a module (given with ``--import``, or the user's own script: worker processes import it
    again). Registering the same factory twice is allowed, which is what such a second import does.

    Args:
        name: Any name; ``<family>/<id>`` is allowed too and then hides the built-in one.
        factory: A class or function; must be importable by workers (no lambda, nothing local).
        vector: The factory takes ``num_envs`` and gives a ``gymnasium.vector.VectorEnv``.
        frameskip: Simulator frames for each agent step, for counting frames.

    Raises:
        ValueError: For an empty name, a frameskip below 1, or a name taken by another factory.
        TypeError: When ``factory`` cannot be called.
    """
    if not name:
        raise ValueError("register_env got an empty name: give the environment a name")
    if not callable(factory):
        raise TypeError(f"register_env({name!r}) got {factory!r}: a class or function that makes an environment")
    if frameskip < 1:
        raise ValueError(f"register_env({name!r}) got frameskip={frameskip}: at least 1 is allowed")
    old = _registered.get(name)
    if old is not None and _identity(old.factory) != _identity(factory):
        raise ValueError(
            f"register_env({name!r}): the name belongs to {old.factory!r} already; choose another name for {factory!r}"
        )
    _registered[name] = Registration(name=name, factory=factory, vector=vector, frameskip=frameskip)


def _identity(factory: Callable[..., Any]) -> tuple[str, str] | int:
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", None)
    if module is None or name is None:
        return id(factory)
    # A spawned child imports the user's script once more, as __mp_main__, and --import may do so by its path.
    file = getattr(sys.modules.get(module), "__file__", None)
    return (module if file is None else os.path.realpath(file)), name


def find_registration(name: str) -> Registration | None:
    """The registration of that name, or None."""
    return _registered.get(name)


def registrations() -> tuple[Registration, ...]:
    """All registrations, in order; picklable by reference, to be handed to child processes."""
    return tuple(_registered.values())


def install(entries: Iterable[Registration]) -> None:
    """Take over the registrations of the process that started this one."""
    for entry in entries:
        _registered[entry.name] = entry
