"""Groups as bytes: the attributes that decide how a group goes on, its environments among them, pickled."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from rollmill.envs.errors import UnreadableSnapshot, failures

__all__ = ["is_pickled_by_arguments", "put_back", "take"]

_MAINS = ("__main__", "__mp_main__")


def is_pickled_by_arguments(env: Any) -> bool:
    """Whether pickling an environment keeps its constructor's arguments alone: Gymnasium's ``EzPickle`` (MuJoCo, ...).

    Not where a class that inherits from it says itself, with ``__getstate__``, what is kept.
    """
    from gymnasium import Wrapper
    from gymnasium.utils import EzPickle

    while isinstance(env, Wrapper) and not isinstance(env, EzPickle):
        env = env.env
    return isinstance(env, EzPickle) and type(env).__getstate__ is EzPickle.__getstate__


def take(group: object, attributes: Sequence[str]) -> bytes | None:
    """Pickles attributes of a group; None where one of them cannot be."""
    try:
        state = pickle.dumps({name: getattr(group, name) for name in attributes}, protocol=pickle.HIGHEST_PROTOCOL)
    except failures():  # Whatever a simulator's own objects raise.
        return None
    return pickle.dumps((getattr(sys.modules["__main__"], "__file__", None), state))


def put_back(group: object, attributes: Sequence[str], snapshot: bytes) -> None:
    """Gives a group the attributes that :func:`take` was given.

    Raises:
        UnreadableSnapshot: What was pickled cannot be unpickled here and now.
    """
    try:
        main, state = pickle.loads(snapshot)
        found = _Unpickler(io.BytesIO(state), main).load()
        values = [found[name] for name in attributes]
    except failures() as error:
        raise UnreadableSnapshot(
            f"the environments that the checkpoint holds cannot be unpickled ({type(error).__name__}: {error}). Were "
            "they saved by another version of their code, or of Rollmill? Then the run cannot go on; begin a new one. "
            "Environments that pickle but cannot be unpickled want checkpoint.save_environments=false"
        ) from error
    for name, value in zip(attributes, values, strict=True):
        setattr(group, name, value)


class _Unpickler(pickle.Unpickler):
    """Finds the classes of the script that began the run also where another program goes on with it.

    Args:
        file: To read from.
        main: The file that was the program then.
    """

    def __init__(self, file: io.BytesIO, main: str | None) -> None:
        super().__init__(file)
        self._main = main and os.path.realpath(main)

    def find_class(self, module: str, name: str) -> Any:
        """As ``pickle`` does, but ``__main__`` is the script that it was when this was pickled."""
        if module in _MAINS and self._main is not None:
            for known in list(sys.modules.values()):
                file = getattr(known, "__file__", None)
                if file is not None and os.path.realpath(file) == self._main:
                    module = known.__name__
                    sys.modules.setdefault(module, known)
        return super().find_class(module, name)
