"""Spaces as plain data: they come back as they were, and damaged data are told."""

from __future__ import annotations

import copy
import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.space_data import decode_spaces, encode_spaces

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


def test_keys_that_are_no_text_have_no_such_form() -> None:
    space = spaces.Dict({1: CHOICE})
    assert encode_spaces(space, CHOICE) is None
    assert encode_spaces(CHOICE, space) is None


def test_bounds_that_differ_have_no_such_form_where_they_are_a_million() -> None:
    low = np.zeros(1_000_001, np.int8)
    assert encode_spaces(spaces.Box(low, low + 1, dtype=np.int8), CHOICE) is not None
    high = low + 1
    high[3] = 2
    assert encode_spaces(spaces.Box(low, high, dtype=np.int8), CHOICE) is None


def test_infinite_bounds_are_text_because_json_has_none() -> None:
    data = encode_spaces(spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(np.array([0.0, -np.inf]), 1.0, (2,), np.float64))
    assert data is not None
    assert (data["observation"]["low"], data["observation"]["high"]) == ("-inf", "inf")
    assert (data["action"]["low"], data["action"]["high"]) == ([0.0, "-inf"], 1.0)


@pytest.mark.parametrize("has_action_mask", [True, False])
def test_whether_there_are_masks_comes_back(has_action_mask: bool) -> None:
    data = encode_spaces(CHOICE, CHOICE, has_action_mask=has_action_mask)
    assert data is not None
    assert decode_spaces(data).has_action_mask is has_action_mask
    del data["has_action_mask"]  # As earlier versions wrote it.
    assert decode_spaces(data).has_action_mask is False


BOX = spaces.Box(np.array([0.0, 1.0], np.float32), 2.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "ValueError: format 2 instead of 1"),
        ({"format": None}, "format None instead of 1"),
        ({"action": None}, "these are not spaces"),
        ({"action": {"kind": "os"}}, "'os' is not a kind of space"),
        ({"action": {"kind": "discrete", "n": 0, "start": 0}}, "these are not spaces"),
        ({"action": {"kind": "discrete", "n": 2}}, "KeyError: 'start'"),
        ({"observation": {"dtype": "object"}}, "a Box of object"),
        ({"observation": {"low": [0.0]}}, "these are not spaces"),
        ({"observation": {"low": "text"}}, "these are not spaces"),
        ({"observation": {"shape": [3]}}, "these are not spaces"),
    ],
)
def test_data_that_are_not_spaces_are_told(changes: dict[str, Any], message: str) -> None:
    data = copy.deepcopy(encode_spaces(BOX, CHOICE))
    assert data is not None
    for key, value in changes.items():
        data[key] = data[key] | value if key == "observation" else value
    with pytest.raises(ValueError, match=message):
        decode_spaces(data)


@pytest.mark.parametrize("data", [None, [], {}, "spaces", 3])
def test_other_data_are_not_spaces(data: Any) -> None:
    with pytest.raises(ValueError, match="these are not spaces"):
        decode_spaces(data)
