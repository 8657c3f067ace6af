"""The rows that one forward pass answers: those of some groups that act at their present step."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """

    def __init__(self, store: SlotStore, groups: NDArray[np.int64]) -> None:
        self._store = store
        self._group_rows = store.topology.group_rows
        self.groups = groups
        self.slots: NDArray[np.int64] = store.group_slot[groups]
        self.steps: NDArray[np.int64] = store.group_step[groups]
        self.rows: NDArray[np.int64] | None = None
        acts = store.arrays.get(ACTS)
        if acts is not None:
            flags = acts[self.slots, self.steps].reshape(-1)
            if not flags.all():
                self.rows = np.flatnonzero(flags)

    @property
    def num_rows(self) -> int:
        """m, the number of rows that act."""
        return len(self.groups) * self._group_rows if self.rows is None else len(self.rows)

    @property
    def side_by_side(self) -> slice | None:
        """The rows that act, if they are all or follow each other without a gap; else None."""
        if self.rows is None:
            return slice(0, self.num_rows)
        if not len(self.rows) or self.rows[-1] - self.rows[0] != len(self.rows) - 1:
            return None
        return slice(int(self.rows[0]), int(self.rows[-1]) + 1)

    def only(self, chosen: NDArray[np.bool_]) -> Requests:
        """Return the requests of some of these rows, given as bool ``[m]``."""
        if chosen.all():
            return self
        part = copy.copy(self)
        part.rows = (np.arange(self.num_rows) if self.rows is None else self.rows)[chosen]
        return part

    def of_all(self, values: Any) -> Any:
        """Return the rows that act of an array or tensor ``[n * B, ...]``, as ``[m, ...]``."""
        return values if self.rows is None else values[self.rows]

    def per_row(self, of_groups: NDArray[Any]) -> NDArray[Any]:
        """Repeat a number of each group, ``[n]``, for the group's rows that act, ``[m]``."""
        return of_groups.repeat(self._group_rows) if self.rows is None else of_groups[self.rows // self._group_rows]

    def read(self, array: NDArray[Any]) -> NDArray[Any]:
        """Read the present step of a slot array ``[num_slots, T(+1), B, ...]``; returns ``[m, ...]``."""
        if self.rows is None:
            return array[self.slots, self.steps].reshape(self.num_rows, *array.shape[3:])
        return array[self._place_of_rows()]

    def write(self, array: NDArray[Any], values: NDArray[Any]) -> None:
        """Write ``values [m, ...]`` to the present step of a slot array ``[num_slots, T(+1), B, ...]``."""
        if self.rows is None:
            array[self.slots, self.steps] = values.reshape(len(self.groups), self._group_rows, *array.shape[3:])
        else:
            array[self._place_of_rows()] = values.reshape(len(self.rows), *array.shape[3:])

    def fill(self, array: NDArray[Any], value: int) -> None:
        """Write one value for all of these rows to the present step of a slot array ``[num_slots, T(+1), B]``."""
        if self.rows is None:
            array[self.slots, self.steps] = value
        else:
            array[self._place_of_rows()] = value

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
        if self.rows is None:
            array[previous[has_one], step] = values.reshape(len(self.groups), self._group_rows)[has_one]
            return
        groups, rows = np.divmod(self.rows, self._group_rows)
        chosen = has_one[groups]
        array[previous[groups[chosen]], step, rows[chosen]] = values[chosen]

    def _place_of_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        assert self.rows is not None
        groups, rows = np.divmod(self.rows, self._group_rows)
        return self.slots[groups], self.steps[groups], rows
