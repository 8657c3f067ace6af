"""Pure simulation: the environments of a preset, stepped with random actions as fast as the cores allow.

There is one process for each core, without niceness, policy, slots or messages. A sampler would reach this speed if
everything but the environments were free (Sample Factory, section 4.2: "pure simulation").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rollmill.benchmarking.stepping import SteppingProcesses
from rollmill.envs.random_actions import random_actions
from rollmill.envs.views import ObservationView, OutcomeView, own_views
from rollmill.regimes.setup import Probed, build_group
from rollmill.regimes.starting import probe
from rollmill.regimes.user_code import UserCode
from rollmill.runtime.affinity import plan
from rollmill.runtime.child import ChildContext
from rollmill.runtime.ledger import Role
from rollmill.runtime.seeds import stream
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config

_PREPARED_ACTIONS = 64
_ROLE = Role(name="simulation", phases=("simulating",), counters=("agent steps",))


def simulating_processes(config: Config) -> SteppingProcesses:
    """One process a core, as many as the configuration has rollout workers; each steps its groups one after another.

    Args:
        config: A resolved configuration: its environment, groups and number of rollout workers are used.
    """
    return SteppingProcesses(_ROLE, partial(_start, config))


def _start(config: Config, supervisor: Supervisor) -> Callable[[float], None]:
    num_workers, envs_per_group = config.rollout.num_workers, config.envs_per_group
    assert num_workers != "auto"
    assert envs_per_group != "auto"
    num_groups = config.num_envs // envs_per_group
    probed, user_code = probe(supervisor, config), UserCode.of_this_process(config)
    # Use the cores that the rollout workers of a sampler with policy workers would have.
    placement = plan(
        num_rollout_workers=num_workers,
        num_policy_workers=config.inference.num_workers,
        num_learners=0,
        config=config.placement,
    )
    for worker, (cpus, _) in enumerate(placement.rollout_workers):
        groups = list(range(worker, num_groups, num_workers))
        supervisor.start(
            f"simulation {worker}", _simulate, config, user_code, probed, groups, worker, role=_ROLE, cpus=cpus
        )
    return time.sleep


def pure_simulation(config: Config, *, seconds: float) -> float:
    """Agent steps a second, masked rows not counted, over all processes; see :func:`simulating_processes`.

    Args:
        config: A resolved configuration.
        seconds: Length of the measurement, after a warm-up.

    Raises:
        ProcessFailed: A process failed, or the environments did not start within five minutes.
    """
    with simulating_processes(config) as simulation:
        return simulation.measure(seconds)


def _simulate(
    context: ChildContext, config: Config, user_code: UserCode, probed: Probed, groups: list[int], worker: int
) -> None:
    """Child process: step its groups one after another until told to stop."""
    user_code.install(networks=False)
    envs_per_group = config.envs_per_group
    assert envs_per_group != "auto"
    rows = envs_per_group * probed.spec.rows_per_env
    random = stream(config.seed, "pure simulation", worker)
    # Actions are drawn beforehand, because drawing is the policy's work; only masks have to be applied at each step.
    prepared = [random_actions(probed.spec.action, None, rows, random) for _ in range(_PREPARED_ACTIONS)]
    hosted: list[tuple[Any, ObservationView, OutcomeView]] = []
    for group in groups:
        environments = build_group(config, group, spec=probed.spec)
        into, outcome = own_views(probed.spec, rows)
        environments.reset(into)
        hosted.append((environments, into, outcome))
    try:
        step = 0
        while not context.stop.is_set():
            for environments, into, outcome in hosted:
                mask = into.action_mask
                actions = (
                    prepared[step % _PREPARED_ACTIONS]
                    if mask is None
                    else random_actions(probed.spec.action, mask, rows, random)
                )
                environments.step(*actions, into, outcome)
                context.ledger.add(0, int(np.count_nonzero(outcome.valid)))
                step += 1
    finally:
        for environments, _, _ in hosted:
            environments.close()
