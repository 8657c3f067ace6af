"""Groups as bytes: the attributes that decide how a group goes on, its environments among them, pickled."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

__all__ = ["put_back", "take"]


def take(group: object, attributes: Sequence[str]) -> bytes | None:
    """Pickles attributes of a group; None where one of them cannot be."""
    try:
        return pickle.dumps([getattr(group, name) for name in attributes], protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # Whatever a simulator's own objects raise.
        return None


def put_back(group: object, attributes: Sequence[str], snapshot: bytes) -> None:
    """Gives a group the attributes that :func:`take` was given."""
    for name, value in zip(attributes, pickle.loads(snapshot), strict=True):
        setattr(group, name, value)
