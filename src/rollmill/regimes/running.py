"""The life of a run in any regime.

A regime is a module of this folder: how groups and slots are assigned (``plan_topology``), the memory that the
processes share (``allocate``), and what they run (``rollout_worker``, ``policy_worker``, ``learner``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rollmill.callback import Callback, LiveRun
from rollmill.envs.info_metrics import EnvMetrics
from rollmill.learning.live_numbers import control_block
from rollmill.learning.report import LearnerReport
from rollmill.pbt.history import without_effect
from rollmill.regimes import setup as children
from rollmill.regimes.callbacks import Callbacks
from rollmill.regimes.caveats import caveats_of
from rollmill.regimes.ending import EndedBy, hung_error, was_signalled_with_us, watch
from rollmill.regimes.first_batch import long_wait, nothing_learned
from rollmill.regimes.hanging import HangLimits
from rollmill.regimes.monitor import Monitor
from rollmill.regimes.policy_reports import PolicyReports, policy_monitors, resumes_at
from rollmill.regimes.record import RunRecord
from rollmill.regimes.run_files import (
    close_replay_of,
    discard_new_replay_of,
    leave_curve,
    leave_ledger,
    leave_spaces,
    settle_replays,
)
from rollmill.regimes.setup import Probed, RunSetup
from rollmill.regimes.starting import Evaluator, describe, describe_beginning, prepare, probe, start_processes
from rollmill.regimes.steps_done import episodes_reported, saved_steps, steps_done_again
from rollmill.regimes.tracked_run import log_checkpoints, start_trackers
from rollmill.reporting.display import Display
from rollmill.reporting.ledger_report import format_ledger
from rollmill.reporting.metrics import MetricsWriter, read_metrics
from rollmill.roles import EVALUATOR
from rollmill.runtime.events import Exited, Failed, Message
from rollmill.runtime.logs import run_log
from rollmill.runtime.ranks import Launcher, Ranks
from rollmill.runtime.signals import StopSignals
from rollmill.runtime.signatures import signing_key
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config
from rollmill.storage.evaluations import EvaluationQueue

_POLL_S = 0.25


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
    notes: Sequence[str] = (),
) -> Outcome:
    """Train until ``total_steps``, ``max_seconds``, ``target_return``, Ctrl-C, SIGTERM or SIGHUP.

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
        notes: Lines to show at the start.

    Raises:
        ProcessFailed: A process or a callback failed, or a process hung; the other processes were ended; the learner,
            if it did not fail, had three seconds to save a checkpoint.
        NotEnoughMemory: The slots do not fit into memory.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came before training had begun.
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
                leave_spaces(folder, spaces)
            spaces = None
        if config.in_replay:
            settle_replays(run_dir, ranks, has_file=has_replay_file)
        if on_report is not None:
            on_report(report, time_s)

    with (
        StopSignals() as signals,
        run_log(log_path),
        record,  # exits after all processes have ended
        ExitStack() as after_processes,
        Supervisor(log_path=log_path) as supervisor,
        ExitStack() as at_end,
    ):
        if has_replay_file:
            after_processes.callback(close_replay_of, run_dir, note=record.warn)
            after_processes.callback(discard_new_replay_of, run_dir)

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
        writer = trackers = None
        if not ranks.rank:
            done_before = run_setup.memory.steps_done(already)
            trackers = after_processes.enter_context(
                start_trackers(
                    config,
                    run_dir,
                    is_resumed=resume,
                    resume_at_steps=done_before,
                    policies_resume_at=[resumes_at(run_setup, policy) for policy in range(len(names))],
                    note=record.warn,
                    trust=trust,
                    is_stop_wanted=is_told_to_end,
                )
            )
            writer = MetricsWriter(run_dir, resume_at_steps=done_before, trackers=trackers)
        earlier = read_metrics(run_dir) if resume and not ranks.rank else []
        if earlier and run_setup.memory.inserted:
            run_setup = replace(run_setup, episodes=tuple(episodes_reported(folder) for folder in folders))
        evaluator = Evaluator(supervisor, run_setup)
        arena = run_setup.memory.arena
        controls = {
            name: control_block(arena, terms=config.reward_terms, policy=policy) for policy, name in enumerate(names)
        }
        live_run = LiveRun(run_dir, config, controls, start_evaluator=evaluator.start)
        called = after_processes.enter_context(Callbacks(() if ranks.rank else callbacks, live_run))
        with Monitor(
            config,
            probed,
            writer=writer,
            display=display,
            on_report=reported,
            on_row=called.report,
            time_before_s=float(earlier[-1].get("time_s", 0.0)) if earlier else 0.0,
            earlier=earlier,
            is_resumed=resume,
            num_policies=len(names),
        ) as monitor:
            monitors = [] if len(names) == 1 else policy_monitors(run_setup, trackers)
            reports = PolicyReports(
                names, [at_end.enter_context(each) for each in monitors], num_tasks=len(probed.spec.tasks)
            )
            caveats = caveats_of(config, probed.spec, probed.unread_options)
            steps_done = run_setup.memory.steps_done(already) or 0
            signing = [] if ranks.rank or not (note := signing_key().note) else [note]
            for line in (
                describe(run_setup),
                *describe_beginning(config, resume=resume),
                *notes,
                *signing,
                *run_setup.memory.notes,
                *steps_done_again(folders, already),
                *long_wait(config, probed.spec, steps_done=steps_done),
            ):
                monitor.note(line)
            for line in caveats:
                monitor.warn(line)
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
                leave_ledger(run_dir, _summary(supervisor, caveats), note=monitor.note)
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
                        seconds_before=float(earlier[-1].get("time_s", 0.0)) if earlier else 0.0,
                    ),
                ]
            if config.population.pbt and not ranks.rank:
                caveats = [*caveats, *without_effect(run_dir, config.pbt)]
            summary = _summary(supervisor, caveats)
            accounts = supervisor.snapshot()
            for event in supervisor.stop(grace_s=grace_s):
                if isinstance(event, Message) and isinstance(event.content, EnvMetrics):
                    monitor.take_env_metrics(event.content)
            leave_ledger(run_dir, summary, note=monitor.warn)
            monitor.report(
                finished.report, accounts, reports.statuses
            )  # Now that rollout workers have sent their last metrics.
            monitor.note(summary)
            if ended_by not in ("signal", "caller"):
                _play_what_is_left(run_setup, log_path, lambda: wanted_end() in ("signal", "caller"), monitor)
            for each in (monitor, *monitors):
                each.take_evaluations()
            if not ranks.rank:
                leave_curve(run_dir, title=config.preset or config.env.name, note=monitor.warn)
            if is_told_to_end():
                ended_by = "signal"  # Also if the run was ending already, so that the caller ends, too.
            called.end(ended_by)
            if trackers is not None:
                log_checkpoints(trackers, config, run_dir)
                trackers.ended(ended_by)
            record.ended(ended_by, mean_return=monitor.mean_return, received=signals.received)
            return Outcome(finished.report.agent_steps, monitor.mean_return, summary, ended_by, probed)


def _play_what_is_left(
    run_setup: RunSetup, log_path: Path, is_stop_wanted: Callable[[], bool], monitor: Monitor
) -> None:
    """Evaluate remaining networks after training; must not fail the run."""
    folders = run_setup.config.population.folders(run_setup.run_dir)
    count = sum(len(EvaluationQueue(folder).pending()) for folder in folders)
    if not count:
        return
    monitor.note(f"evaluating {count} remaining network(s), {run_setup.config.eval_episodes} episodes each")
    limits = HangLimits(run_setup.config)
    with Supervisor(log_path=log_path) as supervisor:
        supervisor.start(EVALUATOR.name, children.evaluator, run_setup, True, role=EVALUATOR)
        while not is_stop_wanted():
            for hung in limits.check(supervisor):
                monitor.warn(f"an evaluation failed: {hung_error(supervisor, hung, limits)}")
                return
            for event in supervisor.poll(_POLL_S):
                if isinstance(event, Failed):
                    if not was_signalled_with_us(event, is_stop_wanted):
                        monitor.warn(f"an evaluation failed: {event.error()}")
                    return
                if isinstance(event, Exited):
                    return
        supervisor.stop(grace_s=1.0)


def _summary(supervisor: Supervisor, caveats: Sequence[str]) -> str:
    """Summarise the ledger and the caveats."""
    return "\n".join([format_ledger(supervisor.snapshot()), *caveats])
