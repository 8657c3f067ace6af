"""What groups need to go on from an iteration, in files of their own until a checkpoint has taken them in.

Workers write them; the learner, which has all slots of an iteration only after all groups have written, puts them into
the checkpoint. A run that goes on finds them unpacked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.runtime.plain_data import MalformedMessageError, decode, encode
from rollmill.runtime.signatures import Verdict, sign, verify
from rollmill.storage.checkpoint_file import CheckpointError

__all__ = ["GroupState", "GroupStates"]

_PURPOSE = "environments of a group"


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

    def pack(self) -> bytes:
        """As files, checkpoints and messages between ranks hold it: plain data, the environments signed.

        Signed where they are pickled, since they may go over a network before another process unpickles them.
        """
        signature = None if self.environments is None else sign(_PURPOSE, [self.environments])
        return encode((self.environments, dict(self.first), self.rnn_state, signature))

    @classmethod
    def unpack(cls, packed: bytes) -> tuple[GroupState, Verdict]:
        """What :meth:`pack` packed, and whether this user's processes pickled the environments; executes nothing.

        Raises:
            MalformedMessageError: It was packed by another version of Rollmill, or is damaged.
        """
        try:
            environments, first, rnn_state, signature = decode(packed)
        except ValueError as error:
            raise MalformedMessageError(
                f"a group's state is not one that this version of Rollmill wrote ({error}): the checkpoint is of "
                "another version of Rollmill, or damaged; resume it with that version, or begin a new run"
            ) from error
        state = cls(environments, first, rnn_state)
        return state, Verdict.VALID if environments is None else verify(_PURPOSE, [environments], signature)


class GroupStates:
    """The states of a run's groups, in a folder.

    Args:
        folder: Made by the first write.

    Attributes:
        folder: As given.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, iteration: int, group: int, state: GroupState) -> None:
        """Leaves a group's state; it is there as a whole, or not at all."""
        self.write_packed(iteration, group, state.pack())

    def write_packed(self, iteration: int, group: int, packed: bytes) -> None:
        """As :meth:`write`, for what :meth:`read_packed` gave."""
        path = self._path(iteration, group)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".new")
        aside.write_bytes(packed)
        os.replace(aside, path)

    def read(self, iteration: int, group: int) -> tuple[GroupState, Verdict]:
        """A group's state, and whether its environments may be unpickled; see :meth:`GroupState.unpack`.

        Raises:
            FileNotFoundError: It was not left.
            MalformedMessageError: It is damaged.
        """
        return GroupState.unpack(self._path(iteration, group).read_bytes())

    def read_packed(self, iteration: int, num_groups: int) -> list[bytes] | None:
        """The states of all groups, as bytes; None where one of them has left none."""
        try:
            return [self._path(iteration, group).read_bytes() for group in range(num_groups)]
        except FileNotFoundError:
            return None

    def remove_until(self, iteration: int) -> None:
        """Forgets this iteration and those before it."""
        if self.folder.is_dir():
            for folder in self.folder.iterdir():
                if int(folder.name) <= iteration:
                    shutil.rmtree(folder, ignore_errors=True)

    def clear(self) -> None:
        """Forgets everything. A link in the folder's place is removed, and what it leads to is left alone.

        Raises:
            CheckpointError: Something cannot be removed, which groups might then take for their states.
        """
        try:
            if self.folder.is_symlink() or self.folder.is_file():
                self.folder.unlink()
            elif self.folder.exists():
                shutil.rmtree(self.folder)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be removed ({error.strerror}): it must be empty before a run resumes; remove "
                "it by hand, or mend its permissions"
            ) from error

    def _path(self, iteration: int, group: int) -> Path:
        return self.folder / str(iteration) / f"group-{group}"
