"""How fast a configuration would train: stage costs -> predicted agent steps a second, in closed form.

Four stations serve groups of ``B`` rows: ``W`` rollout workers, ``P`` policy workers, a learner on ``x_l`` cores, and
below them ``M`` cores that all of them share. With ``e(B)`` the core-seconds of a group's step, ``i(b)`` those of a
forward pass of ``b`` groups, ``s`` those of an SGD step, ``u`` the agent steps for each SGD step, ``N`` groups and
``S(x_l)`` how many times as fast ``x_l`` cores learn as one does, agent steps a second are at most::

    simulation        W B / (e(B) + w(B))
    inference         P b B / i(b)
    learning          u S(x_l) / s
    waiting           N B / (e(B) + w(B) + R),   R the time from a request to its actions
    cores             M / (e(B) / B + i(b) / (b B) + s x_l / (u S(x_l)))

``w(B)`` is what a group's step takes besides without a core: a simulator that sleeps, or waits for a device.
*Waiting* is Sample Factory's condition for double buffering, ``k / 2 > t_inference / t_env``: with ``N = 2 W`` groups
of ``k / 2`` environments it is above *simulation* exactly if ``e(B) + w(B) > R``. Batches grow with the load (policy
workers take what is ready), so ``b`` and the speed are found together, by iteration. Near a tie no station is always
busy; a smooth minimum accounts for that.

Pure functions on arrays: an :class:`Allocation` may hold one configuration or, as arrays ``[K]``, many.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill.tuning.curves import Curve

__all__ = ["STATIONS", "Allocation", "Floats", "Prediction", "StageCosts", "Workload", "predict", "upper_bound"]

Floats = NDArray[np.float64]

STATIONS = ("simulation", "inference", "learning", "waiting", "cores")
# Exponent of the smooth minimum: two equal bounds give 0.95 of either. Fitted to :mod:`rollmill.tuning.simulate`.
_SHARPNESS = 14.0
_ITERATIONS = 16
# As :mod:`rollmill.inference.batching`: on the CPU smaller groups are waited for in pairs.
_ENOUGH_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Core-seconds of the stages' work, on one core with all the others at work.

    Attributes:
        env_group_s: Of a group's step, whatever its size: bookkeeping, messages, the call of a vector environment.
        env_row_s: Of a group's step, for each row.
        env_wait_row_s: Likewise, but of no core: seconds in which the rollout worker waits for something else.
        inference_batch_s: Of a forward pass, whatever its size.
        inference_group_s: Of a forward pass, for each group: gathering, scattering, messages.
        inference_row_s: Of a forward pass, for each row.
        sgd_step_s: Of an SGD step, by a learner on one core.
        learner_speedup: Cores of the learner (threads or processes) -> times as fast as on one.
        contention: How many times as long everything takes with all cores at work as with one; 1 if the costs were
            measured with all of them at work, as they should be.
    """

    env_group_s: float
    env_row_s: float
    inference_batch_s: float
    inference_group_s: float
    inference_row_s: float
    sgd_step_s: float
    learner_speedup: Curve = field(default_factory=lambda: Curve((1.0,), (1.0,)))
    contention: float = 1.0
    env_wait_row_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuses what nothing could cost."""
        for name in (name for name in vars(self) if name.endswith("_s")):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name}={getattr(self, name)}: give 0 or more seconds.")
        if not 1 <= self.contention < np.inf:
            raise ValueError(f"contention={self.contention}: give 1 (none) or more.")

    def env_s(self, rows: Any) -> Any:
        """e(B): one step of a group of so many rows."""
        return self.env_group_s + self.env_row_s * rows

    def wait_s(self, rows: Any) -> Any:
        """w(B): what a group's step takes besides."""
        return self.env_wait_row_s * rows

    def inference_s(self, groups: Any, rows: Any) -> Any:
        """i(b): one forward pass of so many groups of so many rows each."""
        return self.inference_batch_s + groups * (self.inference_group_s + self.inference_row_s * rows)

    def speedup(self, cores: Any) -> Any:
        """S(x_l)."""
        xs = np.array([0.0, *self.learner_speedup.cores])
        return np.interp(cores, xs, np.array([0.0, *self.learner_speedup.rates]))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a run has to do, whatever its allocation.

    Attributes:
        regime: "async", "lockstep" or "replay".
        update_interval: u, agent steps for each SGD step: in replay ``replay.update_interval``; else a minibatch's
            samples over the epochs.
        batch_size: In async and lockstep, agent steps that the learner takes at once.
        rollout_length: T of a slot.
        rows_per_env: Agents of an environment.
        lag: In lockstep.
        groups_per_batch: In lockstep, groups of a forward pass.
        on_cpu: Whether policy workers compute on the CPU.
    """

    regime: Literal["async", "lockstep", "replay"]
    update_interval: float
    batch_size: int
    rollout_length: int
    rows_per_env: int = 1
    lag: int = 1
    groups_per_batch: int = 1
    on_cpu: bool = True


class Allocation(NamedTuple):
    """Who gets what: one configuration (integers), or many (integer arrays ``[K]``).

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


class Prediction(NamedTuple):
    """What the model says.

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
    batch, slow = least, np.ones_like(rows)
    bounds: dict[str, Floats] = {}
    speed = np.zeros_like(rows)
    for _ in range(_ITERATIONS):
        bounds = _bounds(costs, workload, given, cores, batch, slow)
        bounds["inference"] = given.policy_workers * most * rows / (costs.inference_s(most, rows) * slow)
        speed = _together(bounds, workload)
        # Groups a second of a policy worker that is always busy: it takes what came during the last forward pass.
        rate = speed / rows / given.policy_workers * slow
        left = 1 - rate * (costs.inference_group_s + costs.inference_row_s * rows)
        wanted = np.where(left > 1e-9, rate * costs.inference_batch_s / np.maximum(left, 1e-9), most)
        batch = 0.5 * batch + 0.5 * np.clip(wanted, least, most)
        if costs.contention > 1:
            busy = np.minimum(1.0, speed * _core_seconds(costs, workload, given, batch) * slow / cores)
            slow = 0.5 * slow + 0.5 * (1 + (costs.contention - 1) * busy)
    return Prediction(speed, bounds, batch)


def upper_bound(costs: StageCosts, workload: Workload, allocation: Allocation, cores: float) -> Floats:
    """What no schedule could exceed, float64 ``[K]``: the same stations, each at its best and without waiting."""
    given = _as_arrays(allocation)
    rows = given.envs_per_group * workload.rows_per_env
    groups = given.num_groups
    ones = np.ones_like(rows)
    most = np.maximum(1.0, groups / given.policy_workers)
    if workload.regime == "lockstep":
        most = np.full_like(rows, workload.groups_per_batch)
    best = _bounds(costs, workload, given, cores, most, ones)
    best["inference"] = given.policy_workers * most * rows / costs.inference_s(most, rows)
    best["waiting"] = groups * rows / (costs.env_s(rows) + costs.wait_s(rows) + costs.inference_s(1.0, rows))
    # The busier the cores the slower, but never so that less work would get more done.
    best["cores"] = best["cores"] / costs.contention
    if workload.regime == "lockstep" and workload.lag == 0:
        collecting = np.minimum.reduce([best[name] for name in ("simulation", "inference", "waiting")])
        best = {"turns": 1 / (1 / collecting + 1 / best["learning"]), "cores": best["cores"]}
    least: Floats = np.minimum.reduce(list(best.values()))
    return least


def _as_arrays(allocation: Allocation) -> Allocation:
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(values)) for values in allocation))
    num_groups = arrays[3] // arrays[4]
    floats = [array.astype(np.float64) for array in arrays]
    floats[3] = num_groups * floats[4]
    return Allocation(*floats)


def _least_groups(workload: Workload, groups: Floats, rows: Floats) -> Floats:
    """Groups that a policy worker waits for."""
    pairs = workload.on_cpu & (rows < _ENOUGH_ROWS) & (groups > 2)
    return np.where(pairs, 2.0, 1.0)


def _bounds(
    costs: StageCosts, workload: Workload, given: Allocation, cores: float, batch: Floats, slow: Floats
) -> dict[str, Floats]:
    rows = given.envs_per_group * workload.rows_per_env
    groups = given.num_groups
    step_s = costs.env_s(rows) * slow + costs.wait_s(rows)
    inference_s = costs.inference_s(batch, rows) * slow
    workers = np.minimum(given.rollout_workers, groups)
    if workload.regime == "lockstep":
        # An iteration is as slow as the worker with the most groups.
        workers = groups / np.ceil(groups / workers)
    # A request comes in the middle of another forward pass, as often as there is one under way.
    response_s = inference_s * 1.5
    return {
        "simulation": workers * rows / step_s,
        "inference": given.policy_workers * batch * rows / inference_s,
        "learning": workload.update_interval * costs.speedup(given.learner_cores) / (costs.sgd_step_s * slow + 1e-300),
        "waiting": groups * rows / (step_s + response_s),
        "cores": cores / (_core_seconds(costs, workload, given, batch) * slow),
    }


def _core_seconds(costs: StageCosts, workload: Workload, given: Allocation, batch: Floats) -> Floats:
    """Of all stages together, for one agent step."""
    rows = given.envs_per_group * workload.rows_per_env
    learning = costs.sgd_step_s * given.learner_cores / costs.speedup(given.learner_cores) / workload.update_interval
    total: Floats = costs.env_s(rows) / rows + costs.inference_s(batch, rows) / (batch * rows) + learning
    return total


def _together(bounds: dict[str, Floats], workload: Workload) -> Floats:
    """The smooth minimum; where collecting and learning take turns, their times add up."""
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
