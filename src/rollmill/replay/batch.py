"""The batches that a replay returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.replay.settings import Settings


class Batch(Mapping[str, NDArray[Any]]):
    """B transitions: name -> ``[B, ...]``, with their tickets and weights.

    The caller owns the arrays' values, and may change them, while it holds the batch, one of its arrays or a view of
    one (such as ``torch.from_numpy`` makes). Afterwards the replay draws a later batch of this size into them; it keeps
    the arrays of up to 16 batches.
    """

    __slots__ = ("__weakref__", "_arrays", "_tickets", "_weights")

    def __init__(
        self, tickets: NDArray[np.int64], weights: NDArray[np.float32], arrays: dict[str, NDArray[Any]]
    ) -> None:
        self._tickets = tickets
        self._weights = weights
        self._arrays = arrays

    @property
    def tickets(self) -> NDArray[np.int64]:
        """int64 ``[B]``. A ticket identifies one transition; no later one gets the same."""
        return self._tickets

    @tickets.setter
    def tickets(self, value: NDArray[np.int64]) -> None:
        _check_same("tickets", self._tickets, value)

    @property
    def weights(self) -> NDArray[np.float32]:
        """float32 ``[B]``, importance weights (1 in a uniform replay)."""
        return self._weights

    @weights.setter
    def weights(self, value: NDArray[np.float32]) -> None:
        _check_same("weights", self._weights, value)

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(f"the batch has no {name!r}; it has {', '.join(map(repr, self._arrays))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        """The number of arrays; ``len(batch.tickets)`` is the number of transitions."""
        return len(self._arrays)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}={list(array.shape)} {array.dtype}" for name, array in self._arrays.items())
        return f"Batch({len(self._tickets)} transitions: {arrays})"


def _check_same(name: str, own: object, value: object) -> None:
    """``batch.weights *= 2`` assigns the same array; another one would remain in later batches."""
    if value is not own:
        raise AttributeError(f"batch.{name} is not replaced; keep the other array in a variable, or change this one")


def new_batch(size: int, settings: Settings) -> tuple[Any, ...]:
    """A batch to draw into, and its arrays: arguments of the native ring's ``adopt``."""
    tickets, weights = np.empty(size, np.int64), np.empty(size, np.float32)
    columns: list[NDArray[Any] | None] = []
    followers: list[NDArray[Any] | None] = []
    arrays: dict[str, NDArray[Any]] = {}
    for field in settings.fields:
        is_return = settings.is_linked and field.name == "reward"
        has_next = field.name in settings.next_of
        columns.append(None if is_return else np.empty((size, *field.shape), field.dtype))
        followers.append(np.empty((size, *field.shape), field.dtype) if has_next else None)
        if (column := columns[-1]) is not None:
            arrays[field.name] = column
        if (follower := followers[-1]) is not None:
            arrays[f"next_{field.name}"] = follower
    if settings.is_linked:
        arrays["reward"], arrays["discount"] = np.empty(size, np.float32), np.empty(size, np.float32)
        arrays["terminated"] = np.empty(size, np.bool_)
    returns = tuple(arrays[name] for name in ("reward", "discount", "terminated")) if settings.is_linked else ()
    batch = Batch(tickets, weights, arrays)
    return batch, [arrays], tickets, weights, returns, tuple(columns), tuple(followers)
