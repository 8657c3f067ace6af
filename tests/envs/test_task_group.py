"""Groups of one task of several: what they write into the arrays that all tasks share, and what they act on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.factory import make_group, probe
from rollmill.envs.random_actions import random_actions
from rollmill.envs.registry import register_env
from rollmill.envs.task_clock import TaskClock
from rollmill.envs.task_group import TaskGroup, TaskView
from rollmill.envs.task_spaces import with_task_entry
from rollmill.envs.views import Array, ObservationView, OutcomeView, own_views
from rollmill.specs import TASK, EnvSpec

ROWS = 3
STALE = 77

Space = spaces.Space[Any]


class Drawn(gym.Env[Any, Any]):
    """Observes samples of a space; an episode has four steps, and each step's reward says which action came.

    Args:
        observation: Its observation space.
        action: Its action space.
        forbids: Whether ``info`` has a mask that forbids one choice of each head, another one at each step.
    """

    def __init__(self, observation: Space, action: Space, forbids: bool = False) -> None:
        self.observation_space, self.action_space = deepcopy(observation), action  # it has a generator
        self.sizes = [space.n for space in _parts(action) if isinstance(space, spaces.Discrete)]
        self.forbids = forbids
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = _number(action)
        self.steps += 1
        return self.observation_space.sample(), reward, self.steps == 4, False, self._info()

    def _info(self) -> dict[str, Any]:
        if not self.forbids:
            return {}
        heads = [np.arange(size) != self.steps % size for size in self.sizes]
        return {"action_mask": heads[0] if len(heads) == 1 else tuple(heads)}


def _parts(action: Space) -> list[Space]:
    if isinstance(action, spaces.MultiDiscrete):
        return [spaces.Discrete(int(n)) for n in action.nvec]
    return [action]


def _number(action: Any) -> float:
    """Tell actions from each other."""
    if isinstance(action, Mapping):
        action = tuple(action.values())
    if isinstance(action, tuple):
        return sum(_number(part) * 11.0**index for index, part in enumerate(action))
    flat = np.atleast_1d(np.asarray(action, np.float64)).ravel()
    return float(flat @ 7.0 ** np.arange(len(flat)))


class Tasks(NamedTuple):
    """Several tasks as one environment."""

    config: EnvConfig
    spec: EnvSpec

    def own_group(self, task: int, first_seed: int = 0) -> Any:
        return make_group(self.config.of_task(task), ROWS, list(range(first_seed, first_seed + ROWS)))

    def group(self, task: int, first_seed: int = 0, clock: TaskClock | None = None) -> TaskGroup:
        return TaskGroup(self.own_group(task, first_seed), self.spec, task, clock)


def tasks_of(*names: str, with_task: bool = True, **settings: Any) -> Tasks:
    config = EnvConfig(name=",".join(names), tasks=names, **settings)
    spec = probe(config)
    return Tasks(config, with_task_entry(spec) if with_task else spec)


def registered(name: str, observation: Space, action: Space, *, forbids: bool = False) -> str:
    register_env(name, lambda: Drawn(observation, action, forbids))
    return name


def stale_views(spec: EnvSpec, rows: int = ROWS) -> tuple[ObservationView, OutcomeView]:
    """Views of a slot that another task has used."""
    into, outcome = own_views(spec, rows)
    make_stale(into)
    return into, outcome


def make_stale(into: ObservationView) -> None:
    for array in into.observation.values():
        array.fill(STALE)
    if into.action_mask is not None:
        into.action_mask.fill(True)


def literal_allowed(own: EnvSpec, shared: EnvSpec) -> list[tuple[int, int, bool]]:
    """(head, choice, whether the task has it) for each column of the shared mask; head after head."""
    sizes = own.action.categorical_sizes
    return [
        (head, choice, choice < (sizes[head] if head < len(sizes) else 1))
        for head, most in enumerate(shared.action.categorical_sizes)
        for choice in range(most)
    ]


def assert_shows(into: ObservationView, own: ObservationView, tasks: Tasks, task: int) -> None:
    """That shared arrays hold exactly what the task's own group has written, and nothing else."""
    own_spec = tasks.spec.tasks[task]
    for name, array in into.observation.items():
        if name == TASK:
            np.testing.assert_array_equal(array, np.eye(len(tasks.spec.tasks))[[task] * len(array)])
            continue
        expected = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            if name in own_spec.observation and all(
                at < size for at, size in zip(index[1:], own_spec.observation[name].shape, strict=True)
            ):
                expected[index] = own.observation[name][index]
        np.testing.assert_array_equal(array, expected, err_msg=name)
    np.testing.assert_array_equal(into.reset, own.reset)
    if not tasks.spec.has_action_mask:
        assert into.action_mask is None
        return
    assert into.action_mask is not None
    own_column = dict[tuple[int, int], int]()
    for head, size in enumerate(own_spec.action.categorical_sizes):
        for choice in range(size):
            own_column[head, choice] = len(own_column)
    for column, (head, choice, has) in enumerate(literal_allowed(own_spec, tasks.spec)):
        for row in range(len(into.reset)):
            expected_here = has
            if own.action_mask is not None and (head, choice) in own_column:
                expected_here = bool(own.action_mask[row, own_column[head, choice]])
            assert into.action_mask[row, column] == expected_here, (head, choice)


def actions_for(spec: EnvSpec, into: ObservationView, random: np.random.Generator) -> tuple[Array | None, Array | None]:
    """Draw shared actions that the mask allows; numbers that the task lacks are drawn too."""
    return random_actions(spec.action, into.action_mask, len(into.reset), random)


def assert_plays_like_its_own_group(tasks: Tasks, task: int, steps: int = 12, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    group, alone, own_spec = tasks.group(task, seed), tasks.own_group(task, seed), tasks.spec.tasks[task]
    assert group.num_rows == ROWS
    into, outcome = stale_views(tasks.spec)
    own_into, own_outcome = own_views(own_spec, ROWS)
    group.reset(into)
    alone.reset(own_into)
    assert_shows(into, own_into, tasks, task)
    for _ in range(steps):
        discrete, continuous = actions_for(tasks.spec, into, random)
        make_stale(into)
        group.step(discrete, continuous, into, outcome)
        choices, numbers = own_spec.action.num_discrete, own_spec.action.num_continuous
        alone.step(
            discrete[:, :choices].copy() if choices and discrete is not None else None,
            continuous[:, :numbers].copy() if numbers and continuous is not None else None,
            own_into,
            own_outcome,
        )
        assert_shows(into, own_into, tasks, task)
        for one, other in zip(outcome[:6], own_outcome[:6], strict=True):
            np.testing.assert_array_equal(one, other)
    group.close()
    alone.close()


SMALL = spaces.Box(-1, 1, (2, 3), np.float32)
PAIRS: dict[str, Callable[[], Tasks]] = {
    "vectors": lambda: tasks_of("gym/CartPole-v1", "gym/Acrobot-v1", "gym/MountainCar-v0", max_episode_steps=5),
    "real and discrete": lambda: tasks_of("gym/Pendulum-v1", "gym/CartPole-v1", max_episode_steps=5),
    "real": lambda: tasks_of("gym/Pendulum-v1", "gym/MountainCarContinuous-v0", max_episode_steps=5),
    "grids": lambda: tasks_of("minigrid/MiniGrid-Empty-5x5-v0", "minigrid/MiniGrid-FourRooms-v0", max_episode_steps=5),
    "entries": lambda: tasks_of(
        registered("own/ab", spaces.Dict(a=SMALL, b=spaces.Discrete(3, start=2)), spaces.Discrete(2)),
        registered("own/bc", spaces.Dict(b=spaces.Discrete(3, start=2), c=spaces.MultiBinary(4)), spaces.Discrete(2)),
        registered("own/a", spaces.Dict(a=spaces.Box(-1, 1, (4, 1), np.float32)), spaces.Discrete(2)),
        registered("own/plain", SMALL, spaces.Discrete(2)),
    ),
    "masks of one": lambda: tasks_of(
        registered("own/masked", SMALL, spaces.Discrete(4), forbids=True),
        registered("own/free", SMALL, spaces.Discrete(6)),
    ),
    "masks of heads": lambda: tasks_of(
        registered("own/three", SMALL, spaces.MultiDiscrete([3, 2, 4]), forbids=True),
        registered("own/two", SMALL, spaces.MultiDiscrete([2, 5])),
        registered("own/one", SMALL, spaces.Discrete(4), forbids=True),
    ),
    "starts": lambda: tasks_of(
        registered("own/from 5", SMALL, spaces.Discrete(3, start=5)),
        registered("own/from -1", SMALL, spaces.Discrete(4, start=-1)),
    ),
    "dicts of actions": lambda: tasks_of(
        registered("own/dict", SMALL, spaces.Dict(x=spaces.Box(-1, 1, (2,)), y=spaces.Discrete(3))),
        registered("own/box", SMALL, spaces.Box(-9, 9, (3,))),
        registered("own/only choices", SMALL, spaces.MultiDiscrete([2, 2])),
    ),
}


@pytest.fixture(params=PAIRS)
def tasks(request: pytest.FixtureRequest) -> Tasks:
    return PAIRS[request.param]()


def test_a_task_writes_what_its_own_group_writes_and_zeros_elsewhere(tasks: Tasks) -> None:
    for task in range(len(tasks.spec.tasks)):
        assert_plays_like_its_own_group(tasks, task)


def test_the_environments_know_no_other_spaces_than_their_own(tasks: Tasks) -> None:
    for task in range(len(tasks.spec.tasks)):
        group, alone = tasks.group(task), tasks.own_group(task)
        assert group.observation_space == alone.observation_space
        assert group.action_space == alone.action_space
        assert group.metrics is not None
        group.close()
        group.close()
        alone.close()


def test_classic_control_is_padded_as_expected() -> None:
    tasks = PAIRS["vectors"]()
    assert tasks.spec.observation["obs"].shape == (6,)
    assert tasks.spec.action.categorical_sizes == (3,)
    assert tasks.spec.has_action_mask
    for task, (numbers, choices) in enumerate([(4, 2), (6, 3), (2, 3)]):
        into, _ = stale_views(tasks.spec)
        group = tasks.group(task)
        group.reset(into)
        group.close()
        shown = into.observation["obs"]
        assert (shown[:, numbers:] == 0).all()
        assert (shown != STALE).all()
        assert (shown[:, :numbers] != 0).any(axis=1).all()
        assert into.action_mask is not None
        assert into.action_mask.tolist() == [[choice < choices for choice in range(3)]] * ROWS
        assert into.observation[TASK].tolist() == [[float(index == task) for index in range(3)]] * ROWS


def test_a_task_without_choices_gets_only_its_numbers_and_the_other_way_round() -> None:
    tasks = PAIRS["real and discrete"]()
    assert (tasks.spec.action.num_discrete, tasks.spec.action.num_continuous) == (1, 1)

    class Recorder:
        num_rows, failures = ROWS, ()
        given: Any = ()

        def step(self, discrete: Any, continuous: Any, into: Any, outcome: Any) -> None:
            self.given = (discrete, continuous)

    discrete, continuous = np.zeros((ROWS, 1), np.int32), np.full((ROWS, 1), 0.5, np.float32)
    for task, expected in enumerate([(None, continuous), (discrete, None)]):
        recorder: Any = Recorder()
        TaskGroup(recorder, tasks.spec, task).step(discrete, continuous, *stale_views(tasks.spec))
        for one, other in zip(recorder.given, expected, strict=True):
            assert one is None if other is None else np.array_equal(one, other)


def test_the_first_choice_alone_is_allowed_where_a_task_has_none() -> None:
    tasks = PAIRS["real and discrete"]()
    into, _ = stale_views(tasks.spec)
    group = tasks.group(0)
    group.reset(into)
    group.close()
    assert into.action_mask is not None
    assert into.action_mask.tolist() == [[True, False]] * ROWS


def test_a_mask_of_one_task_does_not_reach_another_one() -> None:
    tasks = PAIRS["masks of one"]()
    into, outcome = stale_views(tasks.spec)
    masked, free = tasks.group(0), tasks.group(1)
    masked.reset(into)
    assert into.action_mask is not None
    assert into.action_mask.tolist() == [[False, True, True, True, False, False]] * ROWS
    masked.step(np.ones((ROWS, 1), np.int32), None, into, outcome)
    assert into.action_mask.tolist() == [[True, False, True, True, False, False]] * ROWS
    # The same slot, used by the other task.
    free.reset(into)
    assert into.action_mask.all()
    masked.reset(into)
    assert into.action_mask.tolist() == [[False, True, True, True, False, False]] * ROWS
    masked.close()
    free.close()


def test_each_task_counts_its_choices_from_its_own_start() -> None:
    tasks = PAIRS["starts"]()
    choices = np.array([[0], [1], [2]], np.int32)
    for task, start in enumerate((5, -1)):
        into, outcome = stale_views(tasks.spec)
        group = tasks.group(task)
        group.reset(into)
        group.step(choices, None, into, outcome)
        assert outcome.reward.tolist() == [start, start + 1, start + 2]
        group.close()


def test_slots_that_tasks_use_in_turn_show_the_last_one() -> None:
    tasks = PAIRS["entries"]()
    into, _ = stale_views(tasks.spec)
    for task in (0, 1, 2, 3, 0, 2, 1, 3, 0):
        group, alone = tasks.group(task), tasks.own_group(task)
        own_into, _ = own_views(tasks.spec.tasks[task], ROWS)
        group.reset(into)
        alone.reset(own_into)
        assert_shows(into, own_into, tasks, task)
        group.close()
        alone.close()


def test_without_an_entry_of_the_task_nothing_else_changes() -> None:
    tasks = tasks_of("gym/CartPole-v1", "gym/Acrobot-v1", with_task=False, max_episode_steps=5)
    assert set(tasks.spec.observation) == {"obs"}
    for task in (0, 1):
        assert_plays_like_its_own_group(tasks, task)


def test_observations_are_written_into_the_shared_arrays_without_a_copy() -> None:
    tasks = PAIRS["vectors"]()
    written: list[Array] = []
    own = tasks.own_group(0)
    reset = own.reset

    def watched(into: ObservationView) -> None:
        written.append(into.observation["obs"])
        reset(into)

    own.reset = watched
    into, _ = stale_views(tasks.spec)
    group = TaskGroup(own, tasks.spec, 0)
    group.reset(into)
    group.close()
    assert written[0].shape == (ROWS, 4)
    assert np.shares_memory(written[0], into.observation["obs"])


def test_the_time_of_steps_is_added_up() -> None:
    tasks = PAIRS["vectors"]()
    seconds = np.zeros((2, 3))
    into, outcome = stale_views(tasks.spec)
    group = tasks.group(1, clock=TaskClock(seconds, 1, equal=False))
    group.reset(into)
    assert not seconds.any()
    found = [0.0]
    for _ in range(3):
        group.step(np.zeros((ROWS, 1), np.int32), None, into, outcome)
        found.append(float(seconds[1, 1]))
    assert found == sorted(set(found)), "each step takes time"
    assert np.count_nonzero(seconds) == 1
    assert seconds[1, 1] < 60.0
    group.close()


@pytest.mark.parametrize("name", ["vectors", "real and discrete", "grids"])
def test_a_restored_group_goes_on_like_the_saved_one(name: str) -> None:
    tasks = PAIRS[name]()

    def play(group: TaskGroup, seed: int) -> list[Array]:
        random, (into, outcome) = np.random.default_rng(seed), stale_views(tasks.spec)
        seen = []
        mask = None
        for _ in range(12):
            if mask is not None:
                into.action_mask[:] = mask  # type: ignore[index]  # this spec has a mask
            else:
                _allow_first(into)
            actions = actions_for(tasks.spec, into, random)
            make_stale(into)
            group.step(*actions, into, outcome)
            mask = None if into.action_mask is None else into.action_mask.copy()
            seen += [array.copy() for array in (*into.observation.values(), into.reset, *outcome[:6])]
        return seen

    for task in range(len(tasks.spec.tasks)):
        saved, restored = tasks.group(task), tasks.group(task, first_seed=50)
        saved.reset(stale_views(tasks.spec)[0])
        play(saved, 0)
        snapshot = saved.snapshot()
        assert snapshot is not None
        alone = tasks.own_group(task, first_seed=60)
        alone.restore(snapshot)  # The state is that of the task alone.
        restored.restore(snapshot)
        for one, other in zip(play(saved, 1), play(restored, 1), strict=True):
            np.testing.assert_array_equal(one, other)
        for group in (saved, restored, alone):
            group.close()


def _allow_first(into: ObservationView) -> None:
    if into.action_mask is not None:
        into.action_mask.fill(False)
        into.action_mask[:, 0] = True


def test_failures_of_the_environments_are_those_of_the_group() -> None:
    register_env("own/fails", Failing)
    tasks = tasks_of(registered("own/fine", SMALL, spaces.Discrete(3)), "own/fails", on_failure="restart")
    group = tasks.group(1)
    into, outcome = stale_views(tasks.spec)
    group.reset(into)
    assert group.failures == []
    for _ in range(4):
        group.step(np.zeros((ROWS, 1), np.int32), None, into, outcome)
    assert len(group.failures) == ROWS
    assert "own/fails" in group.failures[0]
    group.failures.clear()
    for _ in range(4):
        group.step(np.zeros((ROWS, 1), np.int32), None, into, outcome)
    assert len(group.failures) == ROWS
    group.close()


class Failing(Drawn):
    """Raises at its third step."""

    def __init__(self) -> None:
        super().__init__(SMALL, spaces.Discrete(2))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps == 2:
            raise RuntimeError("broken")
        return super().step(action)


NUMBER = itertools.count()  # names of environments

BOXES = st.lists(st.integers(1, 4), min_size=2, max_size=2).map(lambda s: spaces.Box(-5, 5, tuple(s), np.float32))
COUNTS = st.integers(1, 4).map(spaces.Discrete)
# Pictures of all tasks have the same channels, in the same place: the smallest axis.
IMAGES = st.tuples(st.just(1), st.integers(1, 3), st.integers(1, 3)).map(lambda s: spaces.Box(0, 255, s, np.uint8))
OBSERVATIONS = st.builds(
    spaces.Dict,
    st.fixed_dictionaries({}, optional={"box": BOXES, "count": COUNTS, "image": IMAGES}).filter(bool),
)
CHOICES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete)
NUMBERS = st.integers(1, 3).map(lambda size: spaces.Box(-2, 2, (size,), np.float32))
ACTIONS = st.one_of(
    CHOICES,
    st.builds(spaces.Discrete, st.integers(1, 5), start=st.integers(-3, 3)),
    NUMBERS,
    st.builds(lambda a, b: spaces.Tuple([a, b]), NUMBERS, CHOICES),
)
TASKS = st.lists(st.tuples(OBSERVATIONS, ACTIONS, st.booleans()), min_size=2, max_size=4)


@pytest.mark.slow
@given(TASKS, st.booleans(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_any_task_writes_what_its_own_group_writes_and_zeros_elsewhere(
    drawn: Sequence[tuple[spaces.Dict, Space, bool]], with_task: bool, seed: int
) -> None:
    names = []
    for observation, action, forbids in drawn:
        sizes = [space.n for space in _parts(action) if isinstance(space, spaces.Discrete)]
        # A head with one choice cannot forbid it.
        forbids = forbids and bool(sizes) and min(sizes) > 1
        names.append(registered(f"drawn/{next(NUMBER)}", observation, action, forbids=forbids))
    tasks = tasks_of(*names, with_task=with_task)
    assert (TASK in tasks.spec.observation) == with_task
    for task in range(len(names)):
        assert_plays_like_its_own_group(tasks, task, steps=6, seed=seed)


@given(TASKS, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_any_agent_is_shown_what_the_group_writes(drawn: Sequence[tuple[spaces.Dict, Space, bool]], seed: int) -> None:
    names = [registered(f"drawn/{next(NUMBER)}", *each[:2]) for each in drawn]
    tasks = tasks_of(*names)
    for task, own in enumerate(tasks.spec.tasks):
        group, alone = tasks.group(task, seed), tasks.own_group(task, seed)
        into, _ = stale_views(tasks.spec)
        own_into, _ = own_views(own, ROWS)
        group.reset(into)
        alone.reset(own_into)
        group.close()
        alone.close()
        view = TaskView((own.observation, own.action), tasks.spec.observation, tasks.spec.action, task)
        shown = view.observation(own_into.observation)
        assert shown.keys() == into.observation.keys()
        for name, array in shown.items():
            np.testing.assert_array_equal(array, into.observation[name])
            assert array.dtype == into.observation[name].dtype
        if into.action_mask is not None:
            np.testing.assert_array_equal(view.mask(None, ROWS), into.action_mask)


def test_an_agent_is_given_the_task_s_own_mask_among_the_shared_choices() -> None:
    tasks = PAIRS["masks of heads"]()
    own = tasks.spec.tasks[1]
    view = TaskView((own.observation, own.action), tasks.spec.observation, tasks.spec.action, 1)
    # Heads of 4, 5 and 4 choices, of which the task has 2, 5 and none.
    assert tasks.spec.action.categorical_sizes == (4, 5, 4)
    given = np.array([[1, 0, 0, 1, 0, 1, 1], [0, 1, 1, 0, 0, 0, 1]], bool)
    expected = [[1, 0, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0]]
    assert view.mask(given, 2).tolist() == np.array(expected, bool).tolist()
    assert view.mask(None, 1).tolist() == [np.array([1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0], bool).tolist()]


def test_an_agent_keeps_the_heads_that_its_task_has() -> None:
    tasks = PAIRS["dicts of actions"]()
    discrete, continuous = np.arange(4, dtype=np.int32).reshape(2, 2), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (tasks.spec.action.num_discrete, tasks.spec.action.num_continuous) == (2, 3)
    expected = [(discrete[:, :1], continuous[:, :2]), (None, continuous), (discrete, None)]
    for task, (choices, numbers) in enumerate(expected):
        own = tasks.spec.tasks[task]
        view = TaskView((own.observation, own.action), tasks.spec.observation, tasks.spec.action, task)
        for found, wanted in zip(view.action(discrete, continuous), (choices, numbers), strict=True):
            assert (found is None) == (wanted is None)
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("mpe/simple_spread_v3", "gym/CartPole-v1"), r"the task mpe/simple_spread_v3 has 3 agents: .*its own"),
        (("gym/CartPole-v1", "own/vector"), "the task own/vector is a vector environment of your own: .*single"),
        (("gym/CartPole-v1", "own/double"), r"under 'obs' \(gym/CartPole-v1 has Box.*; own/double has Box.*int16\)"),
        (("gym/CartPole-v1", "own/image"), "own/image has Box.*one network can learn Boxes of one dtype and number of"),
        (("own/named", "gym/CartPole-v1"), "a task has an observation entry 'task_of_run', .*: rename it"),
    ],
)
def test_environments_that_cannot_be_learned_together_are_refused(names: tuple[str, ...], message: str) -> None:
    register_env("own/vector", lambda num_envs: gym.make_vec("CartPole-v1", num_envs), vector=True)
    registered("own/double", spaces.Box(-1, 1, (4,), np.int16), spaces.Discrete(2))
    registered("own/image", spaces.Box(0, 255, (3, 16, 16), np.uint8), spaces.Discrete(2))
    registered("own/named", spaces.Dict({TASK: spaces.Discrete(2)}), spaces.Discrete(2))
    with pytest.raises(UnsupportedSpace, match=message):
        probe(EnvConfig(name="all", tasks=names))


def test_a_group_of_a_task_of_a_larger_set_has_the_index_of_its_own_task() -> None:
    tasks = PAIRS["vectors"]()
    other = replace(tasks.spec, tasks=tuple(reversed(tasks.spec.tasks)))
    into, _ = stale_views(other)
    group = TaskGroup(tasks.own_group(0), other, 2)
    group.reset(into)
    group.close()
    assert into.observation[TASK].tolist() == [[0.0, 0.0, 1.0]] * ROWS
