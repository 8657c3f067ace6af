from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.spaces import ObservationCodec, action_spec, observation_specs
from rollmill.envs.vector_group import VectorGroup

NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "pose": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3, start=5))),
        "keys": spaces.MultiBinary(4),
        "slots": spaces.MultiDiscrete([2, 3], start=[0, 7]),
        "scalar": spaces.Box(0.0, np.inf, (), np.float32),
    }
)


def test_specs_of_a_nested_space():
    specs = observation_specs(NESTED)
    assert {name: (spec.shape, spec.dtype) for name, spec in specs.items()} == {
        "image": ((4, 5, 3), "uint8"),
        "pose/0": ((2,), "float32"),
        "pose/1": ((3,), "float32"),
        "keys": ((4,), "int8"),
        "slots": ((5,), "float32"),
        "scalar": ((1,), "float32"),
    }
    assert (specs["image"].low, specs["image"].high, specs["image"].is_image) == (0, 255, True)
    assert (specs["scalar"].low, specs["scalar"].high) == (0, None)


def test_a_bare_space_is_called_obs():
    assert observation_specs(spaces.Box(-1, 1, (3,), np.float32))["obs"].shape == (3,)


def one_hot(size, index):
    return np.eye(size, dtype=np.float32)[index]


def flat(observation):
    """Flatten an observation as it is stored."""
    return {
        "image": observation["image"],
        "pose/0": observation["pose"][0].astype(np.float32),
        "pose/1": one_hot(3, observation["pose"][1] - 5),
        "keys": observation["keys"],
        "slots": np.concatenate([one_hot(2, observation["slots"][0]), one_hot(3, observation["slots"][1] - 7)]),
        "scalar": observation["scalar"].reshape(1),
    }


def test_row_and_batch_writes_agree():
    NESTED.seed(3)
    observations = [NESTED.sample() for _ in range(6)]
    batch = concatenate(NESTED, observations, create_empty_array(NESTED, 6))
    codec = ObservationCodec(NESTED)
    by_row = {name: np.full((6, *s.shape), 9, s.dtype) for name, s in codec.specs.items()}
    by_batch = {name: array.copy() for name, array in by_row.items()}
    for row, observation in enumerate(observations):
        codec.write_row(observation, row, by_row)
    codec.write(batch, by_batch)
    for name in codec.specs:
        expected = np.stack([flat(o)[name] for o in observations])
        np.testing.assert_array_equal(by_row[name], expected)
        np.testing.assert_array_equal(by_batch[name], expected)


class Sampled(gymnasium.Env):
    observation_space = NESTED
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space = copy.deepcopy(NESTED)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.left = 3
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}


def test_dict_observations_reach_the_views_through_both_groups(harness):
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    specs, action = observation_specs(NESTED), action_spec(Sampled.action_space)
    ours = harness.run(PythonGroup(Sampled, num_envs=3, seeds=[1, 2, 3]), specs, action, 12)
    vector = VectorGroup(lambda seeds: SyncVectorEnv([Sampled] * 3), seeds=[1, 2, 3])
    native = harness.run(vector, specs, action, 12)
    for name in specs:
        np.testing.assert_array_equal(ours.observation[name], native.observation[name])

    class Truncated(Sampled):
        def step(self, action):
            observation, reward, ends, _, info = super().step(action)
            return observation, reward, False, ends, info

    def same_step(seeds):
        return SyncVectorEnv([Truncated] * 3, autoreset_mode=AutoresetMode.SAME_STEP)

    shown = harness.run(VectorGroup(same_step, seeds=[1, 2, 3]), specs, action, 4)
    for name in specs:  # up to and including the first final observation
        np.testing.assert_array_equal(ours.observation[name][:4], shown.observation[name][:4])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(4),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Dict({"note": spaces.Text(4), "x": spaces.Discrete(2)}),
    ],
)
def test_observations_without_a_fixed_shape_raise(space):
    with pytest.raises(UnsupportedSpace, match="fixed shape"):
        observation_specs(space)


def test_colliding_nested_names_raise():
    twice = spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(UnsupportedSpace, match="are both called 'a/b'"):
        observation_specs(twice)


def test_observation_with_only_a_mask_raises():
    with pytest.raises(UnsupportedSpace, match="something to see"):
        observation_specs(spaces.Dict({"action_mask": spaces.MultiBinary(3)}))


def test_action_specs_of_every_kind():
    spec = action_spec(spaces.Dict({"b": spaces.Discrete(3, start=2), "a": spaces.Box(-2, 1, (2, 2), np.float32)}))
    assert spec.structure == "dict"
    assert dict(zip(spec.keys, spec.components, strict=True)) == {"b": ("discrete", 1), "a": ("box", 1)}
    assert (spec.categorical_sizes, spec.num_continuous, spec.mask_size) == ((3,), 4, 3)
    spec = action_spec(spaces.Tuple((spaces.MultiDiscrete([2, 4]), spaces.MultiBinary(2))))
    assert (spec.structure, spec.components) == ("tuple", (("multidiscrete", 2), ("multidiscrete", 2)))
    assert spec.categorical_sizes == (2, 4, 2, 2)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Box(0, 5, (2,), np.int64),
        spaces.MultiDiscrete([[2, 2]]),
        spaces.Tuple((spaces.Tuple((spaces.Discrete(2),)),)),
    ],
)
def test_unsupported_action_spaces_raise(space):
    with pytest.raises(UnsupportedSpace, match="are allowed"):
        action_spec(space)


def test_batch_space_agrees_with_gymnasium():
    # The views of a slot have the shapes of Gymnasium's own batched space.
    batched = batch_space(spaces.Box(0, 1, (2, 3), np.float32), 4)
    assert (4, *observation_specs(spaces.Box(0, 1, (2, 3), np.float32))["obs"].shape) == batched.shape


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (spaces.Box(0, 255, (4,), np.uint8), np.random.default_rng(0).random(4), "would be truncated to integers"),
        (spaces.Box(-1, 1, (4,), np.float32), np.float32(0.5), r"it has shape \(\)"),
        (spaces.Box(-1, 1, (4,), np.float32), np.zeros((1, 4), np.float32), r"it has shape \(1, 4\)"),
        (spaces.Discrete(4), -1, "it is -1"),
        (spaces.Discrete(4, start=1), 5, "it is 5"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), r"it is \[1, 3\]"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}), {"a": 1}, "'b' does not fit.*no such entry"),
        (spaces.Box(-1, 1, (2,), np.float32), ["a", "b"], "it is of"),
    ],
)
def test_unfit_first_observation_raises(space, observation, message):
    with pytest.raises(UnsupportedSpace, match=message):
        ObservationCodec(space).check(observation)


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (spaces.Discrete(3), -1, "it is -1"),
        (spaces.Discrete(3), 3, "it is 3"),
        (spaces.Discrete(3), 1.7, "it is 1.7"),
        (spaces.Discrete(3), [0, 1], r"it is \[0, 1\]"),
        (spaces.MultiDiscrete([3, 5]), [4, 0], r"it is \[4, 0\]"),
        (spaces.MultiDiscrete([3, 5]), [-1, 4], r"it is \[-1, 4\]"),
        (spaces.Box(0, 255, (2,), np.uint8), [300, -1], "it has -1 to 300, and uint8 holds 0 to 255"),
        (spaces.Box(0, 255, (2,), np.uint8), [0.5, 0.9], "would be truncated to integers"),
        (spaces.Box(-9, 9, (2,), np.int32), np.array([np.nan, 1]), "would be truncated to integers"),
        (spaces.Box(-9, 9, (3,), np.float32), np.zeros(1, np.float32), r"it has shape \(1,\)"),
        (spaces.Box(-9, 9, (3,), np.float32), 1.0, r"it has shape \(\)"),
        (spaces.Box(-9, 9, (3,), np.float32), [[1.0, 2.0, 3.0]], r"it has shape \(1, 3\)"),
        (spaces.MultiBinary(2), [0, 256], "it has 0 to 256, and int8 holds"),
    ],
)
def test_unfit_later_observation_raises(space, observation, message):
    codec = ObservationCodec(space)
    views = {name: np.zeros((2, *spec.shape), spec.dtype) for name, spec in codec.specs.items()}
    with pytest.raises(UnsupportedSpace, match=message):
        codec.write_row(observation, 1, views)
    with pytest.raises(UnsupportedSpace):
        codec.write(np.stack([observation, observation]), views)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int64])
def test_choices_of_any_dtype_are_written(dtype):
    space = spaces.Dict(one=spaces.Discrete(3, dtype=np.int64), several=spaces.MultiDiscrete([3, 4], dtype=dtype))
    codec = ObservationCodec(space)
    views = {name: np.zeros((1, *spec.shape), spec.dtype) for name, spec in codec.specs.items()}
    codec.write_row({"one": np.uint64(2), "several": np.array([1, 3], dtype)}, 0, views)
    assert views["one"][0].tolist() == [0, 0, 1]
    assert views["several"][0].tolist() == [0, 1, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 3, 2), (24,)])
def test_a_batch_with_its_axes_in_another_order_is_refused(shape):
    codec = ObservationCodec(spaces.Box(-9, 9, (3, 4), np.float32))
    with pytest.raises(UnsupportedSpace, match="the batch of 2 rows has shape"):
        codec.write(np.zeros(shape, np.float32), {"obs": np.zeros((2, 3, 4), np.float32)})


class Late(gymnasium.Env):
    """Leaves its space in the third step."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, right, wrong):
        self.observation_space, self.right, self.wrong = space, right, wrong

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.right, {}

    def step(self, action):
        self.steps += 1
        return (self.wrong if self.steps == 3 else self.right), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "right", "wrong"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), np.zeros(3, np.float32), np.zeros(1, np.float32)),
        (spaces.Box(-1, 1, (3,), np.float32), np.zeros(3, np.float64), np.zeros((1, 3), np.float32)),
        (spaces.Box(0, 255, (3,), np.uint8), np.zeros(3, np.uint8), np.full(3, 256)),
        (spaces.Discrete(4), 3, -1),
    ],
)
def test_an_environment_that_leaves_its_space_ends_the_run(harness, space, right, wrong):
    group = PythonGroup(lambda: Late(space, right, wrong), num_envs=2, seeds=[1, 2], on_failure="restart")
    with pytest.raises(UnsupportedSpace, match=r"^environment 0 of environment at group step 3: .* does not fit its"):
        harness.run(group, observation_specs(space), action_spec(Late.action_space), 5)


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.array([1.5, 0])),
        (spaces.Box(-1, 1, (2,), np.float32), [1, 0]),
        (spaces.Box(0, 1, (), np.float32), 0.5),
        (spaces.Box(0, 1, (1,), np.float32), 0.5),
        (spaces.Discrete(4, start=1), np.int64(4)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([[1, 2], [3, 4]])),
        (spaces.MultiBinary(3), np.array([True, False, True])),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 255, (2, 2), np.uint8)]), (1, np.zeros((2, 2), np.uint8))),
    ],
)
def test_fitting_observation_is_accepted(space, observation):
    codec = ObservationCodec(space)
    codec.check(observation)
    views = {name: np.zeros((1, *spec.shape), spec.dtype) for name, spec in codec.specs.items()}
    codec.write_row(observation, 0, views)


def test_how_large_numbers_are_is_found_in_an_observation() -> None:
    space = spaces.Dict({"pressure": spaces.Box(-np.inf, np.inf, (2,), np.float32), "choice": spaces.Discrete(3)})
    codec = ObservationCodec(space)
    assert [item.seen for item in codec.specs.values()] == [None, None]
    found = codec.specs_with_scale({"pressure": np.array([-101325.0, 3.0], np.float32), "choice": 1})
    assert {name: item.seen for name, item in found.items()} == {"pressure": 101325.0, "choice": None}
    assert found == codec.specs
