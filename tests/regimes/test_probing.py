"""The process that determines sizes before memory is allocated."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.learning.in_flight import InFlight
from rollmill.regimes.probing import _unpack_states
from rollmill.runtime.plain_data import MalformedMessageError, encode
from rollmill.runtime.ranks import Ranks
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

SETTINGS = {"num_envs": 2, "rollout_length": 8, "rollout.num_workers": 1, "regime": "lockstep"}


class Attack:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("iteration", [4, "4", "../4", -1, True])
def test_checkpoint_without_states_loads_no_state_files(tmp_path: Path, iteration: Any) -> None:
    """Every first checkpoint has a signature over no states, which must not validate other files."""
    config = rollmill.make_config("gym/CartPole-v1", SETTINGS).resolved()
    folder = tmp_path / "checkpoints"
    planted = folder / "old" / str(iteration) / "group-0"
    planted.parent.mkdir(parents=True)
    planted.write_bytes(encode((pickle.dumps(Attack(tmp_path / "marker")), {}, None, None)))
    (folder / ".groups").symlink_to("old")
    state = InFlight(0, [], []).pack()
    state["iteration"] = iteration
    CheckpointStore(folder, CheckpointConfig()).save({"in_flight": state}, agent_steps=7)
    with pytest.raises(MalformedMessageError, match=r"is damaged or was changed; restore it"):
        _unpack_states(config, tmp_path, Ranks(), trust=False)
