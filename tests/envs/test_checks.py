"""Checks of every group step: which rewards and masks are read, and what the message says of others."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.checks import RowChecks, as_number, check_fit, invalid_reward, shown
from rollmill.envs.errors import InvalidActionMask, InvalidReward, NonFiniteObservation, UnsupportedSpace
from rollmill.envs.spaces import ObservationCodec
from rollmill.envs.views import ObservationView
from rollmill.specs import ActionSpec, BoxHead, CategoricalHead

SPACE = spaces.Dict(a=spaces.Box(-1, 1, (2, 2), np.float32), b=spaces.Box(0, 255, (3,), np.uint8))
ACTION = ActionSpec(
    heads=(CategoricalHead(n=2), BoxHead(low=(-1.0,), high=(1.0,), shape=(1,)), CategoricalHead(n=3)),
    structure="tuple",
)
HUGE = 10**400


class Speechless:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def checks(*, check_finite: bool = True) -> RowChecks:
    return RowChecks("test/env", ObservationCodec(SPACE), ACTION, 8, check_finite)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (2, 2.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.array([[3]], np.int8), 3.0),
        ([1.5], 1.5),
        (Fraction(1, 4), 0.25),
    ],
)
def test_a_number_or_an_array_of_one_is_a_number(reward: Any, number: float) -> None:
    found = as_number(reward)
    assert type(found) is float
    assert found == number


@pytest.mark.parametrize("reward", ["1", b"1", np.str_("1"), 1j, None, {}, [1.0, 2.0], [], HUGE, np.array(["2"])])
def test_what_is_no_number_raises(reward: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        as_number(reward)


def test_values_are_shown_shortly() -> None:
    assert shown([1, 2]) == "[1, 2]"
    assert shown("x" * 78) == repr("x" * 78)
    assert shown("x" * 79) == "'" + "x" * 76 + "..."
    assert shown(10**5000) == "(too long to show)"
    assert shown(Speechless()) == "(without a repr)"


def test_the_error_of_a_reward_names_its_environment_value_and_time() -> None:
    assert str(invalid_reward("environment 3 of e", "1", " at group step 5")) == (
        "environment 3 of e gave the reward '1' of type str at group step 5: one real number that float32 holds is "
        "needed (a float, an integer, or an array of one of them); return such a number from its step"
    )


# ----------------------------------------------------------------------------------------------------------- rewards


@pytest.mark.parametrize(
    "rewards", [[1.0, 2, True], [np.float64(1), np.int32(2), np.bool_(True)], [np.array([1]), [2.0], np.ones((1, 1))]]
)
def test_rewards_of_any_kind_of_number_are_written(rewards: Any) -> None:
    into = np.full(3, np.nan, np.float32)
    checks().rewards(rewards, into, step=4)
    assert into.tolist() == [1.0, 2.0, 1.0]


@pytest.mark.parametrize("wrong", ["1", HUGE, None, np.zeros(2)])
def test_the_first_reward_that_is_no_number_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidReward, match=r"^environment 9 of test/env gave the reward .* at group step 4:"):
        checks().rewards([1.0, wrong, wrong], np.zeros(3, np.float32), step=4)


@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint8, np.float16, np.float64, object])
def test_a_batch_of_rewards_is_written(dtype: Any) -> None:
    into = np.full(3, np.nan, np.float32)
    checks().reward_batch(np.array([1, 0, 1], dtype), into, step=4)
    assert into.tolist() == [1.0, 0.0, 1.0]
    checks().reward_batch([2.0, 3, np.float32(4)], into, step=4)
    assert into.tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (1.0, r"test/env gave rewards of shape \(\) at group step 4: shape \(3,\) is needed"),
        (np.zeros((3, 1)), r"rewards of shape \(3, 1\)"),
        (None, r"rewards of shape \(\)"),
        (np.array(["1", "2", "3"]), "environment 8 of test/env gave the reward '1' of type str"),
        ([1.0, None, 2.0], "environment 9 of test/env gave the reward None"),
        ([1.0, 2.0, [3.0, 4.0]], r"environment 10 of test/env gave the reward \[3.0, 4.0\]"),
    ],
)
def test_a_batch_that_is_none_of_rewards_raises(rewards: Any, message: str) -> None:
    with pytest.raises(InvalidReward, match=message):
        checks().reward_batch(rewards, np.zeros(3, np.float32), step=4)


def test_finite_rewards_that_float32_cannot_hold_are_told_from_infinite_ones() -> None:
    stored = np.array([0, np.inf, np.nan], np.float32)
    with pytest.raises(NonFiniteObservation, match=r"environment 9 of test/env gave 1 non-finite value\(s\) as reward"):
        checks().reward(stored, 6, [0.0, np.inf, np.nan])
    with pytest.raises(NonFiniteObservation, match=r"at group step 6 \(first: inf\).* set env.check_finite to false"):
        checks().reward(stored, 6)
    with pytest.raises(InvalidReward, match=r"environment 9 of test/env gave the reward 1e\+300 of type float"):
        checks().reward(stored, 6, [0.0, 1e300, np.nan])
    checks(check_finite=False).reward(stored, 6, [0.0, 1e300, np.nan])
    checks().reward(np.zeros(3, np.float32), 6)


# ------------------------------------------------------------------------------------------------------ observations


def view() -> ObservationView:
    observation = {"a": np.zeros((3, 2, 2), np.float32), "b": np.zeros((3, 3), np.uint8)}
    return ObservationView(observation, None, np.zeros(3, bool))


def test_an_entry_that_is_not_finite_is_named() -> None:
    into = view()
    checks().observation(into, 5)
    into.observation["a"][1, 0, 1], into.observation["a"][1, 1, 1] = -np.inf, np.nan
    expected = (
        r"^environment 9 of test/env gave 2 non-finite value\(s\) as observation 'a' at group step 5 "
        r"\(first: -inf\); training needs finite numbers: fix the environment, or set env.check_finite to false"
    )
    with pytest.raises(NonFiniteObservation, match=expected):
        checks().observation(into, 5)
    checks(check_finite=False).observation(into, 5)


A, B = np.ones((2, 2), np.float32), np.array([1, 2, 3], np.uint8)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"a": np.zeros(3), "b": B}, r"observation 'a' does not fit .*: it has shape \(3,\); fix the environment's"),
        ({"a": A}, r"observation 'b' does not fit .*: there is no such entry in a dict \(KeyError\('b'\)\);"),
        ({"a": A, "b": B + 0.5}, "observation 'b' does not fit .*: it is of float64, which would be truncated"),
        ({"a": None, "b": B}, r"observation 'a' does not fit .*: it has shape \(\);"),
    ],
)
def test_an_observation_that_does_not_fit_is_named(observation: Any, message: str) -> None:
    with pytest.raises(UnsupportedSpace, match=rf"^environment 9 of test/env at group step 5: {message}"):
        checks().write_row(observation, 1, view(), 5)
    with pytest.raises(UnsupportedSpace, match=rf"^test/env at its first reset: {message}"):
        check_fit(ObservationCodec(SPACE), observation, "test/env", " at its first reset")


def test_a_batch_of_observations_that_does_not_fit_is_named() -> None:
    message = r"^test/env at group step 5: observation 'b' does not fit .*: the batch of 3 rows has shape \(2, 3\);"
    with pytest.raises(UnsupportedSpace, match=message):
        checks().write_batch({"a": np.zeros((3, 2, 2)), "b": np.zeros((2, 3))}, view(), 5)


def test_observations_that_fit_are_written() -> None:
    into = view()
    checks().write_row({"a": A, "b": B}, 1, into, 5)
    assert into.observation["a"].sum(axis=(1, 2)).tolist() == [0, 4, 0]
    checks().write_batch({"a": np.stack([A] * 3), "b": np.stack([B] * 3)}, into, 5)
    assert into.observation["b"].tolist() == [[1, 2, 3]] * 3
    check_fit(ObservationCodec(SPACE), {"a": A, "b": B}, "test/env", " at its first reset")


# ------------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize(
    "raw",
    [
        np.array([1, 0, 0, 1, 1], np.int8),
        [True, False, False, True, True],
        (1, 0, 0, 1, 1),
        (np.array([1, 0]), np.array([0, 1, 1])),
        [[1, 0], [0, 1, 1]],
        np.array([[1, 0, 0, 1, 1]]),
    ],
    ids=str,
)
def test_a_mask_is_one_array_or_one_for_each_head(raw: Any) -> None:
    mask = checks().read_mask(raw, 0)
    assert mask.dtype == bool
    assert mask.tolist() == [True, False, False, True, True]


@pytest.mark.parametrize(("raw", "size"), [(np.ones(4), 4), (([1, 1], [1, 1]), 4), (1, 1), ((), 0), ([], 0)])
def test_a_mask_of_another_size_raises(raw: Any, size: int) -> None:
    expected = f"^environment 9 of test/env gave an action mask of {size} entries: 5 are needed, one for each choice"
    with pytest.raises(InvalidActionMask, match=expected):
        checks().read_mask(raw, 1)


def test_a_head_without_a_choice_is_named() -> None:
    mask = np.ones((3, 5), bool)
    checks().masks(mask, 7)
    mask[2, 2:] = False
    with pytest.raises(
        InvalidActionMask, match=r"^environment 10 of test/env allows no choice of action head 1 at group step 7"
    ):
        checks().masks(mask, 7)


def test_ended_rows_allow_everything_of_heads_that_were_wholly_forbidden() -> None:
    mask = np.zeros((3, 5), bool)
    mask[0, 3] = mask[1, 0] = True
    checks().relax(mask, [0, 1])
    assert mask.astype(int).tolist() == [[1, 1, 0, 1, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0]]


def test_a_mask_that_is_suddenly_missing_is_told() -> None:
    assert str(checks().missing_mask(2)) == (
        "environment 10 of test/env gave info['action_mask'] before and does not now: give it with every reset and "
        "every step"
    )
