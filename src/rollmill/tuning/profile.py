"""What the stages of a run cost on this machine: read off the ledgers of short real runs, in seconds.

The joint runs of :mod:`rollmill.tuning.trials` say what an agent step costs each stage while all others are at work, in
core-seconds: CPU time where processes share cores, so that waiting for one is not counted, with that of a simulator's
own processes; busy time of policy workers and learners where an accelerator works for them. A rollout worker that is
busy and neither computes, nor waits for a core, nor has others compute for it, sleeps: that takes time, but no core.
What the network costs alone (:mod:`.network`) fills in what the runs cannot say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rollmill.algorithms.on_policy_config import auto_epochs
from rollmill.models.device import resolve_device
from rollmill.regimes.setup import Probed
from rollmill.roles import GRADIENT_LEARNER, LEARNER, POLICY_WORKER, ROLLOUT_WORKER
from rollmill.runtime.ledger import ProcessAccount
from rollmill.settings.config import Config
from rollmill.settings.regime_config import LockstepConfig
from rollmill.tuning.curves import Curve
from rollmill.tuning.model import Allocation, StageCosts, Workload
from rollmill.tuning.network import NetworkTimes
from rollmill.tuning.trials import Slice

# Below this share of its busy time a process does not compute: somebody else does, for it.
_COMPUTES = 0.5
# From this share of its busy time on it sleeps.
_SLEEPS = 0.3
# Nothing takes less.
_LEAST_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one joint run has shown.

    Attributes:
        allocation: Its.
        rows: Of a group.
        batch_groups: Mean number of groups of a forward pass.
        group_s: Core-seconds of a group's step.
        group_wait_s: Seconds of a group's step in which no core worked for it.
        group_overhead_s: The part of it that does not depend on the group's size.
        batch_s: Core-seconds of a forward pass; 0 where none was seen.
        sgd_step_s: Core-seconds of an SGD step, on all of the learner's cores; of none, what one takes at least.
        steps_per_second: Agent steps a second.
        actor_cores: Cores that collecting used.
        learner_cores: Cores that learning used.
        sgd_steps_per_second: SGD steps a second; 0 where collecting takes longer for a batch than it was looked at.
    """

    allocation: Allocation
    rows: int
    batch_groups: float
    group_s: float
    group_wait_s: float
    group_overhead_s: float
    batch_s: float
    sgd_step_s: float
    steps_per_second: float
    actor_cores: float
    learner_cores: float
    sgd_steps_per_second: float


def workload_of(config: Config, probed: Probed | None) -> Workload:
    """What a run of this configuration has to do.

    Args:
        config: Resolved.
        probed: What the environment and the network are; without it, one agent in each environment.
    """
    if config.in_replay:
        update_interval = config.replay.update_interval
    else:
        # Nothing is known of an environment that only curves stand for: pictures are the dearer case.
        epochs = config.on_policy.epochs
        update_interval = config.minibatch_size / (auto_epochs(has_images=True) if epochs == "auto" else epochs)
    return Workload(
        regime=config.regime.name,
        update_interval=update_interval,
        rows_per_env=1 if probed is None else probed.spec.rows_per_env,
        lag=config.regime.lag if isinstance(config.regime, LockstepConfig) else 1,
        groups_per_batch=config.inference.groups_per_batch,
        on_cpu=resolve_device(config.inference.device).type == "cpu",
    )


def demand_of(allocation: Allocation, workload: Workload, turns: Sequence[Slice], cores: int) -> Demand:
    """What turns of one allocation's trial say.

    Args:
        allocation: What ran.
        workload: Of the run.
        turns: Of it.
        cores: That it ran on.
    """
    rows = int(allocation.envs_per_group) * workload.rows_per_env
    seconds, steps = sum(t.seconds for t in turns), sum(t.steps for t in turns)
    by_role: dict[str, list[ProcessAccount]] = {}
    for turn in turns:
        for account in turn.accounts.values():
            by_role.setdefault(account.role, []).append(account)
    stepping = by_role[ROLLOUT_WORKER.name]
    inferring = by_role.get(POLICY_WORKER.name, [])
    learning = by_role.get(LEARNER.name, [])
    num_processes = len(turns[0].accounts)
    is_crowded = num_processes > cores
    work = {
        role: sum(_work_s(account, is_crowded=is_crowded) for account in accounts) for role, accounts in by_role.items()
    }
    learner_work = work.get(LEARNER.name, 0.0) + work.get(GRADIENT_LEARNER.name, 0.0)
    group_steps = max(1.0, steps / rows)
    batches = _count(inferring, "batches")
    sgd_steps = _count(learning, "SGD steps")
    simulating = sum(account.phases["simulating"] for account in stepping)
    bookkeeping = sum(account.phases["bookkeeping"] for account in stepping)
    helpers_s, waited_s = _outside(turns)
    stepping_s = sum(account.cpu_seconds for account in stepping) + helpers_s
    group_s = stepping_s / group_steps
    overhead = bookkeeping / max(1e-9, bookkeeping + simulating)
    return Demand(
        allocation=allocation,
        rows=rows,
        batch_groups=max(1.0, _count(inferring, "rows") / rows / max(1.0, batches)),
        group_s=group_s,
        group_wait_s=waited_s / group_steps,
        group_overhead_s=group_s * min(0.9, overhead),
        batch_s=work.get(POLICY_WORKER.name, 0.0) / batches if batches else 0.0,
        sgd_step_s=learner_work / max(1.0, sgd_steps),
        steps_per_second=steps / seconds,
        actor_cores=(stepping_s + work.get(POLICY_WORKER.name, 0.0)) / seconds,
        learner_cores=learner_work / seconds,
        sgd_steps_per_second=sgd_steps / seconds,
    )


def fit_costs(demands: Sequence[Demand], times: NetworkTimes) -> StageCosts:
    """The costs that agree best with all joint runs, in relative squares, near what the parts say alone.

    Args:
        demands: One at least.
        times: Of the network alone.
    """
    overhead = float(np.median([d.group_overhead_s for d in demands]))
    row = float(np.mean([max(0.0, d.group_s - overhead) / d.rows for d in demands]))
    env_group, env_row = _fit([[1.0, d.rows] for d in demands], [d.group_s for d in demands], [overhead, row])
    # Of the two parts of a pass, as the network has them alone; what a group costs beside is small before it is known.
    ratios = [d.batch_s / (times.fixed_s + times.row_s * d.batch_groups * d.rows) for d in demands if d.batch_s > 0]
    scale = float(np.mean(ratios or [1.0]))
    prior = [scale * times.fixed_s, 0.05 * scale * times.fixed_s, scale * times.row_s]
    batch, group, inferred_row = _fit(
        [[1.0, d.batch_groups, d.batch_groups * d.rows] for d in demands], [d.batch_s for d in demands], prior
    )
    sgd_step, speedup = _learning(demands, times)
    return StageCosts(
        env_group_s=env_group,
        env_row_s=env_row,
        env_wait_row_s=float(np.mean([d.group_wait_s / d.rows for d in demands])),
        inference_batch_s=batch,
        inference_group_s=group,
        inference_row_s=inferred_row,
        sgd_step_s=sgd_step,
        learner_speedup=speedup,
    )


def _learning(demands: Sequence[Demand], times: NetworkTimes) -> tuple[float, Curve]:
    """Core-seconds of an SGD step on one core, and S; runs with several learners say what the server really costs."""
    by_cores: dict[int, list[float]] = {}
    # A step that was counted just after it was made says nothing of what it took.
    seen = [demand for demand in demands if demand.sgd_steps_per_second > 0 and demand.sgd_step_s > 0]
    if not seen:
        return max(times.sgd_step_s, *(demand.sgd_step_s for demand in demands), _LEAST_S), times.speedup()
    for demand in seen:
        by_cores.setdefault(int(demand.allocation.learner_cores), []).append(demand.sgd_step_s)
    work = {x: float(np.median(each)) for x, each in by_cores.items()}
    fewest = min(work)
    speedup = times.speedup()
    if fewest == times.threads.cores[-1] and len(work) > 1 and len(times.learners) > 1:
        speedup = times.speedup(max(0.0, float(np.median([work[x] for x in work if x > fewest])) / work[fewest] - 1))
    # All cores' together, so x / S(x) times as much as one core's alone.
    return float(np.median([work[x] / x * speedup(x) for x in work])), speedup


def _fit(rows: list[list[float]], values: list[float], prior: list[float]) -> list[float]:
    """Non-negative least squares in relative errors, drawn to the prior: by projected Gauss-Seidel steps."""
    scale = np.array([max(p, 1e-9) for p in prior])
    # What was not seen to take any time says nothing.
    seen = np.array(values) > 0
    a = np.array(rows)[seen] * scale / np.array(values)[seen, None]
    a = np.vstack([a, np.eye(len(prior)) * 0.3])
    b = np.concatenate([np.ones(seen.sum()), np.full(len(prior), 0.3)])
    x = np.ones(len(prior))
    for _ in range(200):
        for i in range(len(prior)):
            rest = b - a @ x + a[:, i] * x[i]
            x[i] = max(0.0, float(a[:, i] @ rest) / float(a[:, i] @ a[:, i]))
    return [float(value) for value in x * scale]


def _outside(turns: Sequence[Slice]) -> tuple[float, float]:
    """Of all rollout workers: CPU seconds of their simulators' processes, and seconds without any computation."""
    helpers_s = waited_s = 0.0
    for turn in turns:
        for name, account in turn.accounts.items():
            if account.role != ROLLOUT_WORKER.name or name not in turn.outside:
                continue
            outside = turn.outside[name]
            helpers_s += outside.helpers_s
            idle_s = _busy_s(account) - account.cpu_seconds - outside.delay_s - outside.helpers_s
            # CPU time comes in ticks, messages and locks take moments, and a hypervisor its share.
            if idle_s > _SLEEPS * _busy_s(account):
                waited_s += idle_s
    return helpers_s, waited_s


def _work_s(account: ProcessAccount, *, is_crowded: bool) -> float:
    busy = _busy_s(account)
    if account.cpu_seconds < _COMPUTES * busy and not is_crowded:
        return busy
    return account.cpu_seconds if is_crowded else max(busy, account.cpu_seconds)


def _busy_s(account: ProcessAccount) -> float:
    return sum(seconds for phase, seconds in account.phases.items() if phase not in account.waiting)


def _count(accounts: Iterable[ProcessAccount], counter: str) -> float:
    return sum(account.counters[counter] for account in accounts)
