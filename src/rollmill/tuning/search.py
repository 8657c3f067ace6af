"""Which allocations there are to choose from, and the search for the best one.

What would change a run's numbers is never free: in lockstep environments and groups are hyperparameters, and so are the
learner's threads; in replay the update interval is. Environments elsewhere, and learners in replay, have a part in what
is learned too, so there are not too many of them (:mod:`rollmill.tuning.settings`). What a user has set is not free
either: each dimension of a :class:`Space` is then one value.

The model ranks all of it in a moment; the best of that are simulated (:mod:`rollmill.tuning.simulate`), and the best
of those, on a real machine, are tried (:mod:`rollmill.tuning.trials`). Of allocations that are equally fast the one
nearest to the preset is taken, because environments that nobody needs make samples older.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.tuning.model import Allocation, Floats, StageCosts, Workload, predict, upper_bound
from rollmill.tuning.simulate import simulate

__all__ = [
    "WORTH_IT",
    "Candidate",
    "Space",
    "choose",
    "counts",
    "distance",
    "exhaustive",
    "nearest",
    "rank",
    "search",
    "simulated",
]

# Groups of a rollout worker, and environments of a group, that are looked at where they are free.
_GROUPS_PER_WORKER = (1, 2, 3, 4, 6, 8)
_ENVS_PER_GROUP = (1, 2, 4, 8, 16, 32, 64)
# How much faster an allocation must be than one that is nearer to the preset.
WORTH_IT = 1.02
_DEARER = 1.2
_SIMULATED = 12
_CLIMBS = 4
_MANY_GROUPS = 64
_NEAR, _LOOKED_AT_FIRST, _LOOKED_AT_CLOSELY = 0.95, 4096, 8192


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be chosen.

    Attributes:
        cores: M.
        rollout_workers: Numbers to choose from.
        policy_workers: Likewise.
        learner_cores: Likewise.
        num_envs: Likewise; empty: as many as fill the workers' groups, up to ``most_envs``.
        envs_per_group: Likewise; must divide the environments.
        most_envs: Where they are free.
        preset: What would be used without tuning.
        in_whole_batches: In lockstep, groups of an inference batch; their number must be a multiple.
        groups_per_worker: As many on each rollout worker; None leaves it open.
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
    ) -> Space:
        """All that the regime leaves free.

        Args:
            workload: Says which regime.
            preset: What would be used without tuning.
            cores: M.
            learner_cores: Cores that a learner of this regime can use.
            fixed: Fields of :class:`Allocation` that keep the preset's value.
            most_envs: Where environments are free; by default four times the preset's, or 16 a core.
            most_workers: Rollout workers; by default as many as cores.
            groups_per_worker: What the user has set.
        """
        is_lockstep = workload.regime == "lockstep"
        envs_fixed = is_lockstep or "num_envs" in fixed
        groups_fixed = is_lockstep or "envs_per_group" in fixed
        sizes = sorted({*_ENVS_PER_GROUP, int(preset.envs_per_group)})
        if envs_fixed:
            sizes = [n for n in range(1, preset.num_envs + 1) if preset.num_envs % n == 0]
        return cls(
            cores=cores,
            rollout_workers=(preset.rollout_workers,)
            if "rollout_workers" in fixed
            else counts(most_workers or cores, 16),
            policy_workers=(
                (preset.policy_workers,) if "policy_workers" in fixed else counts(max(2, 3 * cores // 4), 8)
            ),
            learner_cores=(
                (preset.learner_cores,)
                if is_lockstep or "learner_cores" in fixed
                else tuple(sorted(set(learner_cores)))
            ),
            num_envs=(preset.num_envs,) if envs_fixed else (),
            envs_per_group=(preset.envs_per_group,) if groups_fixed else tuple(sizes),
            most_envs=most_envs or max(4 * preset.num_envs, 16 * cores),
            preset=preset,
            in_whole_batches=workload.groups_per_batch if is_lockstep else 1,
            groups_per_worker=groups_per_worker,
        )

    def allocations(self) -> Allocation:
        """All of them, as integer arrays ``[K]``; K is at least 1: the preset's is among them."""
        rows: list[tuple[int, ...]] = [tuple(self.preset)]
        for envs_per_group, workers in itertools.product(self.envs_per_group, self.rollout_workers):
            filled = [workers * groups * envs_per_group for groups in _GROUPS_PER_WORKER]
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

    def neighbours(self, of: Allocation) -> list[Allocation]:
        """Those that are one step away: the next number of one kind of process, or of groups, or other groups."""
        near: list[Allocation] = []
        for name in ("rollout_workers", "policy_workers", "learner_cores"):
            near += [of._replace(**{name: value}) for value in _next_to(getattr(of, name), getattr(self, name))]
        for size in _next_to(of.envs_per_group, self.envs_per_group):
            near.append(of._replace(envs_per_group=size))
            near.append(of._replace(envs_per_group=size, num_envs=of.num_groups * size))
        for change in (-of.rollout_workers, of.rollout_workers):
            near.append(of._replace(num_envs=of.num_envs + change * of.envs_per_group))
        return [
            a
            for a in near
            if self._has_groups(a.rollout_workers, a.num_envs, a.envs_per_group)
            and (a.num_envs in self.num_envs or not self.num_envs)
            and a.policy_workers <= a.num_groups // self.in_whole_batches
        ]

    def _has_groups(self, workers: int, num_envs: int, envs_per_group: int) -> bool:
        """Whether each worker has what it must have, and there are not too many."""
        groups = num_envs // envs_per_group
        return (
            0 < num_envs <= (self.most_envs if not self.num_envs else num_envs)
            and num_envs % envs_per_group == 0
            and groups >= workers
            and self.groups_per_worker in (None, groups / workers)
            and groups % self.in_whole_batches == 0
        )


class Candidate(NamedTuple):
    """An allocation and how fast it is, by the model, the simulation or a trial.

    Attributes:
        allocation: One.
        steps_per_second: Agent steps a second.
    """

    allocation: Allocation
    steps_per_second: float


def rank(costs: StageCosts, workload: Workload, space: Space, *, count: int) -> list[Candidate]:
    """The best by the model, the best first; the preset's is always there, at the end if nowhere else.

    Args:
        costs: Of the machine.
        workload: Of the run.
        space: What may be chosen.
        count: How many.
    """
    table = _promising(costs, workload, space)
    speeds = _expected(costs, workload, table, space.cores)
    order = _in_order(table, speeds, space.preset)
    best = [Candidate(table.at(i), float(speeds[i])) for i in order[:count].tolist()]
    if all(candidate.allocation != space.preset for candidate in best):
        speed = _expected(costs, workload, space.preset, space.cores)[0]
        best[-1:] = [Candidate(space.preset, float(speed))]
    return best


def _promising(costs: StageCosts, workload: Workload, space: Space) -> Allocation:
    """All but what cannot come near the best, because a single station would not let it."""
    table = space.allocations()
    bounds = upper_bound(costs, workload, table, space.cores)
    first = np.argsort(-bounds)[:_LOOKED_AT_FIRST]
    best = predict(costs, workload, _those(table, first), space.cores).steps_per_second.max()
    table = _those(table, np.flatnonzero(bounds >= _NEAR * best))
    speeds = predict(costs, workload, table, space.cores).steps_per_second
    return _those(table, _in_order(table, speeds, space.preset)[:_LOOKED_AT_CLOSELY])


def _in_order(table: Allocation, speeds: Floats, preset: Allocation) -> NDArray[np.int64]:
    """The fastest first; nearly equal ones by their distance, so that those that need the fewest changes come along."""
    return np.lexsort((_distances(table, preset), np.floor(np.log(speeds.max() / speeds) / np.log(1.01))))


def _those(table: Allocation, indices: NDArray[np.int64]) -> Allocation:
    return Allocation(*(values[indices] for values in table))


def _expected(costs: StageCosts, workload: Workload, table: Allocation, cores: int) -> Floats:
    """Mean speed over what the costs may be in truth, float64 ``[K]``.

    They are measured to some ten per cent, so what only just suffices is worth less than what has something to spare.
    """
    scenarios = [costs, *(_dearer(costs, stage) for stage in ("env", "inference", "sgd"))]
    speeds = [predict(each, workload, table, cores).steps_per_second for each in scenarios]
    mean: Floats = np.mean(speeds, axis=0)
    return mean


def _dearer(costs: StageCosts, stage: str) -> StageCosts:
    names = [f.name for f in fields(costs) if f.name.startswith(stage) and f.name.endswith("_s")]
    return replace(costs, **{name: getattr(costs, name) * _DEARER for name in names})


def choose(candidates: Sequence[Candidate], preset: Allocation) -> Candidate:
    """The nearest to the preset of those that are as good as the fastest."""
    fastest = max(candidate.steps_per_second for candidate in candidates)
    good = [c for c in candidates if c.steps_per_second * WORTH_IT >= fastest]
    return min(good, key=lambda c: (distance(c.allocation, preset), -c.steps_per_second))


def nearest(table: Allocation, speeds: Floats, preset: Allocation) -> Allocation:
    """As :func:`choose`, of a table ``[K]`` with speeds float64 ``[K]``."""
    good = np.flatnonzero(speeds * WORTH_IT >= speeds.max())
    distances = _distances(_those(table, good), preset)
    return table.at(int(good[np.lexsort((-speeds[good], distances))[0]]))


def search(costs: StageCosts, workload: Workload, space: Space) -> Candidate:
    """The best by model and simulation, in seconds whatever the number of cores.

    The simulation of the model's best is where a climb begins, since the model is a few per cent off near ties.
    """
    seen = {
        c.allocation: c for c in simulated(costs, workload, rank(costs, workload, space, count=_SIMULATED), space.cores)
    }
    for _ in range(_CLIMBS):
        top = max(seen.values(), key=lambda c: c.steps_per_second)
        fresh = [Candidate(a, 0.0) for a in space.neighbours(top.allocation) if a not in seen]
        climbed = simulated(costs, workload, fresh, space.cores)
        seen.update({c.allocation: c for c in climbed})
        if all(c.steps_per_second <= top.steps_per_second for c in climbed):
            break
    return choose(list(seen.values()), space.preset)


def simulated(costs: StageCosts, workload: Workload, candidates: Sequence[Candidate], cores: int) -> list[Candidate]:
    """The same with the simulation's speed, less what the model says that uncertain costs may cost it."""
    result: list[Candidate] = []
    for candidate in candidates:
        one = candidate.allocation
        certain = predict(costs, workload, one, cores).steps_per_second[0]
        share = float(_expected(costs, workload, one, cores)[0] / certain)
        # Of many groups one round is an average already.
        rounds = 2.0 if one.num_groups < _MANY_GROUPS else 1.0
        result.append(Candidate(one, simulate(costs, workload, one, cores, rounds=rounds) * share))
    return result


def exhaustive(
    costs: StageCosts,
    workload: Workload,
    space: Space,
    *,
    measure: Callable[[Allocation], float] | None = None,
    slack: float = 1.0,
) -> Candidate:
    """The best of the whole space in the simulation, by branch and bound: what could not win is not simulated.

    Args:
        costs: Of the machine.
        workload: Of the run.
        space: What may be chosen.
        measure: Instead of the simulation.
        slack: Stops when nothing that is left could be faster by more than this factor; 1 is exact.
    """
    measure = measure or (lambda allocation: simulate(costs, workload, allocation, space.cores))
    table = space.allocations()
    bounds = upper_bound(costs, workload, table, space.cores)
    expected = predict(costs, workload, table, space.cores).steps_per_second
    best: Candidate | None = None
    # The most promising first, so that most of the others need not be looked at.
    for i in np.argsort(-expected).tolist():
        if best is not None and bounds[i] <= best.steps_per_second * slack:
            continue
        allocation = table.at(i)
        speed = measure(allocation)
        if best is None or speed > best.steps_per_second:
            best = Candidate(allocation, speed)
    assert best is not None
    return best


def _next_to(value: int, options: Sequence[int]) -> list[int]:
    """The next smaller and the next larger one."""
    smaller, larger = [n for n in options if n < value], [n for n in options if n > value]
    return [*smaller[-1:], *larger[:1]]


def counts(most: int, fineness: int) -> tuple[int, ...]:
    """1 to ``most``: all up to ``fineness``, and above it in steps of about one part in so many."""
    few = min(most, fineness**2)
    numbers = [n for n in range(1, few + 1) if n % max(1, n // fineness) == 0]
    while numbers[-1] < most:
        numbers.append(numbers[-1] + max(1, numbers[-1] // fineness))
    return (*(n for n in numbers if n < most), most)


def distance(allocation: Allocation, preset: Allocation) -> float:
    """How far two allocations are apart, in doublings."""
    return float(_distances(Allocation(*(np.array([value]) for value in allocation)), preset)[0])


def _distances(table: Allocation, preset: Allocation) -> Floats:
    """How many doublings away; environments count twice, since their number has a part in what is learned."""
    weights = (0.5, 0.5, 0.5, 2.0, 1.0)
    total: Floats = np.zeros(len(table.num_envs))
    for weight, values, given in zip(weights, table, preset, strict=True):
        total += weight * np.abs(np.log2(values / given))
    return total
