from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from rollmill.envs.actions import ActionCodec
from rollmill.envs.spaces import action_spec

SPACES = {
    "discrete": spaces.Discrete(4),
    "discrete from 3": spaces.Discrete(4, start=3),
    "multidiscrete": spaces.MultiDiscrete([2, 5, 3]),
    "multidiscrete from": spaces.MultiDiscrete([2, 5], start=[1, -3]),
    "multibinary": spaces.MultiBinary(3),
    "box": spaces.Box(-2.0, 3.0, (2, 2), np.float32),
    "box of doubles": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 0.5]), dtype=np.float64),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([2, 2]))),
    "dict": spaces.Dict({"move": spaces.Discrete(3, start=1), "aim": spaces.Box(0, 9, (1,), np.float32)}),
}


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]


@pytest.mark.parametrize("box", ["clip", "tanh", "scale"])
def test_decoded_actions_are_in_the_space(space, box, harness):
    spec = action_spec(space)
    codec = ActionCodec(spec, box=box)
    discrete, continuous = harness.random_actions(spec, 50, np.random.default_rng(0))
    if continuous is not None:
        continuous *= 20
    rows = codec.decode_rows(discrete, continuous)
    assert len(rows) == 50
    assert all(space.contains(row) for row in rows)
    batched = batch_space(space, 50)
    batch = codec.decode_batch(discrete, continuous)
    # MultiBinary's own dtype is int8; Gymnasium's vectors take the integers that MultiDiscrete has.
    if not isinstance(space, spaces.MultiBinary):
        assert batched.contains(batch)


def test_one_row_and_all_rows_agree(space, harness):
    spec = action_spec(space)
    codec = ActionCodec(spec)
    discrete, continuous = harness.random_actions(spec, 7, np.random.default_rng(1))
    for row, whole in enumerate(codec.decode_rows(discrete, continuous)):
        one = codec.decode_row(
            None if discrete is None else discrete[row], None if continuous is None else continuous[row]
        )
        assert type(one) is type(whole)
        for a, b in zip(leaves(one), leaves(whole), strict=True):
            np.testing.assert_array_equal(a, b)


def leaves(action):
    if isinstance(action, dict):
        return list(action.values())
    return list(action) if isinstance(action, tuple) else [action]


def test_hand_computed_hybrid_action():
    codec = ActionCodec(action_spec(SPACES["tuple"]))
    discrete = np.array([[2, 1, 0], [0, 0, 1]], np.int32)
    continuous = np.array([[0.25, -7.0], [3.0, 0.5]], np.float32)
    first, second = codec.decode_rows(discrete, continuous)
    assert first[0] == 2
    np.testing.assert_array_equal(first[1], [0.25, -1.0])
    np.testing.assert_array_equal(first[2], [1, 0])
    assert second[0] == 0
    np.testing.assert_array_equal(second[1], [1.0, 0.5])
    np.testing.assert_array_equal(second[2], [0, 1])


def test_start_is_added():
    codec = ActionCodec(action_spec(SPACES["multidiscrete from"]))
    np.testing.assert_array_equal(codec.decode_batch(np.array([[1, 4]], np.int32), None), [[2, 1]])


def test_squashing_is_tanh_then_affine():
    space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([3.0, 1.0], np.float32))
    u = np.random.default_rng(2).standard_normal((100, 2)).astype(np.float32)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    expected = low + (np.tanh(u.astype(np.float64)) + 1) / 2 * (high - low)
    np.testing.assert_allclose(ActionCodec(action_spec(space), box="tanh").decode_batch(None, u), expected, atol=1e-6)


def test_the_stored_action_is_not_changed():
    continuous = np.array([[5.0]], np.float32)
    for space in (spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-np.inf, np.inf, (1,), np.float32)):
        action = ActionCodec(action_spec(space)).decode_batch(None, continuous)
        action += 1
        assert continuous[0, 0] == 5.0


def test_scaling_is_affine():
    space = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    stored = np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]], np.float32)
    expected = [[-2.0, 0.0], [0.0, 7.5], [2.0, 10.0]]
    np.testing.assert_allclose(ActionCodec(action_spec(space), "scale").decode_batch(None, stored), expected)
    assert stored[0, 0] == -1.0, "the slot's numbers must not change"


@pytest.mark.parametrize(
    ("low", "high"), [(-np.inf, 1.0), (-np.inf, np.inf), (np.finfo(np.float32).min, np.finfo(np.float32).max)]
)
@pytest.mark.parametrize("box", ["tanh", "scale"])
def test_squashing_or_scaling_an_unbounded_box_raises(box, low, high):
    with pytest.raises(ValueError, match="needs finite bounds"):
        ActionCodec(action_spec(spaces.Box(low, high, (1,), np.float32)), box)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("box", ["clip", "tanh", "scale"])
def test_actions_stay_within_the_box_in_its_own_dtype(dtype, box):
    space = spaces.Box(-0.4, 0.4, (2,), dtype)
    action = ActionCodec(action_spec(space), box).decode_batch(None, np.array([[9.0, -9.0]], np.float32))[0]
    assert space.contains(action)


def test_a_float16_box_may_be_wider_than_its_numbers():
    space = spaces.Box(-60_000, 60_000, (1,), np.float16)
    codec = ActionCodec(action_spec(space), box="scale")
    rows = codec.decode_rows(None, np.array([[-1.0], [-0.5], [0.0], [0.5], [1.0]], np.float32))
    assert [row.item() for row in rows] == [-60_000, -30_000, 0, 30_000, 60_000]
    assert all(space.contains(row) for row in rows)


@pytest.mark.parametrize("box", ["clip", "tanh", "scale"])
def test_encoding_is_the_inverse_of_decoding(box: Any) -> None:
    space = spaces.Dict(
        {
            "gear": spaces.Discrete(5, start=-1),
            "keys": spaces.MultiBinary(3),
            "wheel": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
        }
    )
    codec = ActionCodec(action_spec(space), box)
    space.seed(0)
    samples = [space.sample() for _ in range(20)]
    batch = {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    decoded = codec.decode_batch(*codec.encode_batch(batch, 20))
    for key, values in batch.items():
        np.testing.assert_allclose(decoded[key], values, atol=1e-4)


@pytest.mark.parametrize("box", ["tanh", "scale"])
def test_a_number_with_equal_bounds_is_stored_as_0(box):
    space = spaces.Box(np.array([-1.0, 3.0], np.float32), np.array([1.0, 3.0], np.float32))
    codec = ActionCodec(action_spec(space), box)
    _, stored = codec.encode_batch(np.array([[0.0, 3.0], [0.5, 3.0]], np.float32), 2)
    np.testing.assert_array_equal(stored[:, 1], [0.0, 0.0])
    np.testing.assert_allclose(codec.decode_batch(None, stored), [[0.0, 3.0], [0.5, 3.0]], atol=1e-6)
