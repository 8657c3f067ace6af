"""The space of allocations, and the search for the best one.

Settings that change results are never free: in lockstep these are environments, groups and the learner's threads, in
replay the update interval. In other regimes the number of environments, and in replay that of learners, also affects
learning, so both are limited (:mod:`rollmill.tuning.settings`). A setting that the user gave has only that value in a
:class:`Space`.

The model ranks all allocations, and the best ones are tried on the machine (:mod:`rollmill.tuning.trials`). Of equally
fast allocations the one nearest to the preset is chosen, because needless environments make samples older.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.tuning.model import Allocation, Floats, StageCosts, Workload, predict

# Candidates for the groups of a rollout worker and the environments of a group, if they are free.
_GROUPS_PER_WORKER = (1, 2, 3, 4, 6, 8)
_ENVS_PER_GROUP = (1, 2, 4, 8, 16, 32, 64)
# The speed ratio that justifies an allocation that is further from the preset.
WORTH_IT = 1.02
_DEARER = 1.2
_LOOKED_AT_CLOSELY = 8192


@dataclass(frozen=True, kw_only=True)
class Space:
    """The values to choose from.

    Attributes:
        cores: M.
        rollout_workers: Numbers to choose from.
        policy_workers: Likewise.
        learner_cores: Likewise.
        num_envs: Likewise; empty for as many as fill the workers' groups, up to ``most_envs``.
        envs_per_group: Likewise; must divide the environments.
        most_envs: Where they are free.
        preset: The allocation without tuning.
        in_whole_batches: In lockstep, groups of an inference batch; their number must be a multiple.
        groups_per_worker: Groups of each rollout worker; None leaves it open.
        groups_multiple: The number of groups must be a multiple: each policy has as many of each task.
        least_envs: So that every policy has an agent to play.
    """

    cores: int
    rollout_workers: tuple[int, ...]
    policy_workers: tuple[int, ...]
    learner_cores: tuple[int, ...]
    num_envs: tuple[int, ...]
    envs_per_group: tuple[int, ...]
    most_envs: int
    preset: Allocation
    in_whole_batches: int = 1
    groups_per_worker: int | None = None
    groups_multiple: int = 1
    least_envs: int = 1

    @classmethod
    def of(
        cls,
        workload: Workload,
        preset: Allocation,
        cores: int,
        *,
        learner_cores: Sequence[int] = (1,),
        fixed: frozenset[str] = frozenset(),
        most_envs: int | None = None,
        most_workers: int | None = None,
        groups_per_worker: int | None = None,
        groups_multiple: int = 1,
        workers_multiple: int = 1,
        least_envs: int = 1,
    ) -> Space:
        """The space that the regime leaves free.

        Args:
            workload: Contains the regime.
            preset: The allocation without tuning.
            cores: M.
            learner_cores: Cores that a learner of this regime can use.
            fixed: Fields of :class:`Allocation` that keep the preset's value.
            most_envs: A limit on free environments, besides four times the preset's (or 16 a core, if more).
            most_workers: Rollout workers; by default as many as cores.
            groups_per_worker: What the user has set.
            groups_multiple: See above.
            workers_multiple: Likewise for rollout workers.
            least_envs: See above.
        """
        is_lockstep = workload.regime == "lockstep"
        if is_lockstep:
            fixed |= {"num_envs", "envs_per_group", "learner_cores"}
        sizes = sorted({*_ENVS_PER_GROUP, int(preset.envs_per_group)})
        if "num_envs" in fixed:
            sizes = [n for n in range(1, preset.num_envs + 1) if preset.num_envs % n == 0]
        values: dict[str, tuple[int, ...]] = {
            "rollout_workers": tuple(
                workers
                for workers in counts(max(most_workers or cores, workers_multiple), 16)
                if workers % workers_multiple == 0
            ),
            "policy_workers": counts(max(2, 3 * cores // 4), 8),
            "learner_cores": tuple(sorted(set(learner_cores))),
            "num_envs": (),
            "envs_per_group": tuple(sizes),
        }
        most = max(4 * preset.num_envs, 16 * cores)
        return cls(
            **values | {name: (getattr(preset, name),) for name in fixed},
            cores=cores,
            most_envs=most if most_envs is None else min(most, most_envs),
            preset=preset,
            in_whole_batches=workload.groups_per_batch if is_lockstep else 1,
            groups_per_worker=groups_per_worker,
            groups_multiple=groups_multiple,
            least_envs=least_envs,
        )

    def allocations(self) -> Allocation:
        """All allocations, as integer arrays ``[K]``, the preset's among them."""
        rows: list[tuple[int, ...]] = [tuple(self.preset)]
        for envs_per_group, workers in itertools.product(self.envs_per_group, self.rollout_workers):
            numbers = [workers * groups for groups in _GROUPS_PER_WORKER]
            filled = [(groups + -groups % self.groups_multiple) * envs_per_group for groups in numbers]
            for num_envs in self.num_envs or {*filled, self.preset.num_envs}:
                if not self._has_groups(workers, num_envs, envs_per_group):
                    continue
                most = num_envs // envs_per_group // self.in_whole_batches
                served = self.policy_workers[: bisect_right(self.policy_workers, most)]
                rows += [
                    (workers, policy_workers, learner_cores, num_envs, envs_per_group)
                    for policy_workers, learner_cores in itertools.product(served, self.learner_cores)
                ]
        table = np.array(sorted(set(rows)), np.int64)
        return Allocation(*table.T)

    def _has_groups(self, workers: int, num_envs: int, envs_per_group: int) -> bool:
        """Whether all workers have groups, and the number of environments is allowed."""
        groups = num_envs // envs_per_group
        return (
            self.least_envs <= num_envs <= (self.most_envs if not self.num_envs else num_envs)
            and num_envs % envs_per_group == 0
            and groups >= workers
            and self.groups_per_worker in (None, groups / workers)
            and groups % self.in_whole_batches == 0
            and groups % self.groups_multiple == 0
        )


class Candidate(NamedTuple):
    """An allocation and its speed by the model or a trial.

    Attributes:
        allocation: The allocation.
        steps_per_second: Agent steps a second, or the speed over the preset's.
    """

    allocation: Allocation
    steps_per_second: float


def rank(costs: StageCosts, workload: Workload, space: Space, *, count: int) -> list[Candidate]:
    """The best allocations by the model, the best first, and always the preset's, if necessary as the last one.

    Args:
        costs: Of the machine.
        workload: Of the run.
        space: The values to choose from.
        count: How many.
    """
    table = _promising(costs, workload, space)
    speeds = expected_speeds(costs, workload, table, space.cores)
    order = _in_order(table, speeds, space.preset)
    best = [Candidate(table.at(i), float(speeds[i])) for i in order[:count].tolist()]
    if all(candidate.allocation != space.preset for candidate in best):
        speed = expected_speeds(costs, workload, space.preset, space.cores)[0]
        best[-1:] = [Candidate(space.preset, float(speed))]
    return best


def _promising(costs: StageCosts, workload: Workload, space: Space) -> Allocation:
    """The fastest of all allocations by the model, for a closer look."""
    table = space.allocations()
    speeds = predict(costs, workload, table, space.cores).steps_per_second
    return table.where(_in_order(table, speeds, space.preset)[:_LOOKED_AT_CLOSELY])


def _in_order(table: Allocation, speeds: Floats, preset: Allocation) -> NDArray[np.int64]:
    """The order by speed, with speeds in steps of 1 %, and by distance to the preset among equal ones."""
    return np.lexsort((distance(table, preset), np.floor(np.log(speeds.max() / speeds) / np.log(1.01))))


def expected_speeds(costs: StageCosts, workload: Workload, table: Allocation, cores: int) -> Floats:
    """Mean speed over possible true costs, float64 ``[K]``.

    Costs are measured to about ten per cent, so an allocation with spare capacity is preferable.
    """
    scenarios = [costs, *(_dearer(costs, stage) for stage in ("env", "inference", "sgd"))]
    speeds = [predict(each, workload, table, cores).steps_per_second for each in scenarios]
    mean: Floats = np.mean(speeds, axis=0)
    return mean


def _dearer(costs: StageCosts, stage: str) -> StageCosts:
    names = [f.name for f in fields(costs) if f.name.startswith(stage) and f.name.endswith("_s")]
    return replace(costs, **{name: getattr(costs, name) * _DEARER for name in names})


def choose(candidates: Sequence[Candidate], preset: Allocation) -> Candidate:
    """The candidate nearest to the preset among those that are as good as the fastest."""
    fastest = max(candidate.steps_per_second for candidate in candidates)
    good = [c for c in candidates if c.steps_per_second * WORTH_IT >= fastest]
    return min(good, key=lambda c: (distance(c.allocation, preset), -c.steps_per_second))


def nearest(table: Allocation, speeds: Floats, preset: Allocation) -> Allocation:
    """As :func:`choose`, for a table ``[K]`` with speeds float64 ``[K]``."""
    good = np.flatnonzero(speeds * WORTH_IT >= speeds.max())
    distances = distance(table.where(good), preset)
    return table.at(int(good[np.lexsort((-speeds[good], distances))[0]]))


def search(costs: StageCosts, workload: Workload, space: Space) -> Candidate:
    """The allocation to choose by the model alone, with the speed that it predicts."""
    table = _promising(costs, workload, space)
    best = nearest(table, expected_speeds(costs, workload, table, space.cores), space.preset)
    return Candidate(best, float(predict(costs, workload, best, space.cores).steps_per_second[0]))


def counts(most: int, fineness: int) -> tuple[int, ...]:
    """Numbers from 1 to ``most``: all up to ``fineness``, then in steps of about ``1 / fineness``."""
    few = min(most, fineness**2)
    numbers = [n for n in range(1, few + 1) if n % max(1, n // fineness) == 0]
    while numbers[-1] < most:
        numbers.append(numbers[-1] + max(1, numbers[-1] // fineness))
    return (*(n for n in numbers if n < most), most)


def distance(allocation: Allocation, preset: Allocation) -> Any:
    """The distance of one or many from an allocation, in doublings; environments count more: they affect learning."""
    weights = (0.5, 0.5, 0.5, 2.0, 1.0)
    terms = zip(weights, allocation, preset, strict=True)
    return sum(weight * np.abs(np.log2(values / given)) for weight, values, given in terms)
