"""The best allocation by given curves: PAL's equation 5, solved over the possible settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.algorithms.off_policy_config import OFF_POLICY_ALGORITHMS
from rollmill.envs.registry import find_registration
from rollmill.settings.config import Config
from rollmill.settings.regime_config import LockstepConfig
from rollmill.tuning.curves import LARGEST, Balance, Curve, CurveError, Curves, balance
from rollmill.tuning.explain import Change
from rollmill.tuning.model import Allocation, Floats
from rollmill.tuning.profile import workload_of
from rollmill.tuning.result import Tuning
from rollmill.tuning.search import WORTH_IT, Space, counts, nearest
from rollmill.tuning.settings import settings_of, space_of, under

# Keeps rounding from making a point unreachable.
_LESS = 1 - 1e-12
_LIMITS = {
    "actors": "Collecting limits the speed: the learner waits for it.",
    "learners": "Learning limits the speed: collecting waits for it.",
    "both": "The number of cores limits the speed: collecting and learning are always busy.",
}


def tune_by_curves(config: Config, name: str, overrides: Mapping[str, object], curves: Curves, begun: float) -> Tuning:
    """Choose settings by the curves, and report the speed of these settings on the curves.

    If the curves do not contain the division of the actors' cores, the number of policy workers stays the preset's. Of
    equally fast allocations, one with at least two groups for each rollout worker (double buffering) is preferred.

    Args:
        config: Resolved, with the overrides.
        name: What is tuned.
        overrides: What the user has set.
        curves: Of both sides.
        begun: When tuning began, ``time.monotonic()`` seconds.

    Raises:
        CurveError: Collecting and learning take turns, which curves do not describe.
    """
    if isinstance(config.regime, LockstepConfig) and config.regime.lag == 0:
        raise CurveError(
            "lag=0: collecting and learning take turns on the same cores, so there is nothing to balance between "
            "curves; tune without --curves, or with lag=1."
        )
    workload = workload_of(config, None)
    notes: tuple[str, ...] = ()
    if not config.in_replay and config.on_policy.epochs == "auto":
        # Only a run knows the epochs, by its observations.
        if curves.update_interval is not None:
            workload = replace(workload, update_interval=curves.update_interval)
        else:
            notes += (
                "learner.epochs='auto' was taken as the number for pictures, since the curves have no update_interval; "
                "give --learner.epochs for another",
            )
    interval = workload.update_interval
    # Whether a registered algorithm supports several learners is only known once it is built.
    is_own = config.in_replay and config.algorithm_name not in OFF_POLICY_ALGORITHMS
    learner_counts = (1,) if is_own else counts(curves.cores, 16)
    registration = find_registration(config.env.name)
    space = space_of(
        config,
        workload,
        overrides,
        curves.cores,
        learner_counts=learner_counts,
        keeps_group_size=registration is not None and registration.vector,
    )
    space = _divided(space, curves)
    chosen = _choose(curves, interval, space)
    solution = _solution(curves, interval, chosen)
    notes += _other_division(curves, chosen)
    if curves.policy_workers is None and len(space.policy_workers) > 1:
        notes += (
            "the curves do not say how many of the actors' cores had policy workers, so it is the preset's number; the "
            "speed is reached with the division that they were measured with (actors.policy_workers)",
        )
    if is_own and chosen.learner_cores == config.compute.threads:
        notes += (f"one learner: whether {config.algorithm_name!r} may have several is not in the curves",)
    faster = {
        "collecting": replace(curves, actors=_faster(curves.actors)),
        "learning": replace(curves, learners=_faster(curves.learners)),
    }
    return Tuning(
        settings=under(overrides, settings_of(chosen, config)),
        allocation=chosen,
        preset=space.preset,
        steps_per_second=solution.steps_per_second,
        gain=None,
        limit=_LIMITS[solution.limited_by],
        predicted=None,
        notes=notes,
        changes=tuple(
            Change(f"{side} a quarter faster", float(_rates(with_it, interval, chosen)) / solution.steps_per_second - 1)
            for side, with_it in faster.items()
        ),
        curves=curves,
        solution=solution,
        update_interval=interval,
        costs=None,
        tried=(),
        measured=(),
        seconds=time.monotonic() - begun,
        name=name,
    )


def _divided(space: Space, curves: Curves) -> Space:
    """Restrict free environments and groups to those of the curves, which are valid for these only."""
    if curves.envs_per_group is not None and len(space.envs_per_group) > 1:
        space = replace(space, envs_per_group=(curves.envs_per_group,))
    if curves.num_envs is not None and not space.num_envs:
        count = max(space.least_envs, min(curves.num_envs, space.most_envs))
        # Sizes that divide the number of environments; if none does, reduce that number to a multiple of the size.
        sizes = tuple(size for size in space.envs_per_group if count % size == 0) or space.envs_per_group[:1]
        space = replace(space, envs_per_group=sizes, num_envs=(max(sizes[0], count // sizes[0] * sizes[0]),))
    return space


def _other_division(curves: Curves, chosen: Allocation) -> tuple[str, ...]:
    """Notes on differences from the allocation that the curves were measured with."""
    others = [
        f"actors.{name}={wanted} (now {int(found)})"
        for name in ("num_envs", "envs_per_group")
        if (wanted := getattr(curves, name)) is not None and wanted != (found := getattr(chosen, name))
    ]
    if not others:
        return ()
    return (
        f"the curves were measured with {', '.join(others)}, which your settings, or samples that would grow too old, "
        "do not allow: other environments have other curves",
    )


def _policy_workers(curves: Curves, space: Space, workers: Any) -> Any:
    """The number of policy workers for a number of rollout workers, interpolated between the points of the curve."""
    if curves.policy_workers is None or len(space.policy_workers) == 1:
        return np.full_like(workers, space.preset.policy_workers)
    serving = np.array(curves.policy_workers)
    stepping = np.maximum(1, np.array(curves.actors.cores) - serving)
    order = np.argsort(stepping, kind="stable")
    return np.maximum(1, np.rint(np.interp(workers, stepping[order], serving[order]))).astype(np.int64)


def _choose(curves: Curves, interval: float, space: Space) -> Allocation:
    """The allocation nearest to the preset among those that are as good as the fastest."""
    preset = space.preset
    table = replace(space, policy_workers=(1,), learner_cores=(preset.learner_cores,)).allocations()
    # The table contains the preset's own row, whose environments may differ from those of the curves.
    as_measured = np.isin(table.envs_per_group, space.envs_per_group)
    if space.num_envs:
        as_measured &= np.isin(table.num_envs, space.num_envs)
    table = _if_any(table, as_measured)
    table = table._replace(policy_workers=_policy_workers(curves, space, table.rollout_workers))
    table = _if_any(table, table.policy_workers <= table.num_groups // space.in_whole_batches)
    # Combine all of these with all numbers of learner cores.
    table = Allocation(*(np.repeat(values, len(space.learner_cores)) for values in table))
    table = table._replace(learner_cores=np.resize(space.learner_cores, len(table.num_envs)))
    # A single rollout worker and its policy worker may share a core.
    fewest = np.where(table.rollout_workers == 1, 1, _actor_cores(table))
    table = _if_any(table, fewest + table.learner_cores <= curves.cores)
    rates = _rates(curves, interval, table)
    table = _if_any(table, (table.num_groups >= 2 * table.rollout_workers) & (rates * WORTH_IT >= rates.max()))
    return nearest(table, _rates(curves, interval, table), preset)


def _if_any(table: Allocation, holds: NDArray[np.bool_]) -> Allocation:
    """Those for which something holds, or all if it holds for none."""
    return table.where(holds) if holds.any() else table


def _actor_cores(allocation: Allocation) -> Any:
    return allocation.rollout_workers + allocation.policy_workers


def _rates(curves: Curves, interval: float, allocation: Allocation) -> Floats:
    """Agent steps a second: no more than either side can, nor than both together with all cores."""
    collected, learned = _sides(curves, interval, allocation)
    shared = balance(curves.actors, curves.learners, update_interval=interval, cores=curves.cores)
    least: Floats = np.minimum(np.minimum(collected, learned), shared.steps_per_second)
    return least


def _sides(curves: Curves, interval: float, allocation: Allocation) -> tuple[Floats, Floats]:
    return curves.actors(_actor_cores(allocation)), interval * curves.learners(allocation.learner_cores)


def _solution(curves: Curves, interval: float, chosen: Allocation) -> Balance:
    """Where equation 5 stands with this allocation."""
    rate = float(_rates(curves, interval, chosen))
    actors, learners = float(_actor_cores(chosen)), float(chosen.learner_cores)
    if actors + learners > curves.cores:
        # They share cores, and this is what they need of them.
        actors, learners = (
            curves.actors.least_cores(rate * _LESS),
            curves.learners.least_cores(rate * _LESS / interval),
        )
    collected, learned = (float(side) for side in _sides(curves, interval, chosen))
    most = rate / _LESS
    limited = "actors" if collected <= most < learned else "learners" if learned <= most < collected else "both"
    return Balance(actors, learners, rate, limited)


def _faster(curve: Curve) -> Curve:
    return Curve(curve.cores, tuple(min(1.25 * rate, LARGEST) for rate in curve.rates))
