from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.factory import probe
from rollmill.envs.space_data import decode_spaces, encode_spaces
from rollmill.evaluation.agent import load
from rollmill.evaluation.saved_spaces import SPACES_FILE, SavedSpacesError, read_spaces, write_spaces

CHOICE = spaces.Discrete(2)


class Shaped(spaces.Box):
    """A space of the user's own class."""


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 3), np.float32),
        spaces.Box(np.array([-np.inf, 0.1, -3], np.float32), np.array([np.inf, 1e30, 3], np.float32)),
        spaces.Box(np.array([-np.inf, 0.1]), np.array([np.inf, 1e300]), dtype=np.float64),
        spaces.Box(0, 255, (4, 84, 84), np.uint8),
        spaces.Box(np.zeros((2, 3), np.int16), np.arange(1, 7, dtype=np.int16).reshape(2, 3), dtype=np.int16),
        spaces.Box(np.array([np.iinfo(np.int64).min, 0]), np.array([np.iinfo(np.int64).max, 1]), dtype=np.int64),
        spaces.Box(0, 1, (), np.float32),
        spaces.Box(np.zeros(3, np.bool_), np.ones(3, np.bool_), dtype=np.bool_),
        spaces.Discrete(7, start=-3),
        spaces.MultiDiscrete([3, 4], start=[1, -2]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
        spaces.MultiBinary(5),
        spaces.MultiBinary([2, 3]),
        spaces.Tuple([CHOICE, spaces.Dict(z=CHOICE, a=spaces.Box(0, 1, (1,)))]),
        spaces.Dict([("z", CHOICE), ("a", spaces.Tuple([CHOICE]))]),
    ],
    ids=str,
)
def test_a_space_comes_back_as_it_was(space: gym.Space[Any]) -> None:
    data = json.loads(json.dumps(encode_spaces(space, CHOICE), allow_nan=False))
    found = decode_spaces(data)
    assert found.observation == space
    assert found.action == CHOICE
    if isinstance(space, spaces.Dict):
        assert isinstance(found.observation, spaces.Dict)
        assert list(found.observation.spaces) == list(space.spaces)  # The order of the network's inputs.


def test_a_space_of_the_users_own_class_is_kept_as_what_it_is() -> None:
    data = encode_spaces(Shaped(0, 1, (2,)), CHOICE)
    assert decode_spaces(data).observation == spaces.Box(0, 1, (2,))


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Tuple([spaces.Sequence(CHOICE)]), spaces.Graph(CHOICE, None)])
def test_what_has_no_such_form_is_not_kept(space: gym.Space[Any]) -> None:
    assert encode_spaces(space, CHOICE) is None


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
