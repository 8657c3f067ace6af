"""A model of the speed of training in closed form: from costs of the stages to agent steps a second.

Four stations serve groups of ``B`` rows: ``W`` rollout workers, ``P`` policy workers, a learner on ``x_l`` cores, and
below them ``M`` cores that all of them share. With ``e(B)`` the core-seconds of a group's step, ``i(b)`` those of a
forward pass of ``b`` groups, ``s`` those of an SGD step, ``u`` the agent steps for each SGD step, ``N`` groups and
``S(x_l)`` how many times as fast ``x_l`` cores learn as one does, agent steps a second are at most::

    simulation        W B / (e(B) + w(B))
    inference         P b B / i(b)
    learning          u S(x_l) / s
    waiting           N B / (e(B) + w(B) + R),   R the time from a request to its actions
    cores             M / (e(B) / B + i(b) / (b B) + s x_l / (u S(x_l)))

``w(B)`` is the additional time of a group's step without a core, in a simulator that sleeps or waits for a device.
*Waiting* is Sample Factory's condition for double buffering, ``k / 2 > t_inference / t_env``: with ``N = 2 W`` groups
of ``k / 2`` environments it is above *simulation* exactly if ``e(B) + w(B) > R``. Batches grow with the load (policy
workers take what is ready), so ``b`` and the speed are computed together, by iteration. If bounds are nearly equal, no
station is always busy; a smooth minimum accounts for that.

Pure functions on arrays: an :class:`Allocation` may hold one configuration or, as arrays ``[K]``, many.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.inference.batching import ENOUGH_ROWS
from rollmill.tuning.curves import Curve

Floats = NDArray[np.float64]

# Exponent of the smooth minimum: two equal bounds give 0.95 of either. Fitted to an event-by-event simulation of runs,
# which was removed because its choices were not better (docs/journal/2026-11.md).
_SHARPNESS = 14.0
_ITERATIONS = 16


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Core-seconds of the stages' work, on one core with all the others at work.

    Attributes:
        env_group_s: Of a group's step, whatever its size: bookkeeping, messages, the call of a vector environment.
        env_row_s: Of a group's step, for each row.
        env_wait_row_s: Likewise, but without a core: seconds in which the rollout worker waits for something else.
        inference_batch_s: Of a forward pass, whatever its size.
        inference_group_s: Of a forward pass, for each group: gathering, scattering, messages.
        inference_row_s: Of a forward pass, for each row.
        sgd_step_s: Of an SGD step, by a learner on one core.
        learner_speedup: S: cores of the learner (threads or processes) -> times as fast as on one.
    """

    env_group_s: float
    env_row_s: float
    inference_batch_s: float
    inference_group_s: float
    inference_row_s: float
    sgd_step_s: float
    learner_speedup: Curve = field(default_factory=lambda: Curve((1.0,), (1.0,)))
    env_wait_row_s: float = 0.0

    def env_s(self, rows: Any) -> Any:
        """e(B): one step of a group of so many rows."""
        return self.env_group_s + self.env_row_s * rows

    def wait_s(self, rows: Any) -> Any:
        """w(B): the additional time of a group's step without a core."""
        return self.env_wait_row_s * rows

    def inference_s(self, groups: Any, rows: Any) -> Any:
        """i(b): one forward pass of so many groups of so many rows each."""
        return self.inference_batch_s + groups * (self.inference_group_s + self.inference_row_s * rows)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of a run, independent of its allocation.

    Attributes:
        regime: "async", "lockstep" or "replay".
        update_interval: u, agent steps for each SGD step: in replay ``replay.update_interval``; else a minibatch's
            samples over the epochs.
        rows_per_env: Agents of an environment.
        lag: In lockstep.
        groups_per_batch: In lockstep, groups of a forward pass.
        on_cpu: Whether policy workers compute on the CPU.
    """

    regime: Literal["async", "lockstep", "replay"]
    update_interval: float
    rows_per_env: int = 1
    lag: int = 1
    groups_per_batch: int = 1
    on_cpu: bool = True


class Allocation(NamedTuple):
    """The division of the cores: one configuration (integers), or many (integer arrays ``[K]``).

    Attributes:
        rollout_workers: W.
        policy_workers: P.
        learner_cores: x_l: processes of the learner times their threads.
        num_envs: Environments, over all rollout workers.
        envs_per_group: Environments of a group.
    """

    rollout_workers: Any
    policy_workers: Any
    learner_cores: Any
    num_envs: Any
    envs_per_group: Any

    @property
    def num_groups(self) -> Any:
        """N."""
        return self.num_envs // self.envs_per_group

    def at(self, index: int) -> Allocation:
        """One of many."""
        return Allocation(*(int(values[index]) for values in self))

    def where(self, chosen: NDArray[Any]) -> Allocation:
        """Those of many that a mask or indices choose."""
        return Allocation(*(values[chosen] for values in self))


class Prediction(NamedTuple):
    """The prediction of the model.

    Attributes:
        steps_per_second: Agent steps a second, float64 ``[K]``.
        bounds: Station -> the most that it lets through, float64 ``[K]``.
        batch_groups: b, groups of a forward pass, float64 ``[K]``.
    """

    steps_per_second: Floats
    bounds: dict[str, Floats]
    batch_groups: Floats

    def limit(self, index: int = 0) -> str:
        """The station with the smallest bound."""
        return min(self.bounds, key=lambda station: float(self.bounds[station][index]))


def predict(costs: StageCosts, workload: Workload, allocation: Allocation, cores: float) -> Prediction:
    """Agent steps a second of each allocation.

    Args:
        costs: Of this machine.
        workload: Of this run.
        allocation: One or many.
        cores: M.
    """
    given = _as_arrays(allocation)
    rows = given.envs_per_group * workload.rows_per_env
    groups = given.num_groups
    least = _least_groups(workload, groups / given.policy_workers, rows)
    most = np.maximum(least, groups / given.policy_workers)
    if workload.regime == "lockstep":
        least = most = np.full_like(rows, workload.groups_per_batch)
    batch = least
    bounds: dict[str, Floats] = {}
    speed = np.zeros_like(rows)
    for _ in range(_ITERATIONS):
        bounds = _bounds(costs, workload, given, cores, batch, most)
        speed = _together(bounds, workload)
        # A policy worker that is always busy takes the groups that arrived during the last forward pass.
        rate = speed / rows / given.policy_workers
        left = 1 - rate * (costs.inference_group_s + costs.inference_row_s * rows)
        wanted = np.where(left > 1e-9, rate * costs.inference_batch_s / np.maximum(left, 1e-9), most)
        batch = 0.5 * batch + 0.5 * np.clip(wanted, least, most)
    return Prediction(speed, bounds, batch)


def _as_arrays(allocation: Allocation) -> Allocation:
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(values)) for values in allocation))
    num_groups = arrays[3] // arrays[4]
    floats = [array.astype(np.float64) for array in arrays]
    floats[3] = num_groups * floats[4]
    return Allocation(*floats)


def _least_groups(workload: Workload, groups: Floats, rows: Floats) -> Floats:
    """Groups that a policy worker waits for: two on the CPU, if they are small (:mod:`rollmill.inference.batching`)."""
    pairs = workload.on_cpu & (rows < ENOUGH_ROWS) & (groups > 2)
    return np.where(pairs, 2.0, 1.0)


def _bounds(
    costs: StageCosts, workload: Workload, given: Allocation, cores: float, batch: Floats, most: Floats
) -> dict[str, Floats]:
    """Station -> the most that it lets through, with passes of ``batch`` groups, or of ``most`` if inference limits."""
    rows = given.envs_per_group * workload.rows_per_env
    groups = given.num_groups
    step_s = costs.env_s(rows) + costs.wait_s(rows)
    workers = np.minimum(given.rollout_workers, groups)
    if workload.regime == "lockstep":
        # The worker with the most groups determines the time of an iteration.
        workers = groups / np.ceil(groups / workers)
    # On average a request arrives in the middle of another forward pass.
    response_s = 1.5 * costs.inference_s(batch, rows)
    return {
        "simulation": workers * rows / step_s,
        "inference": given.policy_workers * most * rows / costs.inference_s(most, rows),
        "learning": workload.update_interval * costs.learner_speedup(given.learner_cores) / (costs.sgd_step_s + 1e-300),
        "waiting": groups * rows / (step_s + response_s),
        "cores": cores / _core_seconds(costs, workload, given, batch),
    }


def _core_seconds(costs: StageCosts, workload: Workload, given: Allocation, batch: Floats) -> Floats:
    """Core-seconds of all stages together, for one agent step."""
    rows = given.envs_per_group * workload.rows_per_env
    efficiency = costs.learner_speedup(given.learner_cores) / given.learner_cores
    learning = costs.sgd_step_s / efficiency / workload.update_interval
    total: Floats = costs.env_s(rows) / rows + costs.inference_s(batch, rows) / (batch * rows) + learning
    return total


def _together(bounds: dict[str, Floats], workload: Workload) -> Floats:
    """The smooth minimum; if collecting and learning take turns, their times add up."""
    if workload.regime == "lockstep" and workload.lag == 0:
        collecting = _smooth_minimum([bounds[name] for name in ("simulation", "inference", "waiting")])
        turns = 1 / (1 / collecting + 1 / bounds["learning"])
        return _smooth_minimum([turns, bounds["cores"]])
    return _smooth_minimum(list(bounds.values()))


def _smooth_minimum(values: list[Floats]) -> Floats:
    stacked = np.stack(values)
    least = stacked.min(axis=0)
    result: Floats = least * ((least / stacked) ** _SHARPNESS).sum(axis=0) ** (-1 / _SHARPNESS)
    return result
