"""The usable cores, and the placement and niceness of processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rollmill.runtime import cgroups
from rollmill.settings.fields import setting
from rollmill.settings.value_checks import Checked, Rule, integer

_NICENESS = Rule(lambda value: integer(0).holds(value) and value <= 19, "an integer of 0 (normal) to 19 (last)")


@dataclass(frozen=True, kw_only=True)
class PlacementConfig(Checked, section="placement"):
    """Placement and priority of the processes.

    Attributes:
        pin: ``"on"`` gives each process cores of its own, in turn where there are not enough. ``"rollout_workers"``
            does so with rollout workers only and lets the others go where they find time; ``"off"`` leaves everything
            to the scheduler. ``"auto"`` is "on" where there are enough cores and the container does not limit CPU time;
            "off" otherwise, since pinning would then only take choice away.
        pin_on_two_cores: Whether "auto" is "rollout_workers" on two cores that have equally many of those, with one
            policy. Measured on one machine (docs/journal/): 5 per cent more steps a second in Atari and 9 in VizDoom,
            whose presets say so, with 8 and 23 per cent more policy lag; 15 per cent less in Gymnasium's CartPole, and
            10 with twelve policies of Atari. Not measured with more cores, where one of many rollout workers would
            share its core with the learner.
        rollout_worker_nice: Niceness of rollout workers, 0..19. Deprioritised: they are many, and a late learner or
            policy worker makes all of them wait. Default as in Sample Factory (``actor_worker.py``: +10).
        policy_worker_nice: Niceness of policy workers (Sample Factory: +2).
        learner_nice: Niceness of learners (Sample Factory: 0).
    """

    pin: Literal["auto", "on", "rollout_workers", "off"] = "auto"
    pin_on_two_cores: bool = False
    rollout_worker_nice: int = setting(10, _NICENESS)
    policy_worker_nice: int = setting(2, _NICENESS)
    learner_nice: int = setting(0, _NICENESS)


class Placement(NamedTuple):
    """One process's ``cpus`` and ``nice`` arguments for ``Supervisor.start``."""

    cpus: tuple[int, ...] | None
    nice: int


class PlacementPlan(NamedTuple):
    """A placement for each process."""

    rollout_workers: tuple[Placement, ...]
    policy_workers: tuple[Placement, ...]
    learners: tuple[Placement, ...]


def usable_cpus() -> tuple[int, ...]:
    """Numbers of the CPUs that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def usable_cores() -> int:
    """The number of usable CPUs, or the container's limit (rounded up) if that is less."""
    quota = cgroups.cpu_quota()
    count = len(usable_cpus())
    return count if quota is None else max(1, min(count, -int(-quota // 1)))


def plan(
    *,
    num_rollout_workers: int,
    num_policy_workers: int,
    num_learners: int,
    config: PlacementConfig,
    threads_per_learner: int = 1,
    num_policies: int = 1,
    cpus: tuple[int, ...] | None = None,
    cores: int | None = None,
) -> PlacementPlan:
    """Places the processes of a run.

    Args:
        num_rollout_workers: How many there are.
        num_policy_workers: How many there are.
        num_learners: How many there are.
        config: What the user wants.
        threads_per_learner: Cores that each learner is to have.
        num_policies: How many policies learn.
        cpus: CPU numbers to give out; default `usable_cpus`.
        cores: Cores' worth of time; default `usable_cores`.
    """
    cpus = usable_cpus() if cpus is None else cpus
    cores = usable_cores() if cores is None else cores
    pin = config.pin
    if pin == "auto":
        demand = num_learners * threads_per_learner + num_policy_workers + num_rollout_workers
        if cores < len(cpus):
            pin = "off"
        elif demand <= len(cpus):
            pin = "on"
        else:
            shared_equally = len(cpus) == 2 and num_rollout_workers % 2 == 0
            # Those of several policies work at the same time, where their batches become complete together, and one of
            # them on the learner's core.
            is_faster = config.pin_on_two_cores and num_policies == 1
            pin = "rollout_workers" if is_faster and shared_equally else "off"
    given = 0

    def take(count: int, nice: int, pinned: bool) -> Placement:
        nonlocal given
        if not pinned:
            return Placement(None, nice)
        chosen = {cpus[(given + i) % len(cpus)] for i in range(count)}
        given += count
        return Placement(tuple(sorted(chosen)), nice)

    # Processes that must not wait come first, so that rollout workers share cores if anyone does.
    all_pinned, rollout_pinned = pin == "on", pin in ("on", "rollout_workers")
    learners = tuple(take(threads_per_learner, config.learner_nice, all_pinned) for _ in range(num_learners))
    policy_workers = tuple(take(1, config.policy_worker_nice, all_pinned) for _ in range(num_policy_workers))
    rollout_workers = tuple(take(1, config.rollout_worker_nice, rollout_pinned) for _ in range(num_rollout_workers))
    return PlacementPlan(rollout_workers, policy_workers, learners)
