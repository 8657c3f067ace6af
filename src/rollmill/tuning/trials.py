"""Short real runs of candidate allocations that take turns, so that they can be compared on a noisy machine.

All processes of a candidate are started, warmed up and paused (SIGSTOP). Then candidates take turns of about a second,
so that changes of the machine's speed affect all of them, and each is started only once. The complete system is
measured at the required ratio: the steps of rollout workers that wait for learner, replay and slots.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rollmill.benchmarking.stepping import SteppingProcesses, TooShortError
from rollmill.regimes.setup import Probed
from rollmill.regimes.starting import prepare, start_processes
from rollmill.roles import LEARNER, ROLLOUT_WORKER, LearnerCounter
from rollmill.runtime.ledger import ProcessAccount, between
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config
from rollmill.settings.regime_config import ReplayRegimeConfig

# Slow environments need longer for a batch; then the time of the network alone is used for an SGD step.
_LEARNED_TIMEOUT_S = 15.0
_STEPPED_TIMEOUT_S = 20.0
# Agent steps; trials collect fewer.
_MOST_KEPT = 100_000


class Outside(NamedTuple):
    """Time outside of a process's own CPU time, of one that leads a group: its wait for a core, others' work for it.

    A rollout worker that is busy may compute, wait for a core that others have, wait for a simulator that is a process
    of its own (VizDoom's engine), or sleep. Which of these it is decides what more workers would bring. Linux only.

    Attributes:
        delay_s: Seconds in which its main thread could have run, and had no core; helpers' included.
        helpers_s: CPU seconds of the other processes of its group.
    """

    delay_s: float = 0.0
    helpers_s: float = 0.0

    def since(self, before: Outside) -> Outside:
        """What came in between. A helper that has ended took its seconds along."""
        return Outside(max(0.0, self.delay_s - before.delay_s), max(0.0, self.helpers_s - before.helpers_s))


class Slice(NamedTuple):
    """The result of one turn.

    Attributes:
        seconds: Its duration.
        steps: Valid agent steps in it.
        accounts: Process name -> its account of this turn.
        outside: Process name -> its time outside of the account.
    """

    seconds: float
    steps: int
    accounts: dict[str, ProcessAccount]
    outside: dict[str, Outside]

    @property
    def steps_per_second(self) -> float:
        """Agent steps a second."""
        return self.steps / self.seconds


def for_trial(config: Config, rows_per_env: int) -> Config:
    """The run without a beginning and an end: no random steps, learning from the first batches on, no limits.

    Args:
        config: Resolved.
        rows_per_env: Agents of an environment.
    """
    config = replace(
        config,
        total_steps=10**15,
        max_seconds=None,
        target_return=None,
        eval_every=None,
        tracking=replace(config.tracking, trackers=None),
        debug_fingerprints=False,
        checkpoint=replace(config.checkpoint, every_s=None, every_steps=None),
    )
    if not isinstance(config.regime, ReplayRegimeConfig):
        return config
    enough = max(2 * config.algorithm.batch_size, 4 * config.replay.least_min_size(config.num_envs * rows_per_env))
    # A trial fills little of the replay, so that one for the disk need not fit into memory.
    capacity = min(config.replay.most_steps, max(_MOST_KEPT, 4 * enough))
    replay = replace(config.replay, capacity=capacity, min_size=min(config.replay.min_size, enough), storage="memory")
    return replace(
        config,
        regime=replace(config.regime, replay=replay, algorithm=replace(config.regime.algorithm, random_steps=0)),
    )


@contextlib.contextmanager
def trial(config: Config, probed: Probed) -> Iterator[Callable[[float], Slice]]:
    """Start a complete run, warm it up and pause it; on exit it is ended, and what it wrote is deleted.

    Args:
        config: A resolved configuration.
        probed: What its environment and network are.

    Yields:
        A function that takes seconds and lets the run go on for so long, or until something has been stepped. Raises
        ProcessFailed, and TooShortError if nothing was stepped meanwhile.
    """

    def start(supervisor: Supervisor) -> Callable[[float], None]:
        tried = for_trial(config, probed.spec.rows_per_env)
        start_processes(supervisor, prepare(tried, probed, Path(folder), resume=False))
        return time.sleep

    with (
        tempfile.TemporaryDirectory(prefix="rollmill-tune-") as folder,
        SteppingProcesses(ROLLOUT_WORKER, start) as processes,
    ):
        try:
            _wait_until_learned(processes)
            yield partial(_turn, processes)
        finally:
            # On a request to stop, a learner would first save its state.
            for handle in processes.supervisor.handles:
                processes.supervisor.kill(handle)


def _wait_until_learned(processes: SteppingProcesses) -> None:
    deadline = time.monotonic() + _LEARNED_TIMEOUT_S
    with processes.running():
        while not _sgd_steps(processes) and time.monotonic() < deadline:
            processes.run_for(0.1)


def _turn(processes: SteppingProcesses, seconds: float) -> Slice:
    snapshot = processes.supervisor.snapshot
    with processes.running():
        before, outside, started = snapshot(), _outside(processes), time.monotonic()
        steps = 0
        # On a busy machine a process may wait longer than that for a core.
        while not steps and time.monotonic() - started < _STEPPED_TIMEOUT_S:
            processes.run_for(seconds)
            accounts = between(before, snapshot())
            steps = sum(int(a.counters["agent steps"]) for a in accounts.values() if a.role == ROLLOUT_WORKER.name)
        elapsed = time.monotonic() - started
        outside = {name: now.since(outside[name]) for name, now in _outside(processes).items() if name in outside}
    if not steps:
        raise TooShortError(
            f"no group of environments was stepped within {elapsed:.0f} s: the environments are too slow to tune "
            "with, or others use the cores."
        )
    return Slice(elapsed, steps, accounts, outside)


def _outside(processes: SteppingProcesses) -> dict[str, Outside]:
    pids = {name: account.pid for name, account in processes.supervisor.snapshot().items()}
    found = _outside_of(pids.values())
    return {name: found[pid] for name, pid in pids.items()}


def _outside_of(leaders: Collection[int]) -> dict[int, Outside]:
    """Of each of these processes, all that there was so far."""
    found = dict.fromkeys(leaders, Outside())
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            group = int(fields[2])
            if group not in found:
                continue
            delay_s = int(Path(entry.path, "schedstat").read_bytes().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # it has ended, or the kernel does not count
            continue
        ticks = int(fields[11]) + int(fields[12])
        helper_s = 0.0 if int(entry.name) == group else ticks / os.sysconf("SC_CLK_TCK")
        found[group] = Outside(found[group].delay_s + delay_s, found[group].helpers_s + helper_s)
    return found


def _sgd_steps(processes: SteppingProcesses) -> float:
    counter = LEARNER.counters[LearnerCounter.SGD_STEPS]
    accounts = processes.supervisor.snapshot().values()
    return sum(account.counters[counter] for account in accounts if account.role == LEARNER.name)
