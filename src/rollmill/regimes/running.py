"""The life of a run in any regime.

A regime is a module of this folder: how groups and slots are assigned (``plan_topology``), the memory that the
processes share (``allocate``), and what they run (``rollout_worker``, ``policy_worker``, ``learner``).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rollmill.callback import Callback, LiveRun
from rollmill.envs.info_metrics import EnvMetrics
from rollmill.evaluation.saved_spaces import SPACES_FILE, write_spaces
from rollmill.learning.live_numbers import control_block
from rollmill.learning.report import LearnerReport
from rollmill.regimes import asynchronous, lockstep, probing, replay
from rollmill.regimes import setup as children
from rollmill.regimes.callbacks import Callbacks
from rollmill.regimes.caveats import caveats_of
from rollmill.regimes.ending import EndedBy, exited_early, hung_error, was_signalled_with_us, watch
from rollmill.regimes.first_batch import long_wait, nothing_learned
from rollmill.regimes.hanging import HangLimits
from rollmill.regimes.memory_parts import is_on_host
from rollmill.regimes.monitor import Monitor
from rollmill.regimes.policy_reports import PolicyReports, policy_monitors
from rollmill.regimes.record import RunRecord
from rollmill.regimes.setup import Probed, Refusal, RunSetup
from rollmill.regimes.steps_done import episodes_reported, saved_steps, steps_done_again
from rollmill.regimes.user_code import UserCode
from rollmill.reporting.display import Display
from rollmill.reporting.ledger_report import LEDGER_FILE, format_ledger
from rollmill.reporting.metrics import MetricsWriter, read_metrics
from rollmill.reporting.plots import plot_runs
from rollmill.roles import EVALUATOR, GRADIENT_LEARNER, LEARNER, POLICY_WORKER, ROLLOUT_WORKER
from rollmill.runtime.affinity import PlacementPlan, plan
from rollmill.runtime.events import Exited, Failed, Message
from rollmill.runtime.logs import run_log
from rollmill.runtime.ranks import Launcher, Ranks, folder_of_rank
from rollmill.runtime.seeds import int_seed
from rollmill.runtime.signals import StopSignals
from rollmill.runtime.signatures import signing_key
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config
from rollmill.settings.options import flatten
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.evaluations import EvaluationQueue
from rollmill.storage.replay_file import adopt_replay, close_replay, discard_new_replay, remove_replay

_REGIMES = {"async": asynchronous, "lockstep": lockstep, "replay": replay}

_POLL_S = 0.25
_PROBE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Outcome:
    """Result of a run.

    Attributes:
        agent_steps: Agent steps consumed, earlier sessions included.
        episode_return: Mean raw return of the last 100 episodes, or None.
        summary: The ledger, as text.
        ended_by: The reason for the end.
        probed: Sizes of the environment and the network.
    """

    agent_steps: int
    episode_return: float | None
    summary: str
    ended_by: EndedBy
    probed: Probed


def run(
    config: Config,
    run_dir: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    ranks: Ranks | None = None,
    on_probed: Callable[[Probed], None] | None = None,
    on_report: Callable[[LearnerReport, float], None] | None = None,
    stop_when: Callable[[], bool] | None = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    changed: Mapping[str, tuple[object, object]] | None = None,
) -> Outcome:
    """Train until ``total_steps``, ``max_seconds``, ``target_return``, Ctrl-C or SIGTERM.

    Args:
        config: A resolved configuration.
        run_dir: Existing directory for metrics, checkpoints and the log.
        resume: Whether to resume from its newest checkpoint.
        quiet: Whether to show nothing.
        ranks: The ranks; one by default. Only rank 0 writes metrics and curves.
        on_probed: Called with the sizes of environment and network before training.
        on_report: Called with every report of the learner and the seconds since training began.
        stop_when: Called several times a second; True ends the run like Ctrl-C.
        callbacks: The user's callbacks, called on rank 0.
        trust: Whether to use the files of a resumed run even if another user wrote them.
        changed: For a resumed run: key -> value before and now, for settings that differ; for ``run.log``.

    Raises:
        ProcessFailed: A process or a callback failed, or a process hung; the other processes were ended; the learner,
            if it did not fail, had three seconds to save a checkpoint.
        NotEnoughMemory: The slots do not fit into memory.
        KeyboardInterrupt: Ctrl-C or SIGTERM came before training had begun.
    """
    ranks = ranks or Ranks()
    if ranks.rank:
        # Rank 0 decides about time limit and target return.
        config = replace(config, max_seconds=None, target_return=None)
    display = None if quiet or ranks.rank else Display()
    log_path = run_dir / "run.log"
    launcher = Launcher()
    spaces: Mapping[str, object] | None = None  # spaces to be written
    has_replay_file = config.in_replay and config.replay.storage == "file"
    names, folders = config.population.names, config.population.folders(run_dir)

    sgd_steps_before: list[int] = []
    record = RunRecord(
        config,
        run_dir,
        ranks,
        resume=resume,
        changed=changed or {},
        show=None if display is None else display.note,
    )

    def reported(report: LearnerReport, time_s: float) -> None:
        nonlocal spaces
        record.agent_steps = report.agent_steps
        if not sgd_steps_before:
            sgd_steps_before.append(report.sgd_steps)
        if spaces is not None:
            for folder in {run_dir, *folders}:
                _leave_spaces(folder, spaces)
            spaces = None
        if config.in_replay:
            _settle_replays(run_dir, ranks, has_file=has_replay_file)
        if on_report is not None:
            on_report(report, time_s)

    with (
        StopSignals() as signals,
        run_log(log_path),
        record,  # exits after all processes have ended
        Supervisor(log_path=log_path) as supervisor,
        ExitStack() as at_end,
    ):
        if has_replay_file:
            at_end.callback(_discard_new_replay, run_dir)

        def is_told_to_end() -> bool:
            return signals.received is not None or launcher.is_gone

        probed = probe(
            supervisor, config, run_dir if resume else None, ranks, is_stop_wanted=is_told_to_end, trust=trust
        )
        spaces = None if ranks.rank else probed.spec.spaces
        if on_probed is not None:
            on_probed(probed)
        already = None
        if resume:
            # For a replay, from rank 0's disk: other ranks have no checkpoints.
            already = saved_steps(folders) if probed.saved_steps is None else sum(probed.saved_steps)
        run_setup = prepare(config, probed, run_dir, resume=resume, saved_steps=already, ranks=ranks, trust=trust)
        config = run_setup.config
        writer = None
        if not ranks.rank:
            writer = MetricsWriter(
                run_dir,
                resume_at_steps=run_setup.memory.steps_done(already),
                wandb_project=config.wandb_project,
                config=flatten(config),
            )
        earlier = read_metrics(run_dir) if resume and not ranks.rank else []
        if earlier and run_setup.memory.inserted:
            run_setup = replace(run_setup, episodes=tuple(episodes_reported(folder) for folder in folders))
        evaluator = Evaluator(supervisor, run_setup)
        arena = run_setup.memory.arena
        controls = {name: control_block(arena, policy=policy) for policy, name in enumerate(names)}
        live_run = LiveRun(run_dir, config, controls, start_evaluator=evaluator.start)
        called = at_end.enter_context(Callbacks(() if ranks.rank else callbacks, live_run))
        with Monitor(
            config,
            probed,
            writer=writer,
            display=display,
            on_report=reported,
            on_row=called.report,
            time_before_s=float(earlier[-1]["time_s"]) if earlier else 0.0,
            earlier=earlier,
            is_resumed=resume,
            num_policies=len(names),
        ) as monitor:
            monitors = [] if len(names) == 1 else policy_monitors(run_setup)
            reports = PolicyReports(names, [at_end.enter_context(each) for each in monitors])
            caveats = caveats_of(config, probed.spec)
            steps_done = run_setup.memory.steps_done(already) or 0
            signing = [] if ranks.rank or not (note := signing_key().note) else [note]
            for line in (
                describe(run_setup),
                *signing,
                *run_setup.memory.notes,
                *caveats,
                *steps_done_again(folders, already),
                *long_wait(config, probed.spec, steps_done=steps_done),
            ):
                monitor.note(line)
            called.start()
            start_processes(supervisor, run_setup)
            if config.eval_every is not None:
                evaluator.start()

            def wanted_end() -> EndedBy | None:
                if is_told_to_end():
                    return "signal"
                if monitor.has_reached_target:
                    return "target_return"
                if called.is_stop_wanted:
                    return "callback"
                return "caller" if stop_when is not None and stop_when() else None

            try:
                finished, ended_by, grace_s = watch(
                    supervisor,
                    config,
                    monitor,
                    reports,
                    called,
                    wanted_end,
                    is_alone=ranks.is_alone,
                    memory=run_setup.memory.parts,
                )
            except BaseException:
                # A failed run reports its ledger, too, but no curve, which takes too long.
                _leave_ledger(run_dir, _summary(supervisor, caveats), note=monitor.note)
                raise
            if launcher.is_gone:
                monitor.note("torchrun, which started this rank, has died: the run ends")
            if finished.stopped_by_others and not ranks.rank:
                # Rank 0 decides when a run is done; a stop request of another rank is an interruption.
                monitor.note("another rank was asked to end: the run ends")
                ended_by = "signal"
            if steps_done < config.total_steps:
                caveats = [
                    *caveats,
                    *nothing_learned(
                        config,
                        finished.report,
                        supervisor.snapshot(),
                        sgd_steps_before=sgd_steps_before[0],
                        why=ended_by,
                    ),
                ]
            summary = _summary(supervisor, caveats)
            accounts = supervisor.snapshot()
            for event in supervisor.stop(grace_s=grace_s):
                if isinstance(event, Message) and isinstance(event.content, EnvMetrics):
                    monitor.take_env_metrics(event.content)
            if has_replay_file:
                _close_replay(run_dir, note=monitor.note)
            _leave_ledger(run_dir, summary, note=monitor.note)
            monitor.report(
                finished.report, accounts, reports.statuses
            )  # Now that rollout workers have sent their last metrics.
            if not ranks.rank:
                _leave_curve(run_dir, title=config.preset or config.env.name, note=monitor.note)
            monitor.note(summary)
            if ended_by not in ("signal", "caller"):
                _play_what_is_left(run_setup, log_path, lambda: wanted_end() in ("signal", "caller"), monitor.note)
            for each in (monitor, *monitors):
                each.take_evaluations()
            if is_told_to_end():
                ended_by = "signal"  # Also if the run was ending already, so that the caller ends, too.
            called.end(ended_by)
            record.ended(ended_by, mean_return=monitor.mean_return, received=signals.received)
            return Outcome(finished.report.agent_steps, monitor.mean_return, summary, ended_by, probed)


def _play_what_is_left(
    run_setup: RunSetup, log_path: Path, is_stop_wanted: Callable[[], bool], note: Callable[[str], None]
) -> None:
    """Evaluate remaining networks after training; must not fail the run."""
    folders = run_setup.config.population.folders(run_setup.run_dir)
    count = sum(len(EvaluationQueue(folder).pending()) for folder in folders)
    if not count:
        return
    note(f"evaluating {count} remaining network(s), {run_setup.config.eval_episodes} episodes each")
    limits = HangLimits(run_setup.config)
    with Supervisor(log_path=log_path) as supervisor:
        supervisor.start(EVALUATOR.name, children.evaluator, run_setup, True, role=EVALUATOR)
        while not is_stop_wanted():
            for hung in limits.check(supervisor):
                note(f"an evaluation failed: {hung_error(supervisor, hung, limits)}")
                return
            for event in supervisor.poll(_POLL_S):
                if isinstance(event, Failed):
                    if not was_signalled_with_us(event, is_stop_wanted):
                        note(f"an evaluation failed: {event.error()}")
                    return
                if isinstance(event, Exited):
                    return
        supervisor.stop(grace_s=1.0)


def _summary(supervisor: Supervisor, caveats: Sequence[str]) -> str:
    """Summarise the ledger and the caveats."""
    return "\n".join([format_ledger(supervisor.snapshot()), *caveats])


def _settle_replays(run_dir: Path, ranks: Ranks, *, has_file: bool) -> None:
    """Discard replays that the run has started without, once it learns."""
    if has_file:
        adopt_replay(run_dir)
    else:
        remove_replay(run_dir)
    if not ranks.rank:
        other = ranks.world_size
        while (folder := folder_of_rank(run_dir, other)).is_dir():
            remove_replay(folder)
            other += 1


def _discard_new_replay(run_dir: Path) -> None:
    """Discard a new replay at the end of a run; must not hide the run's error."""
    with contextlib.suppress(OSError):
        discard_new_replay(run_dir)


def _close_replay(run_dir: Path, *, note: Callable[[str], None]) -> None:
    """Flush the replay to disk at the end of a run; must not fail the run."""
    try:
        close_replay(run_dir)
    except (OSError, ValueError) as error:
        note(f"the replay may not have reached the disk, and is recreated if the machine crashes: {error}")


def _leave_spaces(run_dir: Path, spaces: Mapping[str, object]) -> None:
    """Write the environment's spaces, so that the agent can act without the environment's code."""
    try:
        write_spaces(run_dir, spaces)
    except OSError as error:
        logging.getLogger("rollmill").warning("%s could not be written: %s", run_dir / SPACES_FILE, error)


def _leave_ledger(run_dir: Path, summary: str, *, note: Callable[[str], None]) -> None:
    """Write the ledger at the end of a run; must not fail the run."""
    try:
        (run_dir / LEDGER_FILE).write_text(summary + "\n")
    except OSError as error:
        note(f"{LEDGER_FILE} could not be written: {error}")


def _leave_curve(run_dir: Path, *, title: str, note: Callable[[str], None]) -> None:
    """Plot the curves at the end of a run; must not fail the run."""
    try:
        plot_runs([run_dir], run_dir / "learning_curve.png", title=title)
    except Exception as error:  # a plotting library may raise anything
        note(f"learning_curve.png could not be plotted: {error!r}; try again with rollmill plot {run_dir}")


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
    deadline = time.monotonic() + _PROBE_TIMEOUT_S
    limits = HangLimits(config)
    found: Probed | None = None
    while time.monotonic() < deadline:
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
    late = f"{handle} did not build, try and close an environment within {_PROBE_TIMEOUT_S:.0f} s."
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


def _placement(run_setup: RunSetup, *, learner: bool) -> PlacementPlan:
    config, topology = run_setup.config, run_setup.topology
    return plan(
        num_rollout_workers=topology.num_workers,
        num_policy_workers=topology.num_policy_workers,
        num_learners=topology.num_learners if learner else 0,
        config=config.placement,
        threads_per_learner=cores_per_learner(config, run_setup.probed),
    )


def cores_per_learner(config: Config, probed: Probed) -> int:
    """Cores of a learner: one for each thread, and two on a GPU, where its loader works beside its kernel launches."""
    return config.compute.threads if is_on_host(config.compute.device, probed) else max(2, config.compute.threads)


def start_processes(supervisor: Supervisor, run_setup: RunSetup, *, learner: bool = True) -> None:
    """Start the learner, the policy workers and the rollout workers on their assigned cores."""
    config = run_setup.config
    regime = _REGIMES[config.regime.name]
    placement = _placement(run_setup, learner=learner)
    if learner:
        cpus, nice = placement.learners[0]
        # torch.compile would start its own processes.
        threads = {"OMP_NUM_THREADS": str(config.compute.threads), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
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
        f"worker(s), {probed.num_parameters:,} parameters, {topology.num_slots} slots in {memory:,.0f} MiB"
    )
