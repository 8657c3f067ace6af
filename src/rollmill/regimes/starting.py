"""The start of a run in any regime: sizes, memory, processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rollmill.pbt.objectives import check_objective
from rollmill.regimes import asynchronous, lockstep, probing, replay
from rollmill.regimes import setup as children
from rollmill.regimes.ending import exited_early, hung_error, was_signalled_with_us
from rollmill.regimes.hanging import HangLimits
from rollmill.regimes.memory_parts import is_on_host
from rollmill.regimes.setup import Probed, Refusal, RunSetup
from rollmill.regimes.user_code import UserCode
from rollmill.roles import EVALUATOR, GRADIENT_LEARNER, LEARNER, POLICY_WORKER, ROLLOUT_WORKER
from rollmill.runtime.affinity import PlacementPlan, plan
from rollmill.runtime.events import Exited, Failed, Message
from rollmill.runtime.ranks import Ranks
from rollmill.runtime.seeds import int_seed
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config
from rollmill.settings.policies import source_of
from rollmill.settings.value_checks import ConfigError

_REGIMES = {"async": asynchronous, "lockstep": lockstep, "replay": replay}

_POLL_S = 0.25
_LONGEST_LOOK_S = 5.0
# For the environment of one task, unless steps may take longer.
_PROBE_TIMEOUT_S = 300.0


def probe(
    supervisor: Supervisor,
    config: Config,
    run_dir: Path | None = None,
    ranks: Ranks | None = None,
    *,
    is_stop_wanted: Callable[[], bool] = lambda: False,
    trust: bool = False,
) -> Probed:
    """Build one environment and the network in a separate process, so that they cannot harm this one.

    Args:
        supervisor: Starts the process.
        config: The resolved configuration.
        run_dir: Directory of a resumed run.
        ranks: The ranks; one by default.
        is_stop_wanted: Called while waiting.
        trust: Whether to use the files of a resumed run even if another user wrote them.

    Raises:
        ProcessFailed: The probe failed, or took too long.
        ConfigError: The algorithm does not support the environment's actions.
        KeyboardInterrupt: ``is_stop_wanted`` returned True.
    """
    user_code = UserCode.of_this_process(config)
    handle = supervisor.start("probe", probing.probe, config, user_code, run_dir, ranks, trust)
    # Tasks are tried one after the other, and ranks wait for each other.
    timeout_s = max(_PROBE_TIMEOUT_S, config.rollout.step_timeout_s) * max(1, len(config.env.tasks))
    if ranks is not None and not ranks.is_alone:
        timeout_s += config.distributed.timeout_s
    awake_s, looked_at = 0.0, time.monotonic()
    # All that a probe does counts as its start.
    limits = HangLimits(config, start_s=timeout_s)
    found: Probed | None = None
    while awake_s < timeout_s:
        # Time in which this program was stopped (Ctrl-Z) does not count.
        before, looked_at = looked_at, time.monotonic()
        awake_s += min(looked_at - before, _LONGEST_LOOK_S)
        if is_stop_wanted():
            raise KeyboardInterrupt
        for hung in limits.check(supervisor):
            raise hung_error(supervisor, hung, limits)
        for event in supervisor.poll(_POLL_S):
            if isinstance(event, Failed):
                if was_signalled_with_us(event, is_stop_wanted):
                    raise KeyboardInterrupt
                raise event.error()
            if isinstance(event, Message) and isinstance(event.content, Probed):
                found = event.content
            if isinstance(event, Message) and isinstance(event.content, Refusal):
                raise ConfigError(event.content.reason)
            if isinstance(event, Exited):
                if found is None:
                    raise exited_early(event).error()
                return found
    stacks = supervisor.stacks(handle)
    late = (
        f"{handle} did not import the user's code and build, try and close an environment of each task within "
        f"{timeout_s:.0f} s: a larger rollout.step_timeout_s gives it more."
    )
    raise Failed(handle, late, stacks).error()


def prepare(
    config: Config,
    probed: Probed,
    run_dir: Path,
    *,
    resume: bool,
    saved_steps: int | None = None,
    ranks: Ranks | None = None,
    trust: bool = False,
) -> RunSetup:
    """Resolve "auto" settings and allocate the shared memory.

    Args:
        config: The resolved configuration.
        probed: Sizes of the environment and the network.
        run_dir: The run's directory.
        resume: Whether the learner resumes from a checkpoint.
        saved_steps: Agent steps of that checkpoint.
        ranks: The ranks; one by default.
        trust: Whether to use the files of a resumed run even if another user wrote them.
    """
    ranks = ranks or Ranks()
    if config.population.pbt:
        agents = max(1, len(probed.spec.agents))
        check_objective(
            config.pbt.objective, agents, probed.spec.name, in_replay=config.in_replay, tasks=config.env.tasks
        )
    config = probed.settle(config)
    topology = _REGIMES[config.regime.name].plan_topology(config, probed, ranks.world_size)
    memory = _REGIMES[config.regime.name].allocate(config, probed, topology, run_dir, saved_steps, ranks, trust=trust)
    done = memory.steps_done(saved_steps)
    return RunSetup(
        config,
        probed,
        topology,
        memory,
        run_dir,
        resume,
        UserCode.of_this_process(config),
        # 63 bits, because a run of months has more steps than fit 31.
        int_seed(config.seed, "resumed", done, bits=63) if done else config.seed,
        ranks,
        trust=trust,
    )


def start_processes(supervisor: Supervisor, run_setup: RunSetup, *, learner: bool = True) -> None:
    """Start the learner, the policy workers and the rollout workers on their assigned cores."""
    config = run_setup.config
    regime = _REGIMES[config.regime.name]
    placement = _placement(run_setup, learner=learner)
    if learner:
        cpus, nice = placement.learners[0]
        threads = {"OMP_NUM_THREADS": str(config.compute.threads)}
        supervisor.start(LEARNER.name, regime.learner, run_setup, role=LEARNER, env=threads, cpus=cpus, nice=nice)
        for index, (cpus, nice) in enumerate(placement.learners[1:]):
            supervisor.start(
                f"gradient learner {index}",
                replay.gradient_learner,
                run_setup,
                index,
                role=GRADIENT_LEARNER,
                env=threads,
                cpus=cpus,
                nice=nice,
            )
    for index, (cpus, nice) in enumerate(placement.policy_workers):
        name, threads = f"policy worker {index}", {"OMP_NUM_THREADS": str(config.inference.threads)}
        supervisor.start(
            name,
            regime.policy_worker,
            run_setup,
            index,
            role=POLICY_WORKER,
            env=threads,
            cpus=cpus,
            nice=nice,
        )
    for worker, (cpus, nice) in enumerate(placement.rollout_workers):
        name = f"rollout worker {worker}"
        supervisor.start(name, regime.rollout_worker, run_setup, worker, role=ROLLOUT_WORKER, cpus=cpus, nice=nice)


def _placement(run_setup: RunSetup, *, learner: bool) -> PlacementPlan:
    config, topology = run_setup.config, run_setup.topology
    return plan(
        num_rollout_workers=topology.num_workers,
        num_policy_workers=topology.num_policy_workers,
        num_learners=topology.num_learners if learner else 0,
        config=config.placement,
        threads_per_learner=cores_per_learner(config, run_setup.probed),
        num_policies=len(config.population.names),
    )


def cores_per_learner(config: Config, probed: Probed) -> int:
    """Cores of a learner: one for each thread, and two on a GPU, where its loader works beside its kernel launches."""
    return config.compute.threads if is_on_host(config.compute.device, probed) else max(2, config.compute.threads)


class Evaluator:
    """The process that evaluates networks during training, on rank 0; started on first use.

    Args:
        supervisor: The supervisor that starts it.
        run_setup: The run's setup.
    """

    def __init__(self, supervisor: Supervisor, run_setup: RunSetup) -> None:
        self._supervisor = supervisor
        self._run_setup = run_setup
        self._is_started = False

    def start(self) -> None:
        """Start the process, unless it is started."""
        if self._is_started or self._run_setup.ranks.rank:
            return
        self._is_started = True
        nice = _placement(self._run_setup, learner=True).rollout_workers[0][1]
        self._supervisor.start(EVALUATOR.name, children.evaluator, self._run_setup, False, role=EVALUATOR, nice=nice)


def describe(run_setup: RunSetup) -> str:
    """Describe the run in one line."""
    topology, probed = run_setup.topology, run_setup.probed
    replay = run_setup.memory.replay
    memory = (run_setup.memory.arena.nbytes + (0 if replay is None else replay.nbytes)) / 2**20
    return (
        f"{probed.spec.name}: {run_setup.config.num_envs} environments in {topology.num_groups} groups of "
        f"{topology.group_rows} rows on {topology.num_workers} rollout workers, {topology.num_policy_workers} policy "
        f"worker(s), {_parameters(probed)}, {topology.num_slots} slots in {memory:,.0f} MiB"
    )


def _parameters(probed: Probed) -> str:
    trained = f"{probed.num_parameters:,}"
    if not probed.num_frozen:
        return f"{trained} parameters"
    return f"{trained} trained parameters of {probed.num_parameters + probed.num_frozen:,}"


def describe_beginning(config: Config, *, resume: bool) -> list[str]:
    """Say whose weights each policy begins with, and what it does not train."""
    lines = []
    for name, settings in zip(config.population.names, config.policies, strict=True):
        who = "" if len(config.policies) == 1 else f"policy {name}: "
        source = None if resume else source_of(config, name)
        if source is not None:
            kept = f", without {', '.join(config.init_skip)}" if config.init_skip else ""
            lines.append(f"{who}begins with the weights of {source}{kept}")
        if frozen := settings.optimiser.freeze:
            lines.append(f"{who}{', '.join(frozen)} (learner.freeze) {'is' if len(frozen) == 1 else 'are'} not trained")
    return lines
