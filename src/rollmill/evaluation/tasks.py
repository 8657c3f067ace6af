"""The tasks of a run that learns several: which of them is played, in the spaces that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import probe
from rollmill.envs.task_group import TaskGroup
from rollmill.envs.task_spaces import with_task_entry
from rollmill.envs.views import Group, SavableGroup
from rollmill.evaluation.snapshot import Snapshot
from rollmill.specs import EnvSpec

AGroup = TypeVar("AGroup", bound=Group)


class UnknownTaskError(LookupError):
    """The run has no such task."""


def task_index(env: EnvConfig, task: str) -> int:
    """Return the index of a run's task.

    Args:
        env: The run's environment.
        task: The task's name, or its last part (``pong`` for ``atari/pong``) where that is unambiguous.

    Raises:
        UnknownTaskError: It has no such task, or several.
    """
    if not env.tasks:
        raise UnknownTaskError(f"task {task!r}: the run has one environment, {env.name}; omit the task")
    if task in env.tasks:
        return env.tasks.index(task)
    found = [name for name in env.tasks if name.rpartition("/")[2] == task]
    if len(found) > 1:
        raise UnknownTaskError(f"{task!r} may be {' or '.join(found)}: give the whole name")
    if not found:
        raise UnknownTaskError(f"the run has no task {task!r}; choose one of {', '.join(env.tasks)}")
    return env.tasks.index(found[0])


def spec_of(snapshots: Sequence[Snapshot], env: EnvConfig) -> EnvSpec:
    """Return the spec of the environments that networks play, with all entries that any of them was trained on.

    Args:
        snapshots: The networks of a run, at least one.
        env: The environment, perhaps with another time limit than in training.
    """
    spec = probe(env, group_size=snapshots[0].group_size)
    uses_task = any(snapshot.model.uses_task for snapshot in snapshots)
    return with_task_entry(spec) if spec.tasks and uses_task else spec


def shown_as_task(group: AGroup, spec: EnvSpec, task: int) -> AGroup:
    """Return a task's environments in the spaces of all tasks; as they are where there is one."""
    return cast("AGroup", TaskGroup(cast("SavableGroup", group), spec, task)) if spec.tasks else group
