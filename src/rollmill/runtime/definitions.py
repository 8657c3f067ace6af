"""Whether what a user registers a second time is the same again: for the registries of all that may be a user's own."""

from __future__ import annotations

import os
import sys

__all__ = ["is_same_definition"]


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
