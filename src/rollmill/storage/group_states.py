"""What groups need to go on from an iteration, in files of their own until a checkpoint has taken them in.

Workers write them; the learner, which has all slots of an iteration only after all groups have written, puts them into
the checkpoint. A run that goes on finds them unpacked.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["GroupState", "GroupStates"]


class GroupState(NamedTuple):
    """A group at the beginning of an iteration.

    Attributes:
        environments: See ``SavableGroup.snapshot``; None where they are built anew.
        first: x_0 and what belongs to it, by the names of the slots' arrays: ``[B, ...]``.
        rnn_state: float ``[B, S]`` before x_0; None without a core.
    """

    environments: bytes | None
    first: Mapping[str, NDArray[Any]]
    rnn_state: NDArray[np.floating[Any]] | None


class GroupStates:
    """The states of a run's groups, in a folder.

    Args:
        folder: Made by the first write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, iteration: int, group: int, state: GroupState) -> None:
        """Leaves a group's state; it is there as a whole, or not at all."""
        self.write_packed(iteration, group, pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL))

    def write_packed(self, iteration: int, group: int, packed: bytes) -> None:
        """As :meth:`write`, for what :meth:`read_packed` gave."""
        path = self._path(iteration, group)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".new")
        aside.write_bytes(packed)
        os.replace(aside, path)

    def read(self, iteration: int, group: int) -> GroupState:
        """A group's state.

        Raises:
            FileNotFoundError: It was not left.
        """
        state = pickle.loads(self._path(iteration, group).read_bytes())
        assert isinstance(state, GroupState)
        return state

    def read_packed(self, iteration: int, num_groups: int) -> list[bytes] | None:
        """The states of all groups, as bytes; None where one of them has left none."""
        try:
            return [self._path(iteration, group).read_bytes() for group in range(num_groups)]
        except FileNotFoundError:
            return None

    def remove_until(self, iteration: int) -> None:
        """Forgets this iteration and those before it."""
        if self._folder.is_dir():
            for folder in self._folder.iterdir():
                if int(folder.name) <= iteration:
                    shutil.rmtree(folder, ignore_errors=True)

    def clear(self) -> None:
        """Forgets everything."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, iteration: int, group: int) -> Path:
        return self._folder / str(iteration) / f"group-{group}"
