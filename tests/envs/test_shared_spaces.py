"""Spaces that agents with different spaces share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.envs.agent_games import Crowd

from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.shared_spaces import SharedSpaces, mask_in


class WithSpaces(Crowd):
    """Agents with the spaces that a test gives."""

    def __init__(self, observations: list[Any], actions: list[Any]) -> None:
        super().__init__()
        self.possible_agents = [f"agent_{index}" for index in range(len(observations))]
        self._spaces = dict(zip(self.possible_agents, zip(observations, actions, strict=True), strict=True))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][1]


def shared(observations: list[spaces.Space[Any]], actions: list[spaces.Space[Any]]) -> SharedSpaces:
    return SharedSpaces("test", WithSpaces(observations, actions))


def test_equal_spaces_are_taken_as_they_are() -> None:
    box, choice = spaces.Box(0, 1, (2, 3), np.float32), spaces.Discrete(3)
    found = shared([box, box], [choice, choice])
    assert found.observation is box
    assert found.action is choice
    assert found.own_mask(None, 0) is None
    observation = np.ones((2, 3))
    assert found.pad(observation, 1) is observation


def test_boxes_are_padded_behind_with_zeros_that_the_bounds_allow() -> None:
    found = shared(
        [spaces.Box(1, 2, (2, 3), np.float32), spaces.Box(-5, -4, (4, 1), np.float32)], [spaces.Discrete(2)] * 2
    )
    assert found.observation == spaces.Box(-5, 2, (4, 3), np.float32)
    padded = found.pad(np.full((2, 3), 1.5, np.float32), 0)
    assert padded.shape == (4, 3)
    assert padded in found.observation
    np.testing.assert_array_equal(padded[:2], 1.5)
    np.testing.assert_array_equal(padded[2:], 0)


def test_entries_of_dicts_are_padded_one_by_one_and_masks_forbid_the_padding() -> None:
    def entry(size: int, choices: int) -> spaces.Dict:
        return spaces.Dict(
            {
                "observation": spaces.Box(-1, 1, (size,), np.float32),
                "action_mask": spaces.Box(0, 1, (choices,), np.int8),
            }
        )

    found = shared([entry(2, 3), entry(4, 5)], [spaces.Discrete(3), spaces.Discrete(5)])
    given = {"observation": np.ones(2, np.float32), "action_mask": np.array([1, 0, 1], np.int8)}
    padded = found.pad(given, 0)
    assert padded["observation"].tolist() == [1, 1, 0, 0]
    assert found.own_mask(mask_in(given, {}), 0).tolist() == [True, False, True, False, False]
    assert found.own_mask(mask_in(padded, {}), 0).tolist() == [True, False, True, False, False]
    assert found.own_mask(None, 0).tolist() == [True, True, True, False, False]
    assert found.own_mask(None, 1).all()
    # The checks report masks of another length, and the codec a missing entry.
    assert [len(found.own_mask(np.ones(length), agent)) for length, agent in ((2, 0), (4, 0), (3, 1))] == [2, 4, 3]
    assert found.pad({"observation": given["observation"]}, 0).keys() == {"observation"}


def test_the_largest_integers_are_still_bounds_of_integers() -> None:
    for dtype in (np.int64, np.uint64):
        boxes = [spaces.Box(0, np.iinfo(dtype).max, (size,), dtype) for size in (3, 5)]
        found = shared([*boxes], [spaces.Discrete(2)] * 2).observation
        assert isinstance(found, spaces.Box)
        assert (int(found.low.min()), int(found.high.max())) == (0, np.iinfo(dtype).max)


def test_a_mask_may_stand_in_the_info() -> None:
    assert mask_in(np.zeros(2), {"action_mask": [1, 0]}) == [1, 0]
    assert mask_in(np.zeros(2), {}) is None
    assert mask_in({"obs": 1}, None) is None


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (
            [spaces.Box(0, 1, (2,), np.float32), spaces.Box(0, 255, (2, 2), np.uint8)],
            [spaces.Discrete(2)] * 2,
            "observation spaces differ",
        ),
        (
            [spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)],
            [spaces.Discrete(2)] * 2,
            "observation spaces differ",
        ),
        (
            [spaces.Discrete(2)] * 2,
            [spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32)],
            "action spaces differ",
        ),
        ([spaces.Discrete(2)] * 2, [spaces.Discrete(2), spaces.Discrete(3, start=1)], "action spaces differ"),
        ([spaces.Discrete(2), 7], [spaces.Discrete(2)] * 2, r"observation_space\('agent_1'\) is int"),
    ],
)
def test_spaces_that_cannot_share_a_row_are_refused(observations: Any, actions: Any, message: str) -> None:
    with pytest.raises(UnsupportedSpace, match=message):
        shared(observations, actions)
