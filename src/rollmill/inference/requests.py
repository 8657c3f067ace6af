"""The rows that one forward pass answers: those of some groups that act at their present step."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.storage.slots import ACTS, NO_SLOT, SlotStore


class Requests:
    """Rows of groups, and where their steps stand in the slots.

    Args:
        store: The slots.
        groups: int64 ``[n]``.

    Attributes:
        groups: As given.
        slots: int64 ``[n]``, the slot of each group.
        steps: int64 ``[n]``, t of each group.
        rows: int64 ``[m]``, the rows that act, as indices into all ``n * B`` rows; None where all of them do.
        num_rows: m, the number of rows that act.
        side_by_side: The rows that act, if they follow each other without a gap in the only group; else None.
    """

    rows: NDArray[np.int64] | None
    num_rows: int
    side_by_side: slice | None

    def __init__(self, store: SlotStore, groups: NDArray[np.int64]) -> None:
        self._store = store
        self._group_rows = store.topology.group_rows
        self.groups = groups
        self.slots: NDArray[np.int64] = store.group_slot[groups]
        self.steps: NDArray[np.int64] = store.group_step[groups]
        rows = None
        acts = store.arrays.get(ACTS)
        if acts is not None:
            flags = acts[self.slots, self.steps].reshape(-1)
            if not flags.all():
                rows = np.flatnonzero(flags)
        self._locate(rows)

    def by_player(self, players: NDArray[Any]) -> Split:
        """Split the rows by who plays them; ``players`` is ``[m]``."""
        # Players change at most once in an episode, and the split takes as long as a layer for a few rows.
        found = _split(players.tobytes(), players.dtype, None if self.rows is None else self.rows.tobytes())
        if len(found.rows) == 1:
            return Split([(found.players[0], found.chosen[0], self)], None)
        parts = []
        for player, chosen, rows in zip(found.players, found.chosen, found.rows, strict=True):
            part = copy.copy(self)
            part._locate(rows)
            parts.append((player, chosen, part))
        return Split(parts, found.order)

    def of_all(self, values: Any) -> Any:
        """Return the rows that act of an array or tensor ``[n * B, ...]``, as ``[m, ...]``."""
        if self.side_by_side is not None:
            return values[self.side_by_side]
        return values if self.rows is None else values[self.rows]

    def per_row(self, of_groups: NDArray[Any]) -> NDArray[Any]:
        """Repeat a number of each group, ``[n]``, for the group's rows that act, ``[m]``."""
        return of_groups.repeat(self._group_rows) if self.rows is None else of_groups[self.rows // self._group_rows]

    def read(self, array: NDArray[Any]) -> NDArray[Any]:
        """Copy the present step of a slot array ``[num_slots, T(+1), B, ...]``; returns ``[m, ...]``."""
        found: NDArray[Any] = array[self._place].reshape(self.num_rows, *array.shape[3:])
        return found if self.side_by_side is None else found.copy()

    def write(self, array: NDArray[Any], values: NDArray[Any]) -> None:
        """Write ``values [m, ...]`` to the present step of a slot array ``[num_slots, T(+1), B, ...]``."""
        array[self._place] = values.reshape(*self._shape, *array.shape[3:])

    def fill(self, array: NDArray[Any], value: NDArray[Any] | int) -> None:
        """Write one value for all of these rows, or ``[m]``, to the present step of ``[num_slots, T(+1), B]``."""
        array[self._place] = value.reshape(self._shape) if isinstance(value, np.ndarray) else value

    def write_behind(self, array: NDArray[Any], values: NDArray[Any], step: int) -> None:
        """Write ``values [m]`` to a step of the slots that the groups have just filled, where there are such slots.

        Args:
            array: ``[num_slots, T(+1), B]``.
            values: One for each row that acts.
            step: The step.
        """
        previous = self._store.group_previous_slot[self.groups]
        has_one = previous != NO_SLOT
        if not has_one.any():
            return
        if self.side_by_side is not None:
            array[previous[0], step, self.side_by_side] = values
            return
        if self.rows is None:
            array[previous[has_one], step] = values.reshape(len(self.groups), self._group_rows)[has_one]
            return
        groups, rows = np.divmod(self.rows, self._group_rows)
        chosen = has_one[groups]
        array[previous[groups[chosen]], step, rows[chosen]] = values[chosen]

    def _locate(self, rows: NDArray[np.int64] | None) -> None:
        """Find where these rows stand: an index of slot arrays, and the shape ``[...]`` of what it finds."""
        self.rows = rows
        self.num_rows = len(self.groups) * self._group_rows if rows is None else len(rows)
        self.side_by_side = None
        self._place: tuple[Any, ...] = self.slots, self.steps
        self._shape: tuple[int, ...] = (len(self.groups), self._group_rows) if rows is None else (len(rows),)
        if len(self.groups) == 1 and (side_by_side := self._side_by_side(rows)) is not None:
            # A view: quicker than lists of indices.
            self.side_by_side = side_by_side
            self._place, self._shape = (int(self.slots[0]), int(self.steps[0]), side_by_side), (self.num_rows,)
        elif rows is not None:
            groups, rows = np.divmod(rows, self._group_rows)
            self._place = self.slots[groups], self.steps[groups], rows

    def _side_by_side(self, rows: NDArray[np.int64] | None) -> slice | None:
        if rows is None:
            return slice(0, self._group_rows)
        if not len(rows) or rows[-1] - rows[0] != len(rows) - 1:
            return None
        return slice(int(rows[0]), int(rows[-1]) + 1)


@dataclass(frozen=True)
class Split:
    """Rows by who plays them.

    Attributes:
        parts: A player, bool ``[m]`` (which rows are its; do not change it), and the requests of these rows.
        order: int64 ``[m]``: the parts' results, one after another, indexed by it are in the rows' order; None if they
            are in that order already.
    """

    parts: list[tuple[int, NDArray[np.bool_], Requests]]
    order: Tensor | None


class _Places(NamedTuple):
    players: list[int]
    chosen: list[NDArray[np.bool_]]
    rows: list[NDArray[np.int64]]
    order: Tensor | None


@lru_cache(maxsize=1024)
def _split(players: bytes, dtype: np.dtype[Any], rows: bytes | None) -> _Places:
    of_row = np.frombuffer(players, dtype)
    all_rows = np.arange(len(of_row)) if rows is None else np.frombuffer(rows, np.int64)
    who = np.unique(of_row).tolist()
    chosen = [of_row == player for player in who]
    order = np.argsort(np.argsort(of_row, kind="stable"), kind="stable")
    is_ordered = bool((order == np.arange(len(order))).all())
    return _Places(who, chosen, [all_rows[each] for each in chosen], None if is_ordered else torch.from_numpy(order))
