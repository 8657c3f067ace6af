"""Sampling without learning, for measuring the sampler: the same processes as in the async regime, but for the learner.

Completed slots go straight back to their rollout workers, from this process, which stands in the learner's lane.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from rollmill.config import Config
from rollmill.regimes.asynchronous import prepare, probe, start_processes
from rollmill.rollout.phases import ROLE
from rollmill.runtime.events import Failed
from rollmill.runtime.supervisor import Supervisor

_WARM_UP_S = 3.0
_START_TIMEOUT_S = 300.0


def _steps(supervisor: Supervisor) -> int:
    """Valid steps of all rollout workers by their own count; counting whole slots would round by several per cent."""
    accounts = supervisor.snapshot().values()
    return int(sum(a.counters["agent steps"] for a in accounts if a.role == ROLE.name))


def sample(config: Config, *, seconds: float) -> float:
    """Agent steps a second that the sampler completes with uniformly random actions, masked rows not counted.

    Args:
        config: A resolved configuration.
        seconds: Length of the measurement, after a warm-up.

    Raises:
        ProcessFailed: A process failed, or no slot was completed within five minutes.
    """
    config = replace(config, inference=replace(config.inference, random_actions=True, skip_policy=True))
    with Supervisor() as supervisor:
        probed = probe(supervisor, config)
        setup = prepare(config, probed, Path("."), resume=False)
        store = setup.store()
        start_processes(supervisor, setup, learner=False)
        completed, messages = store.completed[0], np.empty(store.topology.num_slots, np.int64)
        begun = time.monotonic()
        started: float | None = None
        before: int | None = None
        while True:
            count = completed.get_many(messages, 0.1)
            now = time.monotonic()
            if started is None and count:
                started = now + _WARM_UP_S
            for slot in messages[:count].tolist():
                store.release(slot)
            if started is not None and before is None and now >= started:
                started, before = time.monotonic(), _steps(supervisor)
            if started is not None and before is not None and now >= started + seconds:
                return (_steps(supervisor) - before) / (time.monotonic() - started)
            for event in supervisor.poll(0.0):
                if isinstance(event, Failed):
                    raise event.error()
            if started is None and now - begun > _START_TIMEOUT_S:
                handle = supervisor.handles[-1]
                text = f"no slot was completed within {_START_TIMEOUT_S:.0f} s"
                raise Failed(handle, text, supervisor.stacks(handle)).error()
