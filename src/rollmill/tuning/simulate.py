"""A discrete-event simulation of a run with given stage costs: what the closed form of the model is held against.

It plays the rules of the real processes: groups go round between their rollout worker and their policy worker, a policy
worker takes what is ready, slots are finite, a learner takes whole batches, and the regime says who waits for whom
(:mod:`rollmill.storage.slots`, :mod:`rollmill.storage.rate_limiter`, :mod:`rollmill.regimes.lockstep`). Costs do not
vary. Learner and policy workers go first, and rollout workers share the cores that are left, as their niceness has it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from rollmill.storage.slots import slots_needed
from rollmill.tuning.model import Allocation, StageCosts, Workload
from rollmill.tuning.shared_cores import NICE, URGENT, SharedCores

__all__ = ["simulate"]

_MOST_EVENTS = 2_000_000


class _Group:
    """One group, on its way round.

    Attributes:
        worker: Its rollout worker.
        policy_worker: Its policy worker.
        step: Of its slot.
        slot: In lockstep, which of its slots, counted from the beginning.
    """

    __slots__ = ("index", "policy_worker", "slot", "step", "worker")

    def __init__(self, index: int, worker: int, policy_worker: int, step: int) -> None:
        self.index, self.worker, self.policy_worker, self.step, self.slot = index, worker, policy_worker, step, 0


class _Run(ABC):
    """All processes of a run, but for what a regime decides: whether a group may go on, and when the learner learns."""

    def __init__(self, costs: StageCosts, workload: Workload, allocation: Allocation, cores: float) -> None:
        self.workload = workload
        self.cores = SharedCores(cores, costs.contention)
        num_groups = int(allocation.num_groups)
        self.rows = int(allocation.envs_per_group) * workload.rows_per_env
        self.learned_steps = 0.0
        self.learned_at: list[tuple[float, float]] = []
        self._costs = costs
        self._env_s, self._wait_s = costs.env_s(self.rows), costs.wait_s(self.rows)
        self._width = float(allocation.learner_cores)
        self._sgd_s = costs.sgd_step_s / float(costs.speedup(self._width))
        num_workers, num_policy = min(int(allocation.rollout_workers), num_groups), int(allocation.policy_workers)
        is_lockstep = workload.regime == "lockstep"
        self.in_fixed_batches = is_lockstep
        round_of = num_workers if num_policy <= num_groups // num_workers else 1
        if is_lockstep:
            round_of = workload.groups_per_batch
        # Spread over their slots, as rollout workers do with random steps at the start, but for lockstep.
        self.groups = [
            _Group(
                i,
                i % num_workers,
                i // round_of % num_policy,
                0 if is_lockstep else workload.rollout_length * i // num_groups,
            )
            for i in range(num_groups)
        ]
        self._ready: list[deque[_Group]] = [deque() for _ in range(num_workers)]
        self._is_stepping = [False] * num_workers
        self._requests: list[list[_Group]] = [[] for _ in range(num_policy)]
        self._is_inferring = [False] * num_policy
        self._of_policy = [sum(g.policy_worker == p for g in self.groups) for p in range(num_policy)]
        self._missing: dict[int, list[_Group]] = {}
        self._pairs = workload.on_cpu and self.rows < 32 and not is_lockstep

    def start(self) -> None:
        for group in self.groups:
            self.ask(group)

    def ask(self, group: _Group) -> None:
        """Requests actions."""
        waiting = self._requests[group.policy_worker]
        if self.in_fixed_batches:
            batch = self._missing.setdefault(group.index // self.workload.groups_per_batch, [])
            batch.append(group)
            if len(batch) < min(self.workload.groups_per_batch, len(self.groups)):
                return
            waiting.extend(batch)
            batch.clear()
        else:
            waiting.append(group)
        self._infer(group.policy_worker)

    def _infer(self, policy: int) -> None:
        waiting = self._requests[policy]
        if self._is_inferring[policy] or not waiting:
            return
        if self.in_fixed_batches:
            count = min(len(waiting), self.workload.groups_per_batch)
        else:
            count = len(waiting)
            if self._pairs and count < 2 and self._of_policy[policy] > 2 and self._is_anything_stepped(waiting[0]):
                return
        batch, self._requests[policy] = waiting[:count], waiting[count:]
        self._is_inferring[policy] = True

        def done() -> None:
            self._is_inferring[policy] = False
            for group in batch:
                self.answered(group)
            self._infer(policy)

        self.cores.run(URGENT, self._costs.inference_s(count, self.rows), done)

    def _is_anything_stepped(self, group: _Group) -> bool:
        return self._is_stepping[group.worker]

    def answered(self, group: _Group) -> None:
        """Actions have come."""
        self.make_ready(group)

    def make_ready(self, group: _Group) -> None:
        """Steps a group when its worker comes to it."""
        self._ready[group.worker].append(group)
        self._step(group.worker)

    def _step(self, worker: int) -> None:
        ready = self._ready[worker]
        if self._is_stepping[worker] or not ready or not self.may_step(ready[0]):
            return
        group = ready.popleft()
        self._is_stepping[worker] = True

        def done() -> None:
            self._is_stepping[worker] = False
            group.step += 1
            self.stepped(group)
            self._step(worker)
            if not self._is_stepping[worker]:
                # Policy workers that waited for a pair wait no longer.
                for policy in {g.policy_worker for waiting in self._requests for g in waiting if g.worker == worker}:
                    self._infer(policy)

        if self._wait_s:
            self.cores.run(NICE, self._env_s, lambda: self.cores.wait(self._wait_s, done))
        else:
            self.cores.run(NICE, self._env_s, done)

    def retry(self) -> None:
        """Asks all workers again whether they may step."""
        for worker in range(len(self._ready)):
            self._step(worker)

    def learn(self, sgd_steps: float, steps: float, then: Callable[[], None]) -> None:
        """Keeps the learner busy."""

        def done() -> None:
            self.learned_steps += steps
            self.learned_at.append((self.cores.now, self.learned_steps))
            then()

        self.cores.run(URGENT, max(self._sgd_s, 1e-9) * sgd_steps, done, width=self._width)

    # What regimes decide.

    def may_step(self, group: _Group) -> bool:
        return True

    @abstractmethod
    def stepped(self, group: _Group) -> None:
        """A group has made its step: what happens next."""


class _Async(_Run):
    """First in, first out; what is collected waits in finite slots."""

    def __init__(self, costs: StageCosts, workload: Workload, allocation: Allocation, cores: float) -> None:
        super().__init__(costs, workload, allocation, cores)
        count = slots_needed(
            num_groups=len(self.groups),
            group_rows=self.rows,
            rollout_length=workload.rollout_length,
            batch_size=workload.batch_size,
        )
        workers = [g.worker for g in self.groups]
        self._free = [-(-count * workers.count(w) // len(workers)) - workers.count(w) for w in range(len(self._ready))]
        self._parked: list[deque[_Group]] = [deque() for _ in self._ready]
        # Worker of each completed slot, and samples of the first that are already taken.
        self._completed: deque[int] = deque()
        self._taken = 0
        self._is_learning = False

    def stepped(self, group: _Group) -> None:
        if group.step < self.workload.rollout_length:
            self.ask(group)
            return
        self._completed.append(group.worker)
        group.step = 0
        if self._free[group.worker] > 0:
            self._free[group.worker] -= 1
            self.ask(group)
        else:
            self._parked[group.worker].append(group)
        self._begin_batch()

    def _begin_batch(self) -> None:
        slot, batch = self.workload.rollout_length * self.rows, self.workload.batch_size
        if self._is_learning or len(self._completed) * slot - self._taken < batch:
            return
        self._is_learning = True
        used: list[int] = []
        self._taken += batch
        while self._taken >= slot:
            used.append(self._completed.popleft())
            self._taken -= slot

        def done() -> None:
            self._is_learning = False
            for worker in used:
                if self._parked[worker]:
                    self.ask(self._parked[worker].popleft())
                else:
                    self._free[worker] += 1
            self._begin_batch()

        self.learn(batch / self.workload.update_interval, batch, done)


class _Lockstep(_Run):
    """Iteration i begins when what was learned from iteration i - 1 - lag is published."""

    def __init__(self, costs: StageCosts, workload: Workload, allocation: Allocation, cores: float) -> None:
        super().__init__(costs, workload, allocation, cores)
        self._done = 0
        self._whole: dict[int, int] = {}
        self._waiting: list[_Group] = []
        self._is_learning = False

    def answered(self, group: _Group) -> None:
        if group.step < self.workload.rollout_length:
            self.make_ready(group)
            return
        # That was V(x_T): the slot is whole.
        self._whole[group.slot] = self._whole.get(group.slot, 0) + 1
        group.slot, group.step = group.slot + 1, 0
        if self._done >= group.slot - self.workload.lag:
            self.ask(group)
        else:
            self._waiting.append(group)
        self._begin_iteration()

    def stepped(self, group: _Group) -> None:
        self.ask(group)

    def _begin_iteration(self) -> None:
        if self._is_learning or self._whole.get(self._done, 0) < len(self.groups):
            return
        self._is_learning = True
        del self._whole[self._done]

        def done() -> None:
            self._is_learning = False
            self._done += 1
            waiting, self._waiting = self._waiting, []
            for group in waiting:
                if self._done >= group.slot - self.workload.lag:
                    self.ask(group)
                else:
                    self._waiting.append(group)
            self._begin_iteration()

        samples = self.workload.rollout_length * self.rows * len(self.groups)
        self.learn(samples / self.workload.update_interval, samples, done)


class _Replay(_Run):
    """Whoever is ahead of the update interval waits."""

    def __init__(self, costs: StageCosts, workload: Workload, allocation: Allocation, cores: float) -> None:
        super().__init__(costs, workload, allocation, cores)
        self._inserted = self._drawn = 0.0
        self._ahead = int(allocation.num_envs) * workload.rows_per_env + workload.update_interval
        self._is_learning = False

    def may_step(self, group: _Group) -> bool:
        if self._inserted + self.rows > self._drawn * self.workload.update_interval + self._ahead:
            return False
        self._inserted += self.rows
        return True

    def stepped(self, group: _Group) -> None:
        self.ask(group)
        self._draw()

    def start(self) -> None:
        super().start()
        self._draw()

    def _draw(self) -> None:
        interval = self.workload.update_interval
        if self._is_learning or (self._drawn + 1) * interval > self._inserted + self._ahead:
            return
        self._is_learning = True
        self._drawn += 1

        def done() -> None:
            self._is_learning = False
            self._draw()

        self.learn(1, interval, done)
        self.retry()


_REGIMES: dict[str, Callable[[StageCosts, Workload, Allocation, float], _Run]] = {
    "async": _Async,
    "lockstep": _Lockstep,
    "replay": _Replay,
}


def simulate(
    costs: StageCosts, workload: Workload, allocation: Allocation, cores: float, *, rounds: float = 4.0
) -> float:
    """Agent steps a second, learned from, in the steady state.

    Args:
        costs: Of the machine.
        workload: Of the run.
        allocation: One configuration.
        cores: M.
        rounds: How many times every group fills a slot, after one that does not count; and at least so many batches.
    """
    run: _Run = _REGIMES[workload.regime](costs, workload, allocation, cores)
    run.start()
    each = max(workload.rollout_length * run.rows * len(run.groups), 2.0 * workload.batch_size)
    if workload.regime == "replay":
        each = max(8.0 * run.rows * len(run.groups), 16 * workload.update_interval)
    warm: tuple[float, float] | None = None
    for _ in range(_MOST_EVENTS):
        if not run.cores.advance():
            raise AssertionError("all processes wait for each other")
        if warm is None and run.learned_at and run.learned_steps >= each:
            warm = run.learned_at[-1]
        if warm is not None and run.learned_steps >= warm[1] + rounds * each:
            break
    if warm is None or run.learned_at[-1] == warm:
        first, last = (0.0, 0.0), (run.cores.now, run.learned_steps)
    else:
        first, last = warm, run.learned_at[-1]
    return (last[1] - first[1]) / (last[0] - first[0])
