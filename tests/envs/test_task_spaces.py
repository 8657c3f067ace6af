"""The spaces that tasks with different spaces share."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.space_data import decode_spaces, encode_spaces
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.envs.task_spaces import (
    choices_of_task,
    needs_mask,
    shared_action,
    shared_observation,
    spec_of_tasks,
    with_task_entry,
)
from rollmill.specs import TASK, EnvSpec, FrameStack

Space = spaces.Space[Any]
TWO = spaces.Discrete(2)
BOX = spaces.Box(-1, 1, (2,), np.float32)


def spec(name: str, observation: Space = BOX, action: Space = TWO, **rest: Any) -> EnvSpec:
    return EnvSpec(
        name=name,
        observation=observation_specs(observation),
        action=action_spec(action),
        spaces=encode_spaces(observation, action),
        **rest,
    )


def observation_of(*given: Space, with_task: bool = False) -> Space:
    return shared_observation([f"task_{i}" for i in range(len(given))], given, with_task=with_task)


def action_of(*given: Space) -> Space:
    return shared_action([f"task_{i}" for i in range(len(given))], given, [action_spec(space) for space in given])


def test_equal_spaces_are_taken_as_they_are() -> None:
    box, action = spaces.Box(1, 2, (2, 3), np.float32), spaces.Discrete(3, start=7)
    assert observation_of(box, spaces.Box(1, 2, (2, 3), np.float32)) == box
    assert action_of(action, spaces.Discrete(3, start=7)) == action
    nested = spaces.Dict(a=spaces.Dict(b=box), c=spaces.MultiBinary(2))
    assert observation_of(nested, nested) == nested


def test_boxes_have_the_largest_size_of_each_axis_and_bounds_that_allow_the_padding() -> None:
    found = observation_of(spaces.Box(1, 2, (2, 3), np.float32), spaces.Box(-5, -4, (4, 1), np.float32))
    assert found == spaces.Box(-5, 2, (4, 3), np.float32)
    # Zero is within neither of these.
    assert observation_of(spaces.Box(3, 4, (1,)), spaces.Box(5, 6, (2,))) == spaces.Box(0, 6, (2,))
    assert observation_of(spaces.Box(-4, -3, (1,)), spaces.Box(-6, -5, (2,))) == spaces.Box(-6, 0, (2,))
    unbounded = observation_of(spaces.Box(-np.inf, 1, (1,)), spaces.Box(-1, np.inf, (2,)))
    assert unbounded == spaces.Box(-np.inf, np.inf, (2,))


def test_bounds_that_differ_between_elements_become_those_of_all_of_them() -> None:
    found = observation_of(spaces.Box(np.array([-3.0, 1.0], "f"), np.array([-2.0, 9.0], "f")), spaces.Box(0, 1, (3,)))
    assert found == spaces.Box(-3, 9, (3,))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint64])
def test_the_largest_integers_are_still_bounds_of_integers(dtype: Any) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = observation_of(spaces.Box(least, most, (2,), dtype), spaces.Box(0, 1, (3,), dtype))
    assert found == spaces.Box(least, most, (3,), dtype)


def test_choices_are_as_many_as_the_task_with_the_most_has() -> None:
    assert observation_of(spaces.Discrete(3), spaces.Discrete(5), spaces.Discrete(4)) == spaces.Discrete(5)
    assert spec_of_tasks("both", [spec("a", spaces.Discrete(3)), spec("b", spaces.Discrete(5))]).observation[
        "obs"
    ].shape == (5,)


def test_entries_of_all_tasks_are_kept_and_joined_one_by_one() -> None:
    first = spaces.Dict(image=spaces.Box(0, 255, (3, 4, 4), np.uint8), speed=spaces.Box(-1, 1, (2,)))
    second = spaces.Dict(goal=spaces.Discrete(3), speed=spaces.Box(-2, 2, (5,)))
    found = observation_of(first, second)
    assert found == spaces.Dict(
        image=spaces.Box(0, 255, (3, 4, 4), np.uint8), goal=spaces.Discrete(3), speed=spaces.Box(-2, 2, (5,))
    )


def test_an_observation_that_is_no_dict_is_the_entry_obs_beside_one_that_is() -> None:
    found = observation_of(spaces.Box(-1, 1, (2,)), spaces.Dict(extra=TWO), spaces.Dict(obs=spaces.Box(-3, 3, (1,))))
    assert found == spaces.Dict(obs=spaces.Box(-3, 3, (2,)), extra=TWO)


def test_entries_of_tuples_are_joined_one_by_one() -> None:
    given = [spaces.Tuple((spaces.Box(-1, 1, (size,), np.float32), TWO)) for size in (2, 3)]
    found = shared_observation(["a", "b"], given, with_task=False)
    assert {name: spec.shape for name, spec in observation_specs(found).items()} == {"0": (3,), "1": (2,)}


def test_dicts_of_actions_in_another_order_do_not_lose_choices() -> None:
    first = spaces.Dict(move=spaces.Discrete(3), aim=spaces.Discrete(5))
    second = spaces.Dict({"aim": spaces.Discrete(5), "move": spaces.Discrete(3)})
    specs = [action_spec(first), action_spec(second)]
    assert first == second
    shared = action_spec(shared_action(["a", "b"], [first, second], specs))
    for own in specs:
        assert choices_of_task(own, shared).sum() == 8


def test_a_mask_in_the_observation_is_not_shared() -> None:
    masked = spaces.Dict(obs=BOX, action_mask=spaces.MultiBinary(2))
    assert observation_of(masked, spaces.Dict(obs=BOX, action_mask=spaces.MultiBinary(3))) == spaces.Dict(obs=BOX)
    assert observation_of(masked, BOX) == spaces.Dict(obs=BOX)


def test_the_entry_of_the_task_is_there_where_it_is_asked_for() -> None:
    assert observation_of(BOX, BOX, with_task=True) == spaces.Dict(obs=BOX, **{TASK: spaces.Discrete(2)})
    found = observation_of(spaces.Dict(a=BOX), spaces.Dict(b=BOX), BOX, with_task=True)
    assert found == spaces.Dict(a=BOX, b=BOX, obs=BOX, **{TASK: spaces.Discrete(3)})
    both = spec_of_tasks("both", [spec("a"), spec("b", spaces.Box(-1, 1, (4,)))])
    assert set(both.observation) == {"obs"}
    shown = with_task_entry(both)
    assert shown.name == "both"
    assert {name: item.shape for name, item in shown.observation.items()} == {"obs": (4,), TASK: (2,)}
    assert shown.tasks == both.tasks
    assert with_task_entry(shown) == shown


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([spaces.Discrete(3), spaces.Discrete(5)], spaces.Discrete(5)),
        # Each task counts from its own start, the network from zero.
        ([spaces.Discrete(3, start=4), spaces.Discrete(3)], spaces.Discrete(3)),
        ([spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([2, 4, 5])], spaces.MultiDiscrete([3, 4, 5])),
        ([spaces.Discrete(7), spaces.MultiDiscrete([2, 4])], spaces.MultiDiscrete([7, 4])),
        # A choice of one.
        ([spaces.Discrete(3), spaces.MultiDiscrete([3, 1])], spaces.MultiDiscrete([3, 1])),
        ([spaces.MultiBinary(3), spaces.Discrete(4)], spaces.MultiDiscrete([4, 2, 2])),
        ([spaces.Box(-1, 1, (1,)), spaces.Box(-2, 0, (3,))], spaces.Box(-2, np.array([1, 0, 0], "f"))),
        ([spaces.Box(-2, 2, (1,)), spaces.Discrete(2)], spaces.Tuple([spaces.Discrete(2), spaces.Box(-2, 2, (1,))])),
        (
            [
                spaces.Dict(x=spaces.Discrete(3), y=spaces.Box(-1, 1, (2,))),
                spaces.Tuple([spaces.Box(-1, 3, (2, 2)), spaces.MultiDiscrete([2, 2])]),
            ],
            spaces.Tuple([spaces.MultiDiscrete([3, 2]), spaces.Box(-1, np.array([3, 3, 3, 3], "f"))]),
        ),
        ([spaces.Box(-np.inf, 0, (1,)), spaces.Box(0, np.inf, (1,))], spaces.Box(-np.inf, np.inf, (1,))),
    ],
)
def test_actions_have_the_heads_and_the_choices_of_all_tasks(given: list[Space], expected: Space) -> None:
    assert action_spec(action_of(*given)) == action_spec(expected)
    assert action_spec(action_of(*reversed(given))) == action_spec(expected)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (spaces.MultiDiscrete([3, 4, 2]), [1, 1, 1, 1, 1, 1, 1, 1, 1]),
        (spaces.MultiDiscrete([2, 4]), [1, 1, 0, 1, 1, 1, 1, 1, 0]),
        (spaces.Discrete(3), [1, 1, 1, 1, 0, 0, 0, 1, 0]),
        # A choice that the task ignores is always the first one.
        (spaces.Box(-1, 1, (2,)), [1, 0, 0, 1, 0, 0, 0, 1, 0]),
    ],
)
def test_a_task_has_its_own_choices_and_the_first_one_of_each_head_that_it_lacks(
    own: Space, expected: list[int]
) -> None:
    shared = action_spec(spaces.MultiDiscrete([3, 4, 2]))
    allowed = choices_of_task(action_spec(own), shared)
    assert allowed.dtype == np.bool_
    assert allowed.tolist() == list(map(bool, expected))


def test_real_numbers_have_no_choices() -> None:
    box = action_spec(spaces.Box(-1, 1, (2,)))
    assert choices_of_task(box, box).shape == (0,)


def test_a_mask_is_needed_where_a_task_has_one_or_lacks_choices() -> None:
    two, three = spec("a"), spec("b", action=spaces.Discrete(3))
    assert not needs_mask([two, two], two.action)
    assert needs_mask([two, three], three.action)
    assert needs_mask([two, replace(two, has_action_mask=True)], two.action)
    real = [spec("c", action=spaces.Box(-1, 1, (1,))), spec("d", action=spaces.Box(-1, 1, (3,)))]
    assert not needs_mask(real, real[1].action)
    assert spec_of_tasks("all", [two, three]).has_action_mask
    assert not spec_of_tasks("all", [two, spec("b")]).has_action_mask
    assert not spec_of_tasks("all", real).has_action_mask


def test_the_spec_of_tasks_is_made_of_theirs() -> None:
    tasks = [
        spec("a", max_episode_steps=10, frameskip=4, repeats=True),
        spec("b", max_episode_steps=50, frameskip=4, repeats=True, native_vector=True),
    ]
    both = spec_of_tasks("both", tasks)
    assert (both.name, both.tasks) == ("both", tuple(tasks))
    assert (both.max_episode_steps, both.frameskip, both.repeats, both.native_vector) == (50, 4, True, True)
    assert not spec_of_tasks("both", [tasks[0], tasks[0]]).native_vector
    other = replace(tasks[1], frameskip=2, max_episode_steps=None, repeats=False)
    mixed = spec_of_tasks("both", [tasks[0], other])
    assert (mixed.max_episode_steps, mixed.frameskip, mixed.repeats) == (None, 1, False)
    assert spec_of_tasks("both", [tasks[0], replace(other, repeats=None)]).repeats is None


def test_the_spaces_are_saved_with_those_of_each_task() -> None:
    first = spec("a", spaces.Dict(x=spaces.Box(-1, 1, (2,)), y=spaces.Discrete(2)), spaces.Discrete(3, start=1))
    second = replace(spec("b", spaces.Box(0, 1, (3,)), spaces.Box(-2, 2, (1,))), has_action_mask=False)
    both = with_task_entry(spec_of_tasks("both", [first, second]))
    found = decode_spaces(json.loads(json.dumps(both.spaces, allow_nan=False)))
    assert observation_specs(found.observation) == both.observation
    assert action_spec(found.action) == both.action
    assert found.has_action_mask
    assert both.has_action_mask
    assert list(found.tasks) == ["a", "b"]
    for own, saved in zip((first, second), found.tasks.values(), strict=True):
        assert observation_specs(saved.observation) == own.observation
        assert action_spec(saved.action) == own.action
        assert not saved.has_action_mask
        assert saved.tasks == {}


def test_frames_are_stacked_where_they_are_in_all_tasks_that_have_them() -> None:
    def stacked(name: str, depth: int, side: int, padding: Any = "zero") -> EnvSpec:
        made = spec(name, spaces.Box(0, 255, (depth, side, side), np.uint8))
        stack = FrameStack(depth=depth, padding=padding)
        return replace(made, observation={"obs": replace(made.observation["obs"], stack=stack)})

    plain = spec("plain", spaces.Box(0, 255, (4, 9, 9), np.uint8))
    elsewhere = spec("elsewhere", spaces.Dict(other=BOX))
    expected = FrameStack(depth=4, padding="zero")
    assert spec_of_tasks("x", [stacked("a", 4, 8), stacked("b", 4, 9)]).observation["obs"].stack == expected
    assert spec_of_tasks("x", [stacked("a", 4, 8), elsewhere]).observation["obs"].stack == expected
    for other in (plain, stacked("b", 4, 8, "repeat")):
        assert spec_of_tasks("x", [stacked("a", 4, 8), other]).observation["obs"].stack is None


@pytest.mark.parametrize(
    ("first", "second", "entry"),
    [
        (spaces.Box(0, 1, (2,), np.float32), spaces.Box(0, 1, (2,), np.int64), "obs"),
        (spaces.Box(0, 255, (3, 64, 64), np.uint8), spaces.Box(0, 255, (84, 84, 3), np.uint8), "obs"),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Box(0, 255, (3, 84, 84), np.uint8), "obs"),
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Box(0, 1, (8,), np.float32), "obs"),
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Box(0, 255, (8, 8), np.uint8), "obs"),
        (spaces.Box(0, 1, (2,)), spaces.Discrete(2), "obs"),
        (spaces.Discrete(2, start=1), spaces.Discrete(3, start=1), "obs"),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 4]), "obs"),
        (spaces.MultiBinary(2), spaces.MultiBinary(3), "obs"),
        (spaces.Dict(deep=spaces.Dict(a=BOX)), spaces.Dict(deep=spaces.Dict(b=BOX)), "deep"),
        (spaces.Dict(same=BOX, odd=BOX), spaces.Dict(same=BOX, odd=TWO), "odd"),
        (spaces.Dict(obs=TWO), BOX, "obs"),
    ],
)
def test_observations_that_differ_in_more_than_size_are_refused(first: Space, second: Space, entry: str) -> None:
    with pytest.raises(UnsupportedSpace) as caught:
        spec_of_tasks("both", [spec("one/a", first), spec("two/b", second)])
    message = str(caught.value)
    assert f"the tasks observe different things under '{entry}' (one/a has " in message
    assert "; two/b has " in message
    assert "Boxes of one dtype and number of axes" in message
    assert "train the others in a run of their own" in message


def test_only_tasks_that_have_the_entry_are_named() -> None:
    tasks = [spec("a", spaces.Dict(x=BOX)), spec("b", spaces.Dict(y=BOX)), spec("c", spaces.Dict(x=TWO))]
    with pytest.raises(UnsupportedSpace, match=r"under 'x' \(a has Box.*; c has Discrete\(2\)\)"):
        spec_of_tasks("all", tasks)


def test_entries_whose_flat_names_meet_are_refused() -> None:
    tasks = [spec("a", spaces.Dict({"x/y": BOX})), spec("b", spaces.Dict(x=spaces.Dict(y=BOX)))]
    with pytest.raises(UnsupportedSpace, match=r"are both called 'x/y'"):
        spec_of_tasks("both", tasks)


def test_an_entry_of_a_task_named_like_that_of_tasks_is_refused() -> None:
    task = spec("a", spaces.Dict({TASK: BOX}))
    with pytest.raises(UnsupportedSpace, match=r"a task has an observation entry 'task_of_run', .*: rename it"):
        spec_of_tasks("both", [task, spec("b", spaces.Dict({TASK: BOX}))])
    with pytest.raises(UnsupportedSpace, match="rename it"):
        spec_of_tasks("both", [task, spec("b")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": ("x", "y")}, r"the task b has 2 agents: .*one agent each; train it in a run of its own"),
        ({"keeps_group_size": True}, r"the task b is a vector environment of your own: .* single environments"),
        ({"spaces": None}, r"the task b has spaces of an unknown kind: .* with Gymnasium's spaces"),
    ],
)
def test_tasks_that_are_no_single_environments_of_one_agent_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedSpace, match=message):
        spec_of_tasks("both", [spec("a"), replace(spec("b"), **change)])
