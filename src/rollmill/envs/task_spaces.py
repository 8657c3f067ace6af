"""One observation and one action space for tasks whose spaces differ, so that one network can learn all of them.

Observations are padded with zeros to the largest shape, and an entry that a task lacks is zero. Actions get the heads
and the choices of all tasks; a mask forbids choices that a task does not have, and numbers that it does not have are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from gymnasium import spaces

from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.space_data import decode_spaces, encode_spaces
from rollmill.envs.spaces import ObservationCodec, action_spec, without_mask
from rollmill.specs import TASK, ActionSpec, ArraySpec, BoxHead, EnvSpec

Space = spaces.Space[Any]


def spec_of_tasks(name: str, tasks: Sequence[EnvSpec], *, with_task: bool = False) -> EnvSpec:
    """Return the spec of rows that may show any of the tasks.

    Args:
        name: The name of all of them together.
        tasks: Each in its own spaces.
        with_task: Whether an entry of the observation says which task it is.

    Raises:
        UnsupportedSpace: One network cannot learn all of them.
    """
    for task in tasks:
        if task.agents:
            raise UnsupportedSpace(
                f"the task {task.name} has {len(task.agents)} agents: tasks that are learned together have one agent "
                "each; train it in a run of its own"
            )
        if task.spaces is None or task.keeps_group_size:
            raise UnsupportedSpace(
                f"the task {task.name} "
                + ("is a vector environment of your own" if task.keeps_group_size else "has spaces of an unknown kind")
                + ": tasks that are learned together are single environments with Gymnasium's spaces"
            )
    names = [task.name for task in tasks]
    found = [decode_spaces(task.spaces) for task in tasks]
    observation = shared_observation(names, [each.observation for each in found], with_task=with_task)
    own_actions = [task.action for task in tasks]
    action_space = shared_action(names, [each.action for each in found], own_actions)
    action = action_spec(action_space)
    has_mask = needs_mask(tasks, action)
    limits = [task.max_episode_steps for task in tasks]
    skips = {task.frameskip for task in tasks}
    spaces_of_all = encode_spaces(observation, action_space, has_action_mask=has_mask)
    assert spaces_of_all is not None, "they are made of spaces that have this form"
    specs = {entry: _stacked_alike(entry, spec, tasks) for entry, spec in ObservationCodec(observation).specs.items()}
    return EnvSpec(
        name=name,
        observation=specs,
        action=action,
        has_action_mask=has_mask,
        # Frames of tasks that skip different numbers of them do not add up.
        frameskip=skips.pop() if len(skips) == 1 else 1,
        max_episode_steps=None if None in limits else max(filter(None, limits)),
        native_vector=any(task.native_vector for task in tasks),
        tasks=tuple(tasks),
        repeats=None if any(task.repeats is None for task in tasks) else all(task.repeats for task in tasks),
        spaces={**spaces_of_all, "tasks": {task.name: task.spaces for task in tasks}},
    )


def with_task_entry(spec: EnvSpec) -> EnvSpec:
    """Return the spec of tasks with the entry that says which task an observation belongs to."""
    return spec_of_tasks(spec.name, spec.tasks, with_task=True)


def shared_observation(names: Sequence[str], given: Sequence[Space], *, with_task: bool) -> Space:
    """Return the observation space of a row that may show any of the tasks.

    Args:
        names: The tasks' names, for messages.
        given: Their observation spaces.
        with_task: Whether an entry says which task it is.

    Raises:
        UnsupportedSpace: They differ in more than sizes and entries.
    """
    bare = [without_mask(space) for space in given]
    if any(isinstance(space, spaces.Dict) and TASK in space.spaces for space in bare):
        raise UnsupportedSpace(f"a task has an observation entry {TASK!r}, which says which task it is: rename it")
    is_plain = not any(isinstance(space, spaces.Dict | spaces.Tuple) for space in bare)
    if is_plain and not with_task:
        return _joined(names, bare, "obs")
    entries = [_entries(space) for space in bare]
    keys = list(dict.fromkeys(key for of_task in entries for key in of_task))
    joined: dict[str, Space] = {}
    for key in keys:
        having = [index for index, of_task in enumerate(entries) if key in of_task]
        joined[key] = _joined([names[i] for i in having], [entries[i][key] for i in having], key)
    if with_task:
        joined[TASK] = spaces.Discrete(len(names))
    return spaces.Dict(joined)


def shared_action(names: Sequence[str], given: Sequence[Space], specs: Sequence[ActionSpec]) -> Space:
    """Return an action space with the heads of all tasks.

    Args:
        names: The tasks' names, for messages.
        given: Their action spaces.
        specs: Their actions.
    """
    first = given[0]
    # Dicts are equal whatever the order of their entries, which is that of the heads.
    if all(space == first for space in given) and all(spec == specs[0] for spec in specs):
        return first
    sizes = [max(column) for column in zip_longest(*(spec.categorical_sizes for spec in specs), fillvalue=1)]
    lows = [_bounds(spec, "low") for spec in specs]
    highs = [_bounds(spec, "high") for spec in specs]
    parts: list[Space] = []
    if sizes:
        parts.append(spaces.Discrete(sizes[0]) if len(sizes) == 1 else spaces.MultiDiscrete(sizes))
    if any(lows):
        low = [min(filter(_is_given, column)) for column in zip_longest(*lows)]
        high = [max(filter(_is_given, column)) for column in zip_longest(*highs)]
        parts.append(spaces.Box(np.array(low, np.float32), np.array(high, np.float32)))
    return parts[0] if len(parts) == 1 else spaces.Tuple(parts)


def choices_of_task(own: ActionSpec, shared: ActionSpec) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which of the shared choices a task has, bool ``[M]``; the first one of each head that it lacks."""
    parts = []
    for size, most in zip_longest(own.categorical_sizes, shared.categorical_sizes, fillvalue=1):
        parts.append(np.arange(most) < size)
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def needs_mask(specs: Sequence[EnvSpec], shared: ActionSpec) -> bool:
    """Whether a row needs a mask of allowed actions: a task has one, or lacks choices that others have."""
    if any(spec.has_action_mask for spec in specs):
        return True
    return any(not choices_of_task(spec.action, shared).all() for spec in specs)


def _stacked_alike(entry: str, shared: ArraySpec, tasks: Sequence[EnvSpec]) -> ArraySpec:
    """Return an entry's spec with the stack of frames that it has in all tasks, if it has."""
    stacks = {task.observation[entry].stack for task in tasks if entry in task.observation}
    stack = stacks.pop() if len(stacks) == 1 else None
    fits = stack is not None and shared.shape[0] == stack.depth
    return replace(shared, stack=stack) if fits else shared


def _is_given(value: float | None) -> bool:
    return value is not None


def _bounds(spec: ActionSpec, kind: str) -> list[float]:
    return [value for head in spec.heads if isinstance(head, BoxHead) for value in getattr(head, kind)]


def _entries(space: Space) -> Mapping[str, Space]:
    if isinstance(space, spaces.Dict):
        return space.spaces
    if isinstance(space, spaces.Tuple):
        return {str(index): child for index, child in enumerate(space.spaces)}  # as they are called in slots
    return {"obs": space}


def _joined(names: Sequence[str], given: Sequence[Space], entry: str) -> Space:
    first = given[0]
    if all(space == first for space in given):
        return first
    if all(isinstance(space, spaces.Discrete) for space in given):
        found = [(int(space.n), int(space.start)) for space in given if isinstance(space, spaces.Discrete)]
        if not any(start for _, start in found):
            return spaces.Discrete(max(n for n, _ in found))
    boxes = [space for space in given if isinstance(space, spaces.Box)]
    if len(boxes) == len(given) and len({(len(box.shape), _stored(box), _channels(box)) for box in boxes}) == 1:
        return _joined_boxes(boxes)
    described = "; ".join(f"{name} has {space}" for name, space in dict(zip(names, given, strict=True)).items())
    raise UnsupportedSpace(
        f"the tasks observe different things under {entry!r} ({described}): one network can learn Boxes of one dtype "
        "and number of axes, whatever their sizes, and pictures with the same channels; train the others in a run of "
        "their own, or wrap them"
    )


def _stored(box: spaces.Box) -> np.dtype[Any]:
    """Return the dtype of a Box in slots, which hold float64 as float32."""
    assert box.dtype is not None
    return np.dtype(np.float32) if box.dtype == np.float64 else np.dtype(box.dtype)


def _channels(box: spaces.Box) -> tuple[int, int] | None:
    """Return the axis and the number of the channels, or stacked frames, of a picture; None for other arrays."""
    if box.dtype != np.uint8 or len(box.shape) < 3:
        return None
    axis = int(np.argmin(box.shape))
    return axis, box.shape[axis]


def _joined_boxes(given: Sequence[spaces.Box]) -> spaces.Box:
    shape = tuple(max(sizes) for sizes in zip(*(space.shape for space in given), strict=True))
    dtype = _stored(given[0])
    # Padding is zero, whatever the bounds.
    low = min(0, *(space.low.min().item() for space in given))
    high = max(0, *(space.high.max().item() for space in given))
    return spaces.Box(np.full(shape, low, dtype), np.full(shape, high, dtype), shape, dtype.type)
