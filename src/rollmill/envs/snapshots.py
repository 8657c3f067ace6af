"""Snapshots of groups: the pickled attributes that hold their state, including environments."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from gymnasium.utils import EzPickle

from rollmill.envs.errors import UnreadableSnapshot, failures

_MAINS = ("__main__", "__mp_main__")


def save_state(group: object, attributes: Sequence[str]) -> bytes | None:
    """Pickle attributes of a group; None if one of them cannot be pickled, or holds an object pickled by arguments."""
    state = io.BytesIO()
    try:
        _Pickler(state, pickle.HIGHEST_PROTOCOL).dump({name: getattr(group, name) for name in attributes})
    except failures():  # Any error of a simulator's objects.
        return None
    return pickle.dumps((getattr(sys.modules["__main__"], "__file__", None), state.getvalue()))


def restore_state(group: object, attributes: Sequence[str], snapshot: bytes) -> None:
    """Restore a group's attributes from :func:`save_state`.

    Raises:
        UnreadableSnapshot: The snapshot cannot be unpickled.
    """
    try:
        main, state = pickle.loads(snapshot)
        found = _Unpickler(io.BytesIO(state), main).load()
        values = [found[name] for name in attributes]
    except failures() as error:
        raise UnreadableSnapshot(
            f"the environments in the checkpoint cannot be unpickled ({type(error).__name__}: {error}). Were "
            "they saved by another version of their code, or of Rollmill? Then start a new run. "
            "For environments that cannot be unpickled, set checkpoint.save_environments=false"
        ) from error
    for name, value in zip(attributes, values, strict=True):
        setattr(group, name, value)


class _Pickler(pickle.Pickler):
    """Pickler that refuses objects of which only the constructor's arguments are pickled, at any depth."""

    def reducer_override(self, obj: Any) -> Any:
        """Raise for Gymnasium's ``EzPickle`` (MuJoCo, PettingZoo, ...), unless a subclass defines its own state."""
        kind = type(obj)
        if issubclass(kind, EzPickle) and kind.__getstate__ is EzPickle.__getstate__:
            raise pickle.PicklingError(f"only the arguments of {kind.__name__} are pickled, not its state")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Unpickler that finds the classes of the script that started the run when another program resumes it.

    Args:
        file: To read from.
        main: The file of the script that started the run.
    """

    def __init__(self, file: io.BytesIO, main: str | None) -> None:
        super().__init__(file)
        self._main = main and os.path.realpath(main)

    def find_class(self, module: str, name: str) -> Any:
        """Find a class; ``__main__`` is the script that pickled it."""
        if module in _MAINS and self._main is not None:
            for known in list(sys.modules.values()):
                file = getattr(known, "__file__", None)
                if file is not None and os.path.realpath(file) == self._main:
                    module = known.__name__
                    sys.modules.setdefault(module, known)
        return super().find_class(module, name)
