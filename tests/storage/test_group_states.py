"""The folder of groups' states: clearing it, and verifying who wrote a state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollmill.runtime.plain_data import encode
from rollmill.runtime.signatures import Verdict
from rollmill.storage.checkpoint_file import CheckpointError
from rollmill.storage.group_states import GroupState, GroupStates

STATE = GroupState(b"pickled", {"obs": np.zeros((2, 3), np.float32)}, None)


def test_a_link_in_the_place_of_the_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "old" / "4"
    elsewhere.mkdir(parents=True)
    (elsewhere / "group-0").write_bytes(b"theirs")
    (tmp_path / ".groups").symlink_to("old")
    states = GroupStates(tmp_path / ".groups")
    states.clear()
    assert not (tmp_path / ".groups").is_symlink()
    assert (elsewhere / "group-0").read_bytes() == b"theirs"
    states.clear()
    states.write(4, 0, STATE)
    states.clear()
    assert not (tmp_path / ".groups").exists()


def test_what_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = GroupStates(tmp_path / ".groups")
    states.write(4, 0, STATE)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.unlink", refuse)
    with pytest.raises(CheckpointError, match=r"\.groups cannot be removed \(Operation not permitted\)"):
        states.clear()


def test_reading_verifies_who_pickled_the_environments(tmp_path: Path) -> None:
    states = GroupStates(tmp_path / ".groups")
    states.write(4, 0, STATE)
    assert states.read(4, 0)[1] is Verdict.VALID
    states.write_packed(4, 1, encode((STATE.environments, dict(STATE.first), None, None)))
    state, verdict = states.read(4, 1)
    assert state.environments == b"pickled"
    assert verdict is Verdict.UNSIGNED
