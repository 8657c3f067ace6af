"""Checks of a run that learns several tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmill.rollout.assignment import AUTO, FIXED
from rollmill.settings.value_checks import ConfigError

if TYPE_CHECKING:
    from rollmill.settings.config import Config


def check_tasks(run: Config) -> None:
    """Refuse settings that a run of several tasks cannot use.

    Raises:
        ConfigError: Which, and what to do.
    """
    tasks, every = len(run.env.tasks), run.groups_multiple
    policies = len(run.population.names)
    if run.num_envs % every:
        lower = run.num_envs // every * every
        shares = f"{tasks} tasks" + (f" for each of {policies} policies" if policies > 1 else "")
        raise ConfigError(
            f"num_envs={run.num_envs} does not divide into {shares}: use "
            f"{' or '.join(str(n) for n in (lower, lower + every) if n)}."
        )
    if run.task_share == "compute":
        if run.in_lockstep:
            raise ConfigError(
                "task_share='compute' with regime='lockstep': there every environment makes as many steps as the "
                "others, whatever they cost; use task_share='samples', or regime='async'."
            )
        workers = run.rollout.num_workers
        if workers != "auto" and workers % tasks:
            raise ConfigError(
                f"rollout.num_workers={workers} with task_share='compute': each of the {tasks} tasks has as many "
                f"rollout workers; use a multiple of {tasks}, or 'auto'."
            )
    if policies > 1 and run.population.assignment not in (AUTO, FIXED):
        raise ConfigError(
            f"population.assignment={run.population.assignment!r} with several tasks: every policy has environments "
            "of its own, as many of each task; use 'fixed'."
        )
    for policy in run.policies:
        batch = getattr(policy.algorithm, "batch_size", 0)
        if not run.in_replay and run.task_share == "samples" and batch // run.rollout_length < tasks:
            raise ConfigError(
                f"learner.batch_size={batch} is {batch // run.rollout_length} trajectories of "
                f"rollout_length={run.rollout_length}, fewer than the {tasks} tasks, of which each batch has as many "
                f"samples: use at least {tasks * run.rollout_length}."
            )
