"""What the stages of a run cost on this machine: read off the ledgers of short real runs, in seconds.

The joint runs of :mod:`rollmill.tuning.trials` say what an agent step costs each stage while all others are at work, in
core-seconds: CPU time where processes share cores, so that waiting for one is not counted, and busy time where the work
is done elsewhere (an accelerator, a simulator's own process). A process of its own says how a forward pass's time
depends on the size of the batch, and how much faster a learner is with more threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollmill.config import Config
from rollmill.envs.views import own_views
from rollmill.inference import phases as inference_phases
from rollmill.learning import phases as learning_phases
from rollmill.models.device import resolve_device, take_threads
from rollmill.regimes.ending import exited_early
from rollmill.regimes.setup import Probed, UserCode, make_network, make_off_policy
from rollmill.rollout import phases as rollout_phases
from rollmill.runtime.child import ChildContext
from rollmill.runtime.events import Exited, Failed, Message
from rollmill.runtime.ledger import ProcessAccount
from rollmill.runtime.supervisor import Supervisor
from rollmill.tuning.curves import Curve
from rollmill.tuning.model import Allocation, StageCosts, Workload
from rollmill.tuning.trials import Slice

if TYPE_CHECKING:
    import torch

__all__ = ["Demand", "NetworkTimes", "demand_of", "fit_costs", "network_times", "workload_of"]

_BATCHES = (1, 4, 16, 64)
_SECONDS_EACH = 0.15
_MINIBATCH = 256
# Below this share of its busy time a process does not compute: somebody else does, for it.
_COMPUTES = 0.5


class NetworkTimes(NamedTuple):
    """How a network's time depends on what it is given; only ratios are used.

    Attributes:
        fixed_s: Of a forward pass, whatever its size.
        row_s: Of a forward pass, for each row.
        speedup: Threads of a backward pass -> times as fast.
    """

    fixed_s: float
    row_s: float
    speedup: Curve


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one joint run has shown.

    Attributes:
        allocation: Its.
        rows: Of a group.
        batch_groups: Mean number of groups of a forward pass.
        group_s: Core-seconds of a group's step.
        group_overhead_s: The part of it that does not depend on the group's size.
        batch_s: Core-seconds of a forward pass.
        sgd_step_s: Seconds of an SGD step, on the learner's cores.
        steps_per_second: Agent steps a second.
        actor_cores: Cores that collecting used.
        learner_cores: Cores that learning used.
        sgd_steps_per_second: SGD steps a second.
        busy: Role -> share of the time in which it waited for no other.
    """

    allocation: Allocation
    rows: int
    batch_groups: float
    group_s: float
    group_overhead_s: float
    batch_s: float
    sgd_step_s: float
    steps_per_second: float
    actor_cores: float
    learner_cores: float
    sgd_steps_per_second: float
    busy: dict[str, float]


def workload_of(config: Config, probed: Probed | None) -> Workload:
    """What a run of this configuration has to do.

    Args:
        config: Resolved.
        probed: What the environment and the network are; without it, one agent in each environment.
    """
    learner = config.learner
    return Workload(
        regime=config.regime,
        update_interval=(
            config.replay.update_interval if config.in_replay else learner.minibatch_size / learner.epochs
        ),
        batch_size=learner.batch_size,
        rollout_length=config.rollout_length,
        rows_per_env=1 if probed is None else probed.spec.rows_per_env,
        lag=config.lag,
        groups_per_batch=config.inference.groups_per_batch,
        on_cpu=not _on_accelerator(config.inference.device),
    )


def demand_of(allocation: Allocation, workload: Workload, turns: Sequence[Slice], cores: int) -> Demand:
    """What turns of one allocation's trial say."""
    rows = int(allocation.envs_per_group) * workload.rows_per_env
    seconds, steps = sum(t.seconds for t in turns), sum(t.steps for t in turns)
    by_role: dict[str, list[ProcessAccount]] = {}
    for turn in turns:
        for account in turn.accounts.values():
            by_role.setdefault(account.role, []).append(account)
    stepping = by_role[rollout_phases.ROLE.name]
    inferring = by_role.get(inference_phases.ROLE.name, [])
    learning = by_role.get(learning_phases.ROLE.name, [])
    num_processes = len(turns[0].accounts)
    is_crowded = num_processes > cores
    work = {
        role: sum(_work_s(account, is_crowded=is_crowded) for account in accounts) for role, accounts in by_role.items()
    }
    group_steps = max(1.0, steps / rows)
    batches = max(1.0, _count(inferring, "batches"))
    sgd_steps = max(1e-9, _count(learning, "SGD steps"))
    simulating = sum(account.phases["simulating"] for account in stepping)
    bookkeeping = sum(account.phases["bookkeeping"] for account in stepping)
    group_s = work[rollout_phases.ROLE.name] / group_steps
    overhead = bookkeeping / max(1e-9, bookkeeping + simulating)
    return Demand(
        allocation=allocation,
        rows=rows,
        batch_groups=max(1.0, _count(inferring, "agent steps") / rows / batches),
        group_s=group_s,
        group_overhead_s=group_s * min(0.9, overhead),
        batch_s=work.get(inference_phases.ROLE.name, 0.0) / batches,
        sgd_step_s=work.get(learning_phases.ROLE.name, 0.0) / sgd_steps,
        steps_per_second=steps / seconds,
        actor_cores=(work[rollout_phases.ROLE.name] + work.get(inference_phases.ROLE.name, 0.0)) / seconds,
        learner_cores=work.get(learning_phases.ROLE.name, 0.0) / seconds,
        sgd_steps_per_second=sgd_steps / seconds,
        busy={
            role: sum(_busy_s(account) for account in accounts) / max(1e-9, sum(a.wall_seconds for a in accounts))
            for role, accounts in by_role.items()
        },
    )


def fit_costs(demands: Sequence[Demand], times: NetworkTimes) -> StageCosts:
    """The costs that agree best with all joint runs, in relative squares, near what the parts say alone.

    Args:
        demands: One at least.
        times: Of the network by itself.
    """
    overhead = float(np.median([d.group_overhead_s for d in demands]))
    row = float(np.mean([max(0.0, d.group_s - overhead) / d.rows for d in demands]))
    env_group, env_row = _fit([[1.0, d.rows] for d in demands], [d.group_s for d in demands], [overhead, row])
    # Of the two parts of a pass, as the network has them alone; what a group costs beside is small before it is known.
    scale = float(np.mean([d.batch_s / (times.fixed_s + times.row_s * d.batch_groups * d.rows) for d in demands]))
    prior = [scale * times.fixed_s, 0.05 * scale * times.fixed_s, scale * times.row_s]
    batch, group, inferred_row = _fit(
        [[1.0, d.batch_groups, d.batch_groups * d.rows] for d in demands], [d.batch_s for d in demands], prior
    )
    speedups = [float(StageCosts.speedup(_only(times.speedup), d.allocation.learner_cores)) for d in demands]
    # CPU time of all threads, so it is divided by their number for the time that a step takes.
    one_core = [
        d.sgd_step_s / d.allocation.learner_cores * speedup for d, speedup in zip(demands, speedups, strict=True)
    ]
    return StageCosts(
        env_group_s=env_group,
        env_row_s=env_row,
        inference_batch_s=batch,
        inference_group_s=group,
        inference_row_s=inferred_row,
        sgd_step_s=float(np.median(one_core)),
        learner_speedup=times.speedup,
    )


def _only(speedup: Curve) -> StageCosts:
    return StageCosts(
        env_group_s=0,
        env_row_s=0,
        inference_batch_s=0,
        inference_group_s=0,
        inference_row_s=0,
        sgd_step_s=0,
        learner_speedup=speedup,
    )


def _fit(rows: list[list[float]], values: list[float], prior: list[float]) -> list[float]:
    """Non-negative least squares in relative errors, drawn to the prior: by projected Gauss-Seidel steps."""
    scale = np.array([max(p, 1e-9) for p in prior])
    a = np.array(rows) * scale / np.array(values)[:, None]
    a = np.vstack([a, np.eye(len(prior)) * 0.3])
    b = np.concatenate([np.ones(len(values)), np.full(len(prior), 0.3)])
    x = np.ones(len(prior))
    for _ in range(200):
        for i in range(len(prior)):
            rest = b - a @ x + a[:, i] * x[i]
            x[i] = max(0.0, float(a[:, i] @ rest) / float(a[:, i] @ a[:, i]))
    return [float(value) for value in x * scale]


def _work_s(account: ProcessAccount, *, is_crowded: bool) -> float:
    busy = _busy_s(account)
    if account.cpu_seconds < _COMPUTES * busy and not is_crowded:
        return busy
    return account.cpu_seconds if is_crowded else max(busy, account.cpu_seconds)


def _busy_s(account: ProcessAccount) -> float:
    return sum(seconds for phase, seconds in account.phases.items() if phase not in account.waiting)


def _count(accounts: Iterable[ProcessAccount], counter: str) -> float:
    return sum(account.counters[counter] for account in accounts)


def _on_accelerator(device: str) -> bool:
    return device != "cpu" and resolve_device(device).type != "cpu"


def network_times(supervisor: Supervisor, config: Config, probed: Probed, threads: Sequence[int]) -> NetworkTimes:
    """Times the network in a process of its own.

    Args:
        supervisor: Starts it.
        config: Resolved.
        probed: What the environment and the network are.
        threads: Numbers of threads to try for learning, ascending, beginning with 1.

    Raises:
        ProcessFailed: It failed.
    """
    supervisor.start("network", _time_network, config, UserCode.of_this_process(config), probed, tuple(threads))
    while True:
        for event in supervisor.poll(0.1):
            if isinstance(event, Message) and isinstance(event.content, NetworkTimes):
                return event.content
            if isinstance(event, Failed | Exited):
                raise (event if isinstance(event, Failed) else exited_early(event)).error()


def _time_network(
    context: ChildContext, config: Config, user_code: UserCode, probed: Probed, threads: tuple[int, ...]
) -> None:
    """Child: sends :class:`NetworkTimes`."""
    user_code.install()
    import torch

    take_threads(config.inference.threads)
    forward = _forward(config, probed, resolve_device(config.inference.device))
    with torch.inference_mode():
        times = [_seconds(partial(forward, rows)) for rows in _BATCHES]
    row, fixed = np.polyfit(_BATCHES, times, 1, w=1 / np.array(times))
    speedups = [(1.0, 1.0)]
    if len(threads) > 1 and resolve_device(config.learner.device).type == "cpu":
        step = _sgd_step(config, probed)
        torch.set_num_threads(1)
        alone = _seconds(step)
        for count in threads[1:]:
            torch.set_num_threads(count)
            speedups.append((float(count), alone / _seconds(step)))
    context.send(NetworkTimes(max(0.05 * times[0], float(fixed)), max(1e-9, float(row)), _rising(speedups)))


def _rising(points: list[tuple[float, float]]) -> Curve:
    best = 0.0
    rising: dict[float, float] = {}
    for cores, rate in points:
        best = max(best, rate) if cores > 1 else 1.0
        rising[cores] = best
    return Curve(tuple(rising), tuple(rising.values()))


def _seconds(call: Callable[[], object]) -> float:
    """Of one call: the median over a moment."""
    call()
    call()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS_EACH
    while time.perf_counter() < end or len(times) < 3:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return float(np.median(times))


def _forward(config: Config, probed: Probed, device: torch.device) -> Callable[[int], torch.Tensor]:
    """A forward pass of so many rows, as a policy worker makes it; that of an on-policy network has gradients."""
    import torch

    from rollmill.algorithms.base import Explore
    from rollmill.models.precision import settled_precision

    spec = probed.spec
    bf16 = settled_precision(device, has_images=spec.has_images) == "bf16"
    observations = {rows: _observation(probed, rows, device) for rows in (*_BATCHES, _minibatch(config))}

    def finish(*results: torch.Tensor) -> torch.Tensor:
        total = torch.stack([result.float().sum() for result in results]).sum()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return total

    if not config.in_replay:
        model = make_network(config, spec).to(device)

        def forward(rows: int) -> torch.Tensor:
            state = torch.zeros(rows, model.state_size, device=device) if model.state_size else None
            reset = torch.zeros(rows, dtype=torch.bool, device=device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                output = model(observations[rows], state, reset)
            return finish(output.params, output.value)

        return forward
    algorithm = make_off_policy(config, spec).to(device)
    generator = torch.Generator(device).manual_seed(0)

    def act(rows: int) -> torch.Tensor:
        mask = _mask(probed, rows, device)
        reset = torch.zeros(rows, dtype=torch.bool, device=device)
        explore = Explore(10**9, 10**9, torch.arange(rows, device=device), rows, reset, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            action = algorithm.act(observations[rows], mask, explore)
        return finish(*(part for part in action if part is not None))

    return act


def _sgd_step(config: Config, probed: Probed) -> Callable[[], object]:
    """What a learner does over and over, on the CPU, or what takes it longest."""
    import torch

    from rollmill.algorithms.base import TransitionBatch
    from rollmill.learning.off_policy_update import make_updater

    rows, spec, device = _minibatch(config), probed.spec, torch.device("cpu")
    if not config.in_replay:
        forward = _forward(config, probed, device)
        return lambda: forward(rows).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    updater = make_updater(
        make_off_policy(config, spec), spec, config.learner, generator=torch.Generator(device).manual_seed(0)
    )
    action = spec.action.in_unit_box
    observation, mask = _observation(probed, rows, device), _mask(probed, rows, device)
    batch = TransitionBatch(
        observation,
        torch.zeros((rows, action.num_discrete), dtype=torch.int32) if action.num_discrete else None,
        torch.zeros((rows, action.num_continuous)) if action.num_continuous else None,
        torch.zeros(rows),
        torch.full((rows,), 0.99),
        observation,
        mask,
        mask,
        torch.ones(rows),
    )
    return lambda: updater.step(batch)


def _minibatch(config: Config) -> int:
    return min(_MINIBATCH, config.learner.minibatch_size)


def _observation(probed: Probed, rows: int, device: torch.device) -> dict[str, torch.Tensor]:
    import torch

    view, _ = own_views(probed.spec, rows)
    return {name: torch.from_numpy(array).to(device) for name, array in view.observation.items()}


def _mask(probed: Probed, rows: int, device: torch.device) -> torch.Tensor | None:
    import torch

    return (
        torch.ones((rows, probed.spec.action.mask_size), dtype=torch.bool, device=device)
        if probed.spec.has_action_mask
        else None
    )
