"""Registries of what a user may define: algorithms, models, encoders, removers and so on, by name."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from typing import Generic, TypeVar

Factory = TypeVar("Factory")


class Registry(Generic[Factory]):
    """Factories of one kind by name: the built-in ones and those that the user registered in this process.

    Args:
        kind: What they make, for messages, such as "algorithm".
        built_in: Name -> factory.
        register: The public function that registers, for messages, such as "register_algorithm".
        reserved: Further names that cannot be registered.
        error: What :meth:`find` raises.
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, Factory],
        *,
        register: str,
        reserved: tuple[str, ...] = (),
        error: type[ValueError] = ValueError,
    ) -> None:
        self.kind = kind
        self.factories = dict(built_in)
        self._built_in = frozenset(built_in)
        self._register = register
        self._reserved = reserved
        self._error = error

    def register(self, name: str, factory: Factory) -> None:
        """Add a factory. Registering the same one twice is allowed, which is what a second import does.

        Raises:
            ValueError: The name is taken by another factory.
        """
        if name in self._reserved or not is_same_definition(self.factories.get(name, factory), factory):
            raise ValueError(f"{self.kind} {name!r} exists already; choose a name other than {', '.join(self.names)}")
        self.factories[name] = factory

    def install(self, name: str, factory: Factory) -> None:
        """Add a factory of the process that started this one, unless this one has the name already."""
        self.factories.setdefault(name, factory)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the built-in ones first."""
        return (*self._reserved, *self.factories)

    def registered(self) -> dict[str, Factory]:
        """What the user registered in this process, by name."""
        return {name: factory for name, factory in self.factories.items() if name not in self._built_in}

    def is_registered(self, name: str) -> bool:
        """Whether the user registered this name in this process."""
        return name in self.factories and name not in self._built_in

    def __contains__(self, name: object) -> bool:
        return name in self.factories or name in self._reserved

    def find(self, name: str, setting: str = "") -> Factory:
        """The factory of this name.

        Args:
            name: Built in or registered.
            setting: The setting that gives it, for messages.

        Raises:
            ValueError: No factory has this name; of the class that was given as ``error``.
        """
        if name in self.factories:
            return self.factories[name]
        close = difflib.get_close_matches(name, self.names)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        given = f"{setting}={name!r}: this {self.kind}" if setting else f"{self.kind} {name!r}"
        raise self._error(
            f"{given} is not known; {hint}known: {', '.join(sorted(self.names))}. Your own: "
            f"rollmill.{self._register}({name!r}, factory) in a module that every process imports (--import)"
        )


def is_same_definition(one: object, other: object) -> bool:
    """Whether two classes or functions are one, or made by the same lines of the same file.

    A process of a run imports the user's script once more, as ``__mp_main__``, and ``--import`` may import a module by
    its path that others import by its name: what is registered then is the same again, and not another.
    """
    return one is other or _definition(one) == _definition(other)


def _definition(what: object) -> tuple[object, ...]:
    module, name = getattr(what, "__module__", None), getattr(what, "__qualname__", None)
    if module is None or name is None:
        return (id(what),)
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" and (file is None or not os.path.isfile(file)):
        # In a notebook or at a prompt, running a cell again or redefining a name replaces the earlier definition.
        return module, name
    # Functions without a name share theirs.
    line = getattr(getattr(what, "__code__", None), "co_firstlineno", None)
    return (module if file is None else os.path.realpath(file)), name, line
