"""Observations that do not fit their space: which entry it is, what was given, and what is needed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollmill.evaluation.observations import ObservationError, check_observation

BOX = spaces.Box(-1, 1, (2, 3), np.float32)
NESTED = spaces.Dict(
    picture=spaces.Box(0, 255, (4, 4), np.uint8),
    deep=spaces.Dict(pair=spaces.Tuple([spaces.Discrete(3), BOX])),
    action_mask=spaces.MultiBinary(2),
)


def fitting(**changes: Any) -> dict[str, Any]:
    pair = (np.int64(2), np.zeros((2, 3)))
    return {"picture": np.zeros((4, 4), np.uint8), "deep": {"pair": pair}, **changes}


def stacked(value: Any, rows: int) -> Any:
    if isinstance(value, dict):
        return {key: stacked(part, rows) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(stacked(part, rows) for part in value)
    return np.stack([np.asarray(value)] * rows)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (NESTED, fitting()),  # The mask is given elsewhere, or not at all.
        (NESTED, fitting(action_mask=[1, 1], debug="anything")),
        (BOX, np.zeros((2, 3), np.int64)),
        (BOX, torch.zeros(2, 3)),
        (spaces.Box(-1, 1, (), np.float32), np.float32(0.5)),
        (spaces.Box(-1, 1, (1,), np.float32), 0.5),
        (spaces.Box(-1, 1, (), np.float32), [0.5]),
        (spaces.Discrete(3), np.array([2])),
        (spaces.Discrete(3, start=-1), -1),
        (spaces.MultiDiscrete([2, 4]), [1, 3]),
        (spaces.MultiBinary(3), np.zeros(3, bool)),
        (spaces.Tuple([BOX, BOX]), (np.zeros((2, 3)), np.zeros((2, 3)))),
    ],
    ids=lambda value: str(value)[:40],
)
def test_observations_that_fit_are_taken_alone_and_in_batches(space: gym.Space[Any], observation: Any) -> None:
    check_observation(space, observation, None)
    check_observation(space, stacked(observation if "debug" not in str(observation) else fitting(), 5), 5)


def test_lists_count_as_arrays_and_tuples() -> None:
    check_observation(BOX, [[0, 1, 2], [3, 4, 5]], None)
    check_observation(spaces.Tuple([BOX, spaces.Discrete(2)]), [np.zeros((2, 3)), 1], None)


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (BOX, np.zeros((3, 2)), r"^the observation has shape \(3, 2\); \(2, 3\) is needed \(Box\("),
        (BOX, np.zeros((1, 2, 3)), r"the observation has shape \(1, 2, 3\); \(2, 3\) is needed"),
        (spaces.Discrete(2), np.zeros(2), r"has shape \(2,\); \(\) is needed"),
        (spaces.Discrete(2), np.zeros((1, 1)), r"has shape \(1, 1\); \(\) is needed"),
        (BOX, [[1.0], [1.0, 2.0]], r"the observation cannot be read as an array \(.*\); give a NumPy array"),
        (BOX, torch.zeros(2, 3, requires_grad=True), "the observation cannot be read as an array"),
        (BOX, np.full((2, 3), "a"), "the observation has dtype <U1; numbers are needed"),
        (BOX, np.full((2, 3), None), "the observation has dtype object; numbers are needed"),
        (BOX, np.zeros((2, 3), complex), "the observation has dtype complex128; numbers are needed"),
        (BOX, np.full((2, 3), np.nan), "the observation holds NaN or infinity; give finite numbers"),
        (BOX, np.full((2, 3), -np.inf), "the observation holds NaN or infinity"),
        (NESTED, 3, "^the observation is int; a dict is needed, with 'picture', 'deep', 'action_mask'$"),
        (NESTED, {}, "^the observation has no entry 'picture'; entries given: none; needed: 'picture', 'deep', 'a"),
        (NESTED, {"deep": 0, "other": 1}, "has no entry 'picture'; entries given: 'deep', 'other'; needed:"),
        (NESTED, fitting(deep=(1, 2)), "^entry 'deep' is tuple; a dict is needed, with 'pair'"),
        (NESTED, fitting(deep={"pair": 5}), "^entry 'deep/pair' is int; a tuple of 2 is needed"),
        (NESTED, fitting(deep={"pair": (1,)}), "^entry 'deep/pair' is 1 entries; a tuple of 2 is needed"),
        (
            NESTED,
            fitting(deep={"pair": (1, np.zeros(6))}),
            r"^entry 'deep/pair/1' has shape \(6,\); \(2, 3\) is needed",
        ),
        (spaces.Tuple([BOX]), (np.zeros(2),), r"^entry '0' has shape \(2,\)"),
        (spaces.Discrete(5), 5, r"^the observation holds 5, which is no value of Discrete\(5\)$"),
        (spaces.Discrete(5, start=1), 0, "holds 0, which is no value of"),
        (spaces.Discrete(5), 1.5, "holds 1.5, which is no value of"),
        (spaces.MultiDiscrete([2, 4]), [1, 4], r"holds 4, which is no value of MultiDiscrete\(\[2 4\]\)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_does_not_fit_is_named(space: gym.Space[Any], observation: Any, message: str) -> None:
    with pytest.raises(ObservationError, match=message):
        check_observation(space, observation, None)


def test_a_batch_has_as_many_rows_as_are_needed_in_every_entry() -> None:
    with pytest.raises(ObservationError, match=r"the observation has shape \(2, 3\); \(4, 2, 3\) is needed"):
        check_observation(BOX, np.zeros((2, 3)), 4)
    batch = stacked(fitting(), 4)
    batch["picture"] = batch["picture"][:3]
    with pytest.raises(ObservationError, match=r"entry 'picture' has shape \(3, 4, 4\); \(4, 4, 4\) is needed"):
        check_observation(NESTED, batch, 4)
    check_observation(spaces.Discrete(3), np.zeros((4, 1)), 4)  # As one number for each row.
    with pytest.raises(ObservationError, match=r"has shape \(\); \(4,\) is needed"):
        check_observation(spaces.Discrete(3), 1, 4)


def test_numbers_that_are_not_finite_may_be_allowed() -> None:
    check_observation(BOX, np.full((2, 3), np.nan), None, finite=False)
    with pytest.raises(ObservationError, match="has shape"):
        check_observation(BOX, np.full(2, np.nan), None, finite=False)


def test_a_mask_is_an_entry_where_it_is_nested() -> None:
    space = spaces.Dict(inner=spaces.Dict(action_mask=spaces.MultiBinary(2)))
    with pytest.raises(ObservationError, match="entry 'inner' has no entry 'action_mask'"):
        check_observation(space, {"inner": {}}, None)


def test_of_many_entries_the_first_are_named() -> None:
    space = spaces.Dict([(f"e{i}", spaces.Discrete(2)) for i in range(11)])
    given = {f"g{i}": 0 for i in range(10)}
    expected = f"entries given: {', '.join(map(repr, list(given)[:8]))}; needed: 'e0', .*'e7' and 3 more$"
    with pytest.raises(ObservationError, match=expected):
        check_observation(space, given, None)
