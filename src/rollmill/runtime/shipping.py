"""The user's own definitions as bytes, for the processes that this program starts.

What a process can import travels by reference, as pickles have it: the definitions of modules, and those of the script,
which every process imports. What was defined in a notebook's cell or at a prompt exists in this process
alone and travels by value, with the globals that it uses (cloudpickle).

Nothing here is ever written to a file, and nothing from a file is ever loaded with it.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import types
from collections import ChainMap
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, ClassVar

_MAINS = ("__main__", "__mp_main__")
_MOST_UNUSED_BYTES = 1 << 26


class UnsendableError(TypeError):
    """A user-defined object cannot be sent to the processes of a run."""


def is_main_importable(main: ModuleType | None = None) -> bool:
    """Whether a process of a run can import the main module: a script or a package, not a notebook or a prompt.

    Args:
        main: The main module; this process's by default.
    """
    main = main or sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec is not None or (file is not None and os.path.isfile(file))


class Definition:
    """A named object of the user's; when it is pickled for a process that starts, it becomes bytes.

    Over there it is a :class:`SealedDefinition`, so that each process loads what it needs and no more, and so that what
    cannot be loaded harms those runs only that use it.

    Args:
        kind: What it is, in words for messages.
        name: The user's name for it.
        value: The object.
        is_needed: Whether the run uses it. An unused object that is large or cannot be sent is left out.
    """

    _unused = b""

    def __init__(self, kind: str, name: str, value: object, *, is_needed: bool) -> None:
        self.kind = kind
        self.name = name
        self.value = value
        self.is_needed = is_needed

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            data = _dumps(self.value) if self.is_needed else self._unused
        except Exception as error:
            raise _unsendable(self.kind, self.name, error) from error
        return SealedDefinition, (self.kind, self.name, data, self.is_needed)

    def seal_unused(self) -> None:
        """Make the bytes of an unused object, once for all processes of a run, and before one is being started."""
        with contextlib.suppress(Exception):
            data = _dumps(self.value)
            self._unused = data if len(data) <= _MOST_UNUSED_BYTES else b""


class SealedDefinition:
    """A definition as it arrives in a process."""

    def __init__(self, kind: str, name: str, data: bytes, is_needed: bool) -> None:
        self.kind = kind
        self.name = name
        self.is_needed = is_needed
        self._data = data

    def open(self) -> Any:
        """Loads it; None if it cannot be loaded and the run does not use it.

        Raises:
            Exception: Whatever loading it raises, where the run uses it.
        """
        try:
            return pickle.loads(self._data)
        except Exception:
            if self.is_needed:
                raise
            return None


def require_sendable(kind: str, name: str, value: object) -> None:
    """Raise unless a definition can be sent to a process.

    Raises:
        UnsendableError: It cannot, with the reason and what to do.
    """
    try:
        _dumps(value)
    except RuntimeError:
        return  # Locks and queues of multiprocessing travel while a process is being started, and then only.
    except Exception as error:
        raise _unsendable(kind, name, error) from error


def _unsendable(kind: str, name: str, error: Exception) -> UnsendableError:
    advice = (
        "define it at the top level of a module or script, where they can import it"
        if is_main_importable()
        else "remove from it what only exists here (locks, open files, threads), or write the cell to a module "
        "(%%writefile my_module.py in a notebook) and import it from there"
    )
    return UnsendableError(
        f"the {kind} {name!r} cannot be sent to the processes of the run ({type(error).__name__}: {error}): {advice}"
    )


def _dumps(value: object) -> bytes:
    from cloudpickle import Pickler  # Imported here because most runs have nothing to send.

    class _Pickler(Pickler):  # type: ignore[misc]
        # What shares memory or descriptors registers with ForkingPickler.
        dispatch_table: ClassVar = ChainMap(ForkingPickler(io.BytesIO()).dispatch_table, Pickler.dispatch_table)

        def reducer_override(self, obj: Any) -> Any:
            return NotImplemented if _is_found_in_script(obj) else super().reducer_override(obj)

    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _is_found_in_script(obj: object) -> bool:
    """Whether a process of a run finds a class or function in the script that it imports."""
    if not isinstance(obj, type | types.FunctionType) or obj.__module__ not in _MAINS:
        return False
    main = sys.modules[obj.__module__]
    if not is_main_importable(main):
        return False
    found: Any = main
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not obj:
        return False
    # A script can be left with a prompt (`python -i`), at which more is defined in its name.
    file, source = getattr(main, "__file__", None), _source_file(obj)
    return file is None or source is None or os.path.realpath(source) == os.path.realpath(file)


def _source_file(obj: type | types.FunctionType) -> str | None:
    """The file that the code of a class or function says it is from; None for a class without code."""
    members = [obj] if isinstance(obj, types.FunctionType) else vars(obj).values()
    return next((member.__code__.co_filename for member in members if isinstance(member, types.FunctionType)), None)
