"""The environments of one task of several, shown in the spaces that all tasks share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollmill.envs.info_metrics import InfoMetrics
from rollmill.envs.task_clock import TaskClock
from rollmill.envs.task_spaces import choices_of_task
from rollmill.envs.views import Array, ObservationView, OutcomeView, SavableGroup
from rollmill.specs import TASK, ActionSpec, ArraySpec, EnvSpec


class TaskGroup:
    """A group whose rows show one task in the spaces of all tasks.

    Observations are written into parts of the shared arrays, without a copy.

    Args:
        group: The task's environments.
        spec: The spec of all tasks.
        task: Index of the task.
        clock: Counts the time of its steps; None for nothing.

    Attributes:
        num_rows: See ``Group``.
        failures: See ``Group``.
    """

    def __init__(self, group: SavableGroup, spec: EnvSpec, task: int, clock: TaskClock | None = None) -> None:
        self._group = group
        self._own = spec.tasks[task]
        self._task = task
        self._clock = clock
        self._allowed = choices_of_task(self._own.action, spec.action)
        self.num_rows = group.num_rows
        self.failures = group.failures
        self._mask: Array | None = None
        # The columns of the shared mask that the task's own mask has, in its order.
        self._columns = np.flatnonzero(self._allowed)[: self._own.action.mask_size]
        if self._own.has_action_mask:
            self._mask = np.ones((group.num_rows, self._own.action.mask_size), bool)

    @property
    def metrics(self) -> InfoMetrics:
        """See ``SavableGroup``."""
        return self._group.metrics

    @property
    def observation_space(self) -> Any:
        """That of the task alone."""
        return self._group.observation_space

    @property
    def action_space(self) -> Any:
        """That of the task alone."""
        return self._group.action_space

    def reset(self, into: ObservationView) -> None:
        """See ``Group.reset``."""
        self._group.reset(self._part(into))
        self._fill(into)

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """See ``Group.step``."""
        if self._clock is not None:
            self._clock.pause(self._task)
        began = time.perf_counter()
        self._group.step(*own_heads(self._own.action, discrete, continuous), self._part(into), outcome)
        self._fill(into)
        if self._clock is not None:
            self._clock.add(self._task, time.perf_counter() - began)

    def snapshot(self) -> bytes | None:
        """See ``SavableGroup.snapshot``."""
        return self._group.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """See ``SavableGroup.restore``."""
        self._group.restore(snapshot)

    def close(self) -> None:
        """See ``Group.close``."""
        self._group.close()

    def _part(self, into: ObservationView) -> ObservationView:
        """Return the part of the shared arrays that the task writes."""
        own: dict[str, Array] = {}
        for name, spec in self._own.observation.items():
            array = into.observation[name]
            inside = tuple(slice(0, size) for size in spec.shape)
            own[name] = array if array.shape[1:] == spec.shape else array[(slice(None), *inside)]
        return into._replace(observation=own, action_mask=self._mask)

    def _fill(self, into: ObservationView) -> None:
        """Write what the task itself does not: the padding, which task it is, and the choices that it has."""
        for name, array in into.observation.items():
            spec = self._own.observation.get(name)
            if name == TASK:
                array.fill(0)
                array[:, self._task] = 1
            elif spec is None:
                array.fill(0)
            elif array.shape[1:] != spec.shape:
                _clear_padding(array, spec.shape)
        if into.action_mask is None:
            return
        into.action_mask[:] = self._allowed
        if self._mask is not None:
            into.action_mask[:, self._columns] = self._mask


class TaskView:
    """What an agent needs to act in a task: conversion between the task's own arrays and the shared ones.

    Args:
        own: The task in its own spaces: observation and action.
        observation: Name -> spec of the shared observation.
        action: The shared action.
        task: Index of the task.
    """

    def __init__(
        self,
        own: tuple[Mapping[str, ArraySpec], ActionSpec],
        observation: Mapping[str, ArraySpec],
        action: ActionSpec,
        task: int,
    ) -> None:
        self._own, self._own_action = own
        self._shared = observation
        self._allowed = choices_of_task(self._own_action, action)
        self._task = task

    def observation(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """Return the task's observations, name -> ``[B, ...]``, as shared ones."""
        rows = len(next(iter(own.values())))
        shared = {name: np.zeros((rows, *item.shape), item.dtype) for name, item in self._shared.items()}
        for name, item in self._own.items():
            shared[name][(slice(None), *(slice(0, size) for size in item.shape))] = own[name]
        if TASK in shared:
            shared[TASK][:, self._task] = 1
        return shared

    def mask(self, own: Array | None, rows: int) -> Array:
        """Return the mask of the shared choices, bool ``[B, M]``, given the task's own; None allows all of its own."""
        shared = np.tile(self._allowed, (rows, 1))
        if own is not None:
            shared[:, np.flatnonzero(self._allowed)[: own.shape[1]]] = own
        return shared

    def action(self, discrete: Array | None, continuous: Array | None) -> tuple[Array | None, Array | None]:
        """Return the heads that the task has."""
        return own_heads(self._own_action, discrete, continuous)


def own_heads(
    action: ActionSpec, discrete: Array | None, continuous: Array | None
) -> tuple[Array | None, Array | None]:
    """Return the columns of the shared actions, ``[B, Kd]`` and ``[B, Kc]``, that a task with this action has."""
    choices, numbers = action.num_discrete, action.num_continuous
    return (
        discrete[:, :choices] if discrete is not None and choices else None,
        continuous[:, :numbers] if continuous is not None and numbers else None,
    )


def _clear_padding(array: Array, shape: tuple[int, ...]) -> None:
    """Zero what lies outside of ``shape`` in ``array [B, ...]``; slots are used again, also by other tasks."""
    inside: list[Any] = [slice(None)]
    for axis, size in enumerate(shape):
        if size < array.shape[axis + 1]:
            array[(*inside, slice(size, None))] = 0
        inside.append(slice(0, size))
