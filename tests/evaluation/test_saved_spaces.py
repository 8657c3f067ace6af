from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.factory import probe
from rollmill.evaluation.agent import load
from rollmill.evaluation.saved_spaces import SPACES_FILE, SavedSpacesError, read_spaces, write_spaces

CHOICE = spaces.Discrete(2)


def test_an_agent_acts_without_its_environment(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run("test/mixed")
    spec = probe(load(run_dir).snapshot.env)
    assert spec.spaces is not None
    write_spaces(run_dir, spec.spaces)
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    shown = {
        "where": np.int64(2),
        "deep": {"vector": np.array([0.25, -0.5])},
        "pair": (np.zeros(1, np.float32), np.int64(1)),
        "action_mask": np.array([0, 1, 0], np.int8),
    }
    action = load(run_dir).act(shown, deterministic=True)
    assert action[0] == 6
    assert action[1].shape == (2,)
    (run_dir / SPACES_FILE).unlink()
    with pytest.raises(Exception, match="test/mixed"):
        load(run_dir)


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"format": 2}', '{"format": 1, "observation": {"kind": "os"}}'])
def test_damaged_spaces_are_told(tmp_path: Path, damage: str) -> None:
    assert read_spaces(tmp_path) is None
    (tmp_path / SPACES_FILE).write_text(damage)
    with pytest.raises(SavedSpacesError, match=r"spaces\.json does not hold the spaces of a run.*remove it"):
        read_spaces(tmp_path)
