"""Sampling without learning, for measuring the sampler: the processes of the async regime without the learner.

This process takes the place of the learner and returns completed slots to their rollout workers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from rollmill.benchmarking.stepping import SteppingProcesses
from rollmill.regimes.starting import prepare, probe, start_processes
from rollmill.roles import ROLLOUT_WORKER
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config
from rollmill.settings.value_checks import ConfigError


def sampling_processes(config: Config) -> SteppingProcesses:
    """Rollout workers and policy workers with uniformly random actions.

    Rollout workers count the steps, because counting completed slots would round by several per cent.

    Args:
        config: A resolved configuration.
    """
    if config.in_replay or config.in_lockstep:
        raise ConfigError(
            f"regime={config.regime.name!r}: the benchmark of the sampler does not support it, because its collecting "
            "waits for the learner; use `rollmill bench train`."
        )
    inference = replace(config.inference, random_actions=True, skip_policy=True)
    return SteppingProcesses(ROLLOUT_WORKER, partial(_start, replace(config, inference=inference)))


def _start(config: Config, supervisor: Supervisor) -> Callable[[float], None]:
    setup = prepare(config, probe(supervisor, config), Path("."), resume=False)
    store = setup.store()
    completed = np.empty(store.topology.num_slots, np.int64)
    start_processes(supervisor, setup, learner=False)

    def serve(timeout_s: float) -> None:
        count = store.completed[0].get_many(completed, timeout_s)
        for slot in completed[:count].tolist():
            store.release(slot)

    return serve
