"""Odd spaces, rewards and exceptions: each works or raises an error of ours."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollmill.algorithms.off_policy_config import off_policy_config_of
from rollmill.algorithms.registry import make_algorithm
from rollmill.algorithms.requirements import UnfitActionsError, require_bounds
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import (
    EnvironmentFailure,
    InvalidReward,
    NonFiniteObservation,
    UnsupportedSpace,
)
from rollmill.envs.factory import make_group, probe
from rollmill.envs.random_actions import random_actions
from rollmill.envs.registry import register_env
from rollmill.envs.repeating import repeats
from rollmill.envs.spaces import ObservationCodec, action_spec
from rollmill.envs.vector_group import VectorGroup
from rollmill.envs.views import ObservationView, OutcomeView
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.specs import EnvSpec

BOX = spaces.Box(-1, 1, (2,), np.float32)
TWO = spaces.Discrete(2)


class Odd(gymnasium.Env[Any, Any]):
    """Returns samples of any space, and a given reward from the third step on."""

    def __init__(self, observation: Any = BOX, action: Any = TWO, reward: Any = 1.0, raises: Any = None) -> None:
        self.observation_space, self.action_space = observation, action
        self.given, self.raises, self.steps = reward, raises, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.steps += 1
        if self.raises is not None and self.steps == 3:
            raise self.raises
        return self.observation_space.sample(), self.given if self.steps > 2 else 0.0, False, self.steps % 4 == 0, {}


@pytest.fixture(autouse=True)
def registered() -> None:
    register_env("test/odd", Odd)
    register_env("test/odd vector", OddVector, vector=True)


def config(**kwargs: Any) -> EnvConfig:
    return EnvConfig(name="test/odd", kwargs=kwargs)


def arrays(spec: EnvSpec, rows: int) -> tuple[ObservationView, OutcomeView]:
    observation = {name: np.zeros((rows, *s.shape), s.dtype) for name, s in spec.observation.items()}
    outcome = OutcomeView(
        reward=np.zeros(rows, np.float32),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        valid=np.zeros(rows, bool),
        episode_return=np.zeros(rows, np.float32),
        episode_length=np.zeros(rows, np.int32),
    )
    return ObservationView(observation, None, np.zeros(rows, bool)), outcome


def play(steps: int = 6, **kwargs: Any) -> tuple[EnvSpec, ObservationView]:
    """Play as a rollout worker does, with random actions."""
    spec = probe(config(**kwargs))
    group = make_group(config(**kwargs), 3, [0, 1, 2])
    view, outcome = arrays(spec, 3)
    group.reset(view)
    random = np.random.default_rng(0)
    for _ in range(steps):
        group.step(*random_actions(spec.action, None, 3, random), view, outcome)
    group.close()
    return spec, view


OBSERVATIONS = [
    BOX,
    spaces.Box(-1, 1, (), np.float32),
    spaces.Box(-np.inf, np.inf, (1,), np.float64),
    spaces.Box(0, 1, (0,), np.float32),
    spaces.Box(0, 1, (3, 0), np.float32),
    spaces.Box(0, 255, (0, 84, 84), np.uint8),
    spaces.Box(0, 255, (3, 5), np.uint8),
    spaces.Box(0, 255, (1, 1, 1), np.uint8),
    spaces.Box(0, 255, (2, 2, 2, 2), np.uint8),
    spaces.Box(0, 255, (7, 9, 3), np.uint8),
    spaces.Box(0, 2**16 - 1, (4,), np.uint16),
    spaces.Box(0, 2**32 - 1, (4,), np.uint32),
    spaces.Box(0, 2**40, (4,), np.uint64),
    spaces.Box(-(2**40), 2**40, (4,), np.int64),
    spaces.Box(-1, 1, (4,), np.float16),
    spaces.Box(0, 1, (2, 2), np.bool_),
    spaces.Box(0, 1, (3,), np.int8),
    spaces.Discrete(1),
    spaces.Discrete(4, start=-7),
    spaces.MultiDiscrete([1, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiDiscrete(np.array([], np.int64)),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
    spaces.Dict({}),
    spaces.Tuple(()),
    spaces.Dict({"a": spaces.Dict({})}),
    spaces.Dict({"a": BOX, "b": spaces.Box(0, 1, (0,), np.float32)}),
    spaces.Dict({"a": BOX, "b": spaces.Dict({}), "c": spaces.Tuple((spaces.Discrete(3), BOX))}),
    spaces.Tuple((BOX, spaces.MultiBinary(2))),
    spaces.Text(4),
    spaces.Sequence(BOX),
]
ACTIONS = [
    spaces.Discrete(1),
    spaces.Discrete(3, start=-5),
    spaces.Discrete(2**40),
    spaces.MultiDiscrete([1, 1]),
    spaces.MultiDiscrete([2, 3], start=[5, -5]),
    spaces.MultiDiscrete([[2, 3]]),
    spaces.MultiDiscrete(np.array([], np.int64)),
    spaces.MultiBinary(2),
    spaces.MultiBinary((2, 2)),
    spaces.Box(-1, 1, (), np.float32),
    spaces.Box(-1, 1, (0,), np.float32),
    spaces.Box(-1, 1, (2, 0), np.float32),
    spaces.Box(0, 0, (1,), np.float32),
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(np.array([-np.inf, 0], np.float32), np.array([0, np.inf], np.float32), dtype=np.float32),
    spaces.Box(np.finfo(np.float64).min, np.finfo(np.float64).max, (2,), np.float64),
    spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (2,), np.float32),
    spaces.Box(np.finfo(np.float16).min, np.finfo(np.float16).max, (2,), np.float16),
    spaces.Box(0, 9, (2,), np.int32),
    spaces.Dict({}),
    spaces.Tuple(()),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (0,), np.float32)}),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({})}),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(-1, 1, (2,), np.float32)}),
    spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([3, 2]))),
]
EMPTY = (
    [spaces.Dict({}), spaces.Tuple(()), spaces.MultiDiscrete(np.array([], np.int64)), spaces.Box(-1, 1, (0,))],
    [spaces.Dict({}), spaces.Box(0, 1, (0,)), spaces.Dict({"a": BOX, "b": spaces.Box(0, 1, (0,))})],
)


@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
@pytest.mark.parametrize(
    ("observation", "action"),
    [*((o, spaces.Discrete(2)) for o in OBSERVATIONS), *((BOX, a) for a in ACTIONS)],
    ids=lambda space: str(space)[:60],
)
def test_odd_spaces_work_or_raise(observation: Any, action: Any) -> None:
    try:
        spec, view = play(observation=observation, action=action)
    except UnsupportedSpace:
        return
    model = make_model(spec.observation, spec.action, ModelConfig(mlp_sizes=(8,), encoder="auto"))
    shown = {name: torch.from_numpy(array) for name, array in view.observation.items()}
    with torch.no_grad():
        output = model(shown, None, torch.zeros(3, dtype=torch.bool))
        sample = model.distribution.sample_with_log_prob(output.params, None, torch.Generator().manual_seed(0))
    for tensor in (output.value, sample.log_prob):
        assert torch.isfinite(tensor).all()
    for algo in ("dqn", "sac", "td3"):
        try:
            require_bounds(algo, spec.action)
            algorithm = make_algorithm(
                spec.observation,
                spec.action.in_unit_box,
                ModelConfig(mlp_sizes=(8,)),
                off_policy_config_of(algo)(algorithm=algo),
            )
        except UnfitActionsError:
            continue
        assert algorithm.acting is not None


@pytest.mark.parametrize("space", EMPTY[0], ids=str)
def test_empty_action_spaces_raise(space: Any) -> None:
    with pytest.raises(UnsupportedSpace, match=r"leaves nothing to choose: .* leave empty components out"):
        probe(config(action=space))


def test_zero_choices_raise() -> None:
    space = spaces.MultiDiscrete([3, 2])
    space.nvec[1] = 0  # Gymnasium's constructor rejects it.
    with pytest.raises(UnsupportedSpace, match="leaves nothing to choose"):
        action_spec(space)


@pytest.mark.parametrize("space", EMPTY[1], ids=str)
def test_empty_observations_raise(space: Any) -> None:
    with pytest.raises(UnsupportedSpace, match=r"which is empty|has no entry"):
        probe(config(observation=space))


REWARDS = [10**400, -(10**5000), 1 + 2j, np.complex128(1j), None, "1.5", b"1", [1.0, 2.0], np.zeros(3), {}, object()]


@pytest.mark.parametrize("reward", REWARDS, ids=lambda r: str(type(r)))
def test_invalid_rewards_raise(reward: Any) -> None:
    message = r"environment 0 of test/odd gave the reward .* of type .* at group step 3: one real number .* return"
    with pytest.raises(InvalidReward, match=message):
        play(reward=reward)


@pytest.mark.parametrize("reward", [True, np.float64(1), np.array([2.0]), np.int64(3), np.array(1.5, np.float16)])
def test_number_like_rewards_are_accepted(reward: Any) -> None:
    play(reward=reward)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("reward", [1e300, np.float64(-1e39)])
def test_rewards_beyond_float32_raise(reward: Any) -> None:
    with pytest.raises(InvalidReward, match="that float32 holds"):
        play(reward=reward)


@pytest.mark.parametrize("reward", [float("nan"), np.inf, np.float32("nan")])
def test_non_finite_rewards_raise(reward: Any) -> None:
    with pytest.raises(NonFiniteObservation, match="as reward at group step 3"):
        play(reward=reward)


class OddVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Returns given rewards."""

    def __init__(self, num_envs: int, rewards: Any) -> None:
        self.num_envs, self.given = num_envs, rewards
        self.single_observation_space, self.single_action_space = BOX, spaces.Discrete(2)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        ends = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 2), np.float32), self.given, ends, ends.copy(), {}


@pytest.mark.parametrize(
    "rewards",
    [
        np.array([1j, 2.0, 3.0]),
        np.array(["1", "2", "3"]),
        [None, 1.0, 2.0],
        [10**400, 1, 1],
        1.0,
        np.zeros((3, 1)),
        [np.zeros(2), 1.0, 2.0],
        None,
    ],
    ids=str,
)
def test_invalid_rewards_of_a_vector_raise(rewards: Any) -> None:
    vector = EnvConfig(name="test/odd vector", kwargs={"rewards": rewards})
    spec = probe(vector)
    group = make_group(vector, 3, [0, 1, 2])
    view, outcome = arrays(spec, 3)
    group.reset(view)
    with pytest.raises(
        InvalidReward, match=r"of test/odd vector gave the reward|test/odd vector gave rewards of shape"
    ):
        group.step(np.zeros((3, 1), np.int32), None, view, outcome)


class Integers(OddVector):
    """Says 0 and 1 where others say False and True."""

    def step(self, actions: Any) -> Any:
        observation, rewards, _, _, info = super().step(actions)
        return observation, rewards, np.array([0, 1, 0]), [0.0, 0.0, 1.0], info


def test_ends_may_be_integers() -> None:
    register_env("test/integers", Integers, vector=True)
    vector = EnvConfig(name="test/integers", kwargs={"rewards": np.zeros(3)})
    view, outcome = arrays(probe(vector), 3)
    group = make_group(vector, 3, [0, 1, 2])
    group.reset(view)
    group.step(np.zeros((3, 1), np.int32), None, view, outcome)
    assert outcome.terminated.tolist() == [False, True, False]
    assert outcome.truncated.tolist() == [False, False, True]


@pytest.mark.parametrize(("given", "mode"), [("SAME_STEP", "same_step"), ("Disabled", "disabled"), ("soon", None)])
def test_a_mode_of_autoreset_may_be_a_name(given: str, mode: str | None) -> None:
    class Named(OddVector):
        def __init__(self, num_envs: int) -> None:
            super().__init__(num_envs, np.zeros(num_envs))
            self.metadata = {"autoreset_mode": given}

    if mode is None:
        with pytest.raises(UnsupportedSpace, match=r"is 'soon': .* which are NEXT_STEP, SAME_STEP, DISABLED"):
            VectorGroup(lambda seeds: Named(len(seeds)), seeds=[0, 1])
    else:
        assert VectorGroup(lambda seeds: Named(len(seeds)), seeds=[0, 1])._mode == mode


def test_an_environment_that_makes_a_new_action_space_for_each_access_repeats() -> None:
    class NewSpaces(gymnasium.Env[Any, Any]):
        observation_space = BOX

        @property
        def action_space(self) -> Any:
            return spaces.Box(-1, 1, (2,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.asarray(action, np.float32), 0.0, False, False, {}

    assert repeats(NewSpaces())


@pytest.mark.parametrize("shows", ["reset", "step"])
def test_a_generator_that_a_reset_makes_anew_does_not_repeat(shows: str) -> None:
    class Reseeding(gymnasium.Env[Any, Any]):
        observation_space, action_space = BOX, TWO

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.random = np.random.default_rng(seed)  # Without a seed from the operating system's entropy.
            return self.show("reset"), {}

        def step(self, action: Any) -> Any:
            return self.show("step"), 0.0, False, False, {}

        def show(self, when: str) -> Any:
            return self.random.random(2, np.float32) if when == shows else np.zeros(2, np.float32)

    assert repeats(Reseeding()) is False


def test_a_vector_that_resets_in_the_same_step_and_does_not_say_so_is_refused() -> None:
    class Silent(OddVector):
        def __init__(self, num_envs: int) -> None:
            super().__init__(num_envs, np.zeros(num_envs))
            self.metadata = {}

        def step(self, actions: Any) -> Any:
            observation, reward, terminated, truncated, _ = super().step(actions)
            return observation, reward, terminated, ~truncated, {"final_obs": observation}

    register_env("test/silent", Silent, vector=True)
    silent = EnvConfig(name="test/silent")
    group = make_group(silent, 2, [0, 1])
    view, outcome = arrays(probe(silent), 2)
    group.reset(view)
    with pytest.raises(UnsupportedSpace, match=r"gives info\['final_obs'\].*AutoresetMode\.SAME_STEP"):
        group.step(np.zeros((2, 1), np.int32), None, view, outcome)


class Wide(OddVector):
    """Returns observations of another shape."""

    def step(self, actions: Any) -> Any:
        return np.zeros((self.num_envs, 5), np.float32), *super().step(actions)[1:]


def test_an_observation_of_a_vector_that_does_not_fit_names_the_step() -> None:
    register_env("test/wide", Wide, vector=True)
    vector = EnvConfig(name="test/wide", kwargs={"rewards": np.zeros(3)})
    view, outcome = arrays(probe(vector), 3)
    group = make_group(vector, 3, [0, 1, 2])
    group.reset(view)
    with pytest.raises(
        UnsupportedSpace, match=r"^test/wide at group step 1: observation 'obs' does not fit .*\(3, 5\)"
    ):
        group.step(np.zeros((3, 1), np.int32), None, view, outcome)


class Abort(BaseException):
    """A user's own exception."""


@pytest.fixture
def out_of_reach() -> Iterator[None]:
    """Simulate a process of a run, which Ctrl-C does not reach."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("out_of_reach")
@pytest.mark.parametrize("error", [KeyboardInterrupt("mine"), SystemExit(3), GeneratorExit(), Abort("stop")], ids=repr)
def test_any_exception_of_an_environment_is_reported(error: BaseException) -> None:
    with pytest.raises(EnvironmentFailure, match=f"raised {type(error).__name__} in its step") as failure:
        play(raises=error)
    assert failure.value.__cause__ is error


def test_ctrl_c_is_not_an_environment_failure() -> None:
    # A shell without job control starts what runs in the background with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            play(raises=KeyboardInterrupt())
    finally:
        signal.signal(signal.SIGINT, before)


def test_random_pairs_of_spaces_work_or_raise() -> None:
    random = np.random.default_rng(7)
    pairs = list(itertools.product(OBSERVATIONS, ACTIONS))
    for index in random.choice(len(pairs), 25, replace=False):
        observation, action = pairs[index]
        try:
            play(steps=3, observation=observation, action=action)
        except UnsupportedSpace:
            continue


def stepping(settings: EnvConfig, steps: int) -> Callable[[], None]:
    """Reset and step an environment, and return a function that steps it once more."""
    view, outcome = arrays(probe(settings), 1)
    group = make_group(settings, 1, [0])
    group.reset(view)

    def step() -> None:
        group.step(np.zeros((1, 1), np.int32), None, view, outcome)

    for _ in range(steps):
        step()
    return step


class Speechless:
    """An object that a factory may return by mistake."""


class LateEntry(Odd):
    """Omits an entry of its observations after some steps."""

    def __init__(self) -> None:
        super().__init__(spaces.Dict(a=BOX, b=TWO))

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return ({"a": observation["a"]} if self.steps > 2 else observation, *rest)


class Flags(Odd):
    def __init__(self, terminated: Any) -> None:
        super().__init__()
        self.terminated = terminated

    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.terminated, truncated, info


class Tensors(Odd):
    """Returns tensors, which cannot be compared like arrays."""

    def reset(self, **kwargs: Any) -> Any:
        return torch.zeros(2), {}

    def step(self, action: Any) -> Any:
        return torch.zeros(2), *super().step(action)[1:]


class Reset(Odd):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset()[0], None


def no_environment() -> None:
    pass


@pytest.mark.parametrize("factory", [Speechless, no_environment])
def test_objects_that_are_not_environments_raise(factory: Any) -> None:
    register_env(f"test/{factory.__name__}", factory)
    with pytest.raises(UnsupportedSpace, match=r"which has no observation_space .* return a gymnasium.Env"):
        probe(EnvConfig(name=f"test/{factory.__name__}"))


def test_missing_action_space_raises() -> None:
    env = Odd()
    del env.action_space
    register_env("test/half", lambda: env)
    with pytest.raises(UnsupportedSpace, match="no action_space"):
        probe(EnvConfig(name="test/half"))


def test_entry_missing_in_a_later_step_raises_unsupported_space() -> None:
    register_env("test/late entry", LateEntry)
    step = stepping(EnvConfig(name="test/late entry"), steps=2)
    message = r"environment 0 of test/late entry at group step 3: .*'b' does not fit .* no such entry in a dict"
    with pytest.raises(UnsupportedSpace, match=message):
        step()


@pytest.mark.parametrize("space", [BOX, TWO])
def test_a_batch_of_another_size_does_not_fit(space: Any) -> None:
    codec = ObservationCodec(space)
    views = {name: np.zeros((3, *spec.shape), spec.dtype) for name, spec in codec.specs.items()}
    batch = np.zeros((2, *(space.shape or ())), space.dtype)
    with pytest.raises(UnsupportedSpace, match="does not fit its space"):
        codec.write(batch, views)


@pytest.mark.parametrize("flag", ["no", [False], {"__all__": False}, (False,)])
def test_truthy_non_boolean_flags_raise(flag: Any) -> None:
    register_env("test/flags", Flags)
    with pytest.raises(UnsupportedSpace, match="as terminated: True or False is needed"):
        probe(EnvConfig(name="test/flags", kwargs={"terminated": flag}))


@pytest.mark.parametrize("flag", [0, np.False_, np.array([False]), np.array(0, np.int8), None])
def test_boolean_like_flags_are_accepted(flag: Any) -> None:
    register_env("test/flags", Flags)
    probe(EnvConfig(name="test/flags", kwargs={"terminated": flag}))


def test_tensor_observations_work_in_lockstep() -> None:
    register_env("test/tensors", Tensors)
    assert probe(EnvConfig(name="test/tensors"), tries_to_repeat=True).repeats is None


def test_error_shows_the_whole_result_of_reset() -> None:
    register_env("test/reset", Reset)
    with pytest.raises(UnsupportedSpace, match=r"tuple of \(ndarray, NoneType\) instead of .observation, info."):
        probe(EnvConfig(name="test/reset"))


class Late(Odd):
    """Returns a result without five parts after some steps."""

    def __init__(self, late: Any) -> None:
        super().__init__()
        self.late = late

    def step(self, action: Any) -> Any:
        result = super().step(action)
        return self.late if self.steps > 2 else result


@pytest.mark.parametrize("late", [None, (1, 2, 3, 4)])
def test_error_of_a_short_step_result_names_the_required_values(late: Any) -> None:
    register_env("test/late", Late)
    step = stepping(EnvConfig(name="test/late", kwargs={"late": late}), steps=2)
    with pytest.raises(EnvironmentFailure, match=r"unpack.*\(step must return observation, reward, terminated"):
        step()


class LateReset(Odd):
    """Returns None from reset after the first episodes."""

    resets = 0

    def reset(self, **kwargs: Any) -> Any:
        self.resets += 1
        shown = super().reset()
        return shown if self.resets < 3 else None


def test_error_of_a_short_reset_result_names_the_required_values() -> None:
    register_env("test/late reset", LateReset)
    step = stepping(EnvConfig(name="test/late reset"), steps=9)  # Four steps and a reset, twice.
    with pytest.raises(EnvironmentFailure, match=r"in its reset .*\(reset must return observation and info\)"):
        step()
