"""Sampling without learning, for measuring the sampler: the processes of the async regime without the learner.

This process takes the place of the learner and returns completed slots to their rollout workers at once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rollmill.benchmarking.stepping import SteppingProcesses
from rollmill.regimes.running import prepare, probe, start_processes
from rollmill.roles import ROLLOUT_WORKER
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config, ConfigError
from rollmill.storage.slots import SlotStore

__all__ = ["Sampler"]


class Sampler(SteppingProcesses):
    """Rollout workers and policy workers with uniformly random actions.

    Rollout workers count the steps, because counting completed slots would round by several per cent.

    Args:
        config: A resolved configuration.
    """

    _store: SlotStore

    def __init__(self, config: Config) -> None:
        """Starts nothing."""
        if config.in_replay:
            raise ConfigError(
                "regime='replay': the benchmark of the sampler does not support it, because its collecting waits for "
                "the learner; use `rollmill bench train`."
            )
        super().__init__(ROLLOUT_WORKER)
        inference = replace(config.inference, random_actions=True, skip_policy=True)
        self._config = replace(config, inference=inference)

    def _start(self, supervisor: Supervisor) -> None:
        probed = probe(supervisor, self._config)
        setup = prepare(self._config, probed, Path("."), resume=False)
        self._store = setup.store()
        self._completed = np.empty(self._store.topology.num_slots, np.int64)
        start_processes(supervisor, setup, learner=False)

    def _serve(self, timeout_s: float) -> None:
        count = self._store.completed[0].get_many(self._completed, timeout_s)
        for slot in self._completed[:count].tolist():
            self._store.release(slot)
