"""The states that groups resume an iteration from, in separate files until a checkpoint includes them.

Rollout workers write them. The learner has all slots of an iteration only after all groups have written, and then puts
the states into the checkpoint. A resumed run finds them unpacked.
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

_PURPOSE = "environments of a group"


class GroupState(NamedTuple):
    """A group at the beginning of an iteration.

    Attributes:
        environments: See ``SavableGroup.snapshot``; None if they are rebuilt.
        first: x_0 with its mask and reset flags, by the names of the slots' arrays: ``[B, ...]``.
        rnn_state: float ``[B, S]`` before x_0; None without a core.
        episodes: int64 ``[envs]``, how many each environment has begun; None with one player, and in files of earlier
            versions.
    """

    environments: bytes | None
    first: Mapping[str, NDArray[Any]]
    rnn_state: NDArray[np.floating[Any]] | None
    episodes: NDArray[np.int64] | None = None

    def pack(self) -> bytes:
        """Packs the state for files, checkpoints and messages between ranks: plain data, with signed environments.

        They are signed where they are pickled, since they may cross a network before another process unpickles them.
        """
        signature = None if self.environments is None else sign(_PURPOSE, [self.environments])
        return encode((self.environments, dict(self.first), self.rnn_state, signature, self.episodes))

    @classmethod
    def unpack(cls, packed: bytes) -> tuple[GroupState, Verdict]:
        """Unpacks what :meth:`pack` packed, and verifies that this user pickled the environments; executes no code.

        Raises:
            MalformedMessageError: It was packed by another version of Rollmill, or is damaged.
        """
        try:
            environments, first, rnn_state, signature, *rest = decode(packed)
            (episodes,) = rest or [None]
        except ValueError as error:
            raise MalformedMessageError(
                f"a group's state was not written by this version of Rollmill ({error}): the checkpoint is from "
                "another version, or damaged; resume it with that version, or start a new run"
            ) from error
        state = cls(environments, first, rnn_state, episodes)
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
        """Writes a group's state atomically."""
        self.write_packed(iteration, group, state.pack())

    def write_packed(self, iteration: int, group: int, packed: bytes) -> None:
        """As :meth:`write`, for a state that :meth:`read_packed` returned."""
        path = self._path(iteration, group)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".new")
        aside.write_bytes(packed)
        os.replace(aside, path)

    def read(self, iteration: int, group: int) -> tuple[GroupState, Verdict]:
        """A group's state, and whether its environments may be unpickled; see :meth:`GroupState.unpack`.

        Raises:
            FileNotFoundError: There is none.
            MalformedMessageError: It is damaged.
        """
        return GroupState.unpack(self._path(iteration, group).read_bytes())

    def read_packed(self, iteration: int, num_groups: int) -> list[bytes] | None:
        """The packed states of all groups; None if one of them is missing."""
        try:
            return [self._path(iteration, group).read_bytes() for group in range(num_groups)]
        except FileNotFoundError:
            return None

    def remove_until(self, iteration: int) -> None:
        """Removes the states of this iteration and of those before it."""
        if self.folder.is_dir():
            for folder in self.folder.iterdir():
                if int(folder.name) <= iteration:
                    shutil.rmtree(folder, ignore_errors=True)

    def clear(self) -> None:
        """Removes all states. A symbolic link in place of the folder is removed, but not its target.

        Raises:
            CheckpointError: A file cannot be removed, which groups could mistake for their state.
        """
        try:
            if self.folder.is_symlink() or self.folder.is_file():
                self.folder.unlink()
            elif self.folder.exists():
                shutil.rmtree(self.folder)
        except OSError as error:
            raise CheckpointError(
                f"{self.folder} cannot be removed ({error.strerror}): it must be empty before a run resumes; remove "
                "it by hand, or correct its permissions"
            ) from error

    def _path(self, iteration: int, group: int) -> Path:
        return self.folder / str(iteration) / f"group-{group}"
