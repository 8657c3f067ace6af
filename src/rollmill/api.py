"""The public functions behind ``import rollmill``: train an agent, load it, register environments and models."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rollmill.callback import Callback
from rollmill.envs.config import EnvConfig
from rollmill.envs.registry import register_factory
from rollmill.envs.trust import named_code
from rollmill.runtime.events import ProcessFailed
from rollmill.runtime.ranks import Ranks, folder_of_rank
from rollmill.runtime.signed_files import require_trust
from rollmill.settings.config import Config
from rollmill.settings.new_config import new_config
from rollmill.settings.options import apply
from rollmill.settings.run_config import (
    CONFIG_FILE,
    changed_settings,
    load_config,
    refuse_a_run_in,
    write_config,
)
from rollmill.settings.run_directory import for_this_run_alone, make_directory
from rollmill.settings.run_plan import RunPlan, plan_run

if TYPE_CHECKING:
    from rollmill.evaluation.agent import Agent
    from rollmill.learning.report import LearnerReport
    from rollmill.regimes.setup import Probed

# Numbers the runs of this program, so that ranks that start several of them do not confuse their messages.
_RUNS = itertools.count()


class MainGuardError(RuntimeError):
    """A script trains at its top level, which its own worker processes execute when they import it."""


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        dir: Its directory: ``config.json``, ``metrics.jsonl``, ``checkpoints/``, ``run.log``, TensorBoard events and
            ``learning_curve.png``.
        agent_steps: Agent steps consumed, earlier sessions included.
        episode_return: Mean raw return of the last 100 episodes; None when no episode ended.
        summary: Where the time of every process went, as text.
        ended_by: "total_steps", "max_seconds", "target_return", "callback" (one called ``run.stop``), "signal" (Ctrl-C,
            SIGTERM, SIGHUP), or, on ranks other than the first, "caller": another rank ended the run.
    """

    dir: Path
    agent_steps: int
    episode_return: float | None
    summary: str = field(repr=False)
    ended_by: str


def make_config(
    preset: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
    overrides: Mapping[str, object] | None = None,
    *,
    algo: str | None = None,
    protocol: str | None = None,
) -> Config:
    """Make the configuration of a preset, with some settings replaced.

    Args:
        preset: A preset's name, a registered environment, a class or function that makes an environment or its
            ``module:name``, a Gymnasium id, or several of them, or of their names joined by commas, as tasks that one
            network learns together.
        overrides: Dotted key (or its unambiguous last part) -> value, for example ``{"learner.epochs": 2}``.
        algo: "impala", and on Atari games "ppo": Cleanba's hyperparameters instead of the preset's, except for network
            and normalisers; or "dqn", "ddpg", "td3", "sac" or a registered algorithm: off-policy, in the replay regime.
        protocol: "machado": the evaluation protocol of Machado et al. (2018) for Atari games, instead of the preset's.

    Raises:
        ValueError: An unknown key or an invalid value.
        TypeError: ``preset`` is neither a name nor a class or function that worker processes can import.
    """
    return new_config(preset_name(preset), overrides, algo=algo, protocol=protocol)


def preset_name(preset: str | Callable[..., Any] | Sequence[str | Callable[..., Any]]) -> str:
    """Return the name of what to train, after registering the user's classes and functions."""
    if isinstance(preset, str):
        return preset
    if isinstance(preset, list | tuple):
        return ",".join(map(preset_name, preset))
    return register_factory(cast("Callable[..., Any]", preset))


def train(
    preset: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None = None,
    *,
    total_steps: int | None = None,
    run_dir: Path | str | None = None,
    seed: int | None = None,
    resume: bool = False,
    quiet: bool = False,
    algo: str | None = None,
    protocol: str | None = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    **overrides: object,
) -> Run:
    """Train an agent and return when the run has ended.

    Args:
        preset: What to train, for example ``"atari/pong"`` or ``"gym/CartPole-v1"`` (``rollmill envs`` lists them), or
            a class or function that makes an environment. Several, as a list or joined by commas, are tasks that one
            network learns together. Optional when resuming.
        total_steps: Agent steps to train for; the preset's by default.
        run_dir: Where the run is kept; a new directory in ``runs/`` by default.
        seed: Key of every random stream.
        resume: Resume the run in ``run_dir`` with its configuration; settings given here replace those in it.
        quiet: Show no progress.
        algo: "ppo", "impala", "dqn", "ddpg", "td3", "sac" or a registered name, see :func:`make_config`; not
            allowed when resuming.
        protocol: "machado", likewise.
        trust: With ``resume``: execute the code that the directory names and load pickled environments in its
            checkpoints, even if this user's own runs did not write them.
        callbacks: Called while the run trains, in this process; with several ranks, on rank 0 alone.
        **overrides: Any other setting, for example ``**{"learner.epochs": 2}``.

    Raises:
        ValueError: The configuration is invalid, or the run directory does not fit the call.
        UntrustedError: The run to be resumed names code, and this user's own runs did not write it.
        MainGuardError: A script calls this without the guard ``if __name__ == "__main__":``.
        TypeError: A callback is not a :class:`rollmill.Callback`.
        ProcessFailed: A process of the run or a callback failed; the message contains its traceback.
    """
    check_main_guard("train()")
    _check_callbacks(callbacks)
    preset = None if preset is None else preset_name(preset)
    given = dict(overrides)
    if total_steps is not None:
        given["total_steps"] = total_steps
    if seed is not None:
        given["seed"] = seed
    ranks = replace(Ranks.of_this_process(), runs_before=next(_RUNS))

    def plan() -> RunPlan:
        return plan_run(
            preset,
            given,
            run_dir,
            resume=resume,
            algo=algo,
            protocol=protocol,
            ranks=ranks,
            trust=trust,
            has_callbacks=bool(callbacks),
        )

    if ranks.is_alone:
        return _run(plan(), ranks, quiet=quiet, trust=trust, callbacks=callbacks)
    from rollmill.learning.process_group import meeting

    # Rank 0 decides and owns the run directory; other ranks may be on other machines.
    with meeting(ranks) as meet:
        shared, verdict = RunPlan.unpack(meet("plan", lambda: plan().pack()))
        code = named_code(shared.settings.env) if ranks.rank else ""
        # The plan came over the network. Execute the code that it names only if this rank's own arguments name it too.
        if code and not (preset is not None and _environment_of(preset, given, algo, protocol) == shared.settings.env):
            require_trust(shared.directory / CONFIG_FILE, verdict, code, trust=trust)
        return _run(shared, ranks, quiet=quiet, trust=trust, callbacks=callbacks)


def _check_callbacks(callbacks: Sequence[object]) -> None:
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks is {callbacks!r}: give a list, such as callbacks=[{type(callbacks).__name__}()]")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            kind = "a class: give an object of it" if isinstance(callback, type) else type(callback).__name__
            raise TypeError(f"callbacks contains {callback!r}, {kind}; allowed are objects of rollmill.Callback")


def _environment_of(preset: str, given: dict[str, object], algo: str | None, protocol: str | None) -> EnvConfig | None:
    """What the arguments of a new run name; None where they are those of a resume alone."""
    try:
        return make_config(preset, given, algo=algo, protocol=protocol).env
    except ValueError:
        return None


def _run(plan: RunPlan, ranks: Ranks, *, quiet: bool, trust: bool, callbacks: Sequence[Callback]) -> Run:
    """Runs what was planned; returns when it has ended."""
    from rollmill.regimes.running import run

    directory, settings, resume = plan.directory, plan.settings, plan.resume
    config = settings.resolved(ranks.world_size)
    own = folder_of_rank(directory, ranks.rank)
    if ranks.rank:
        make_directory(own, is_new=False)
    is_saved = ranks.rank > 0
    # Compare before the configuration is replaced.
    changed = changed_settings(load_config(directory), settings) if resume and not ranks.rank else {}

    def settle(probed: Probed) -> None:
        nonlocal settings
        settings = probed.settle(settings)
        # A resumed run and an evaluation must call the user's vector environment with the same num_envs.
        if probed.spec.keeps_group_size:
            settings = replace(settings, envs_per_group=config.envs_per_group)

    def save_config(report: LearnerReport, time_s: float) -> None:
        # Only once the learner has reported: a run that fails to start must not replace the saved configuration.
        nonlocal is_saved, settings
        if not is_saved:
            if settings.compute.precision == "auto" and report.precision:
                settings = apply(settings, {"learner.precision": report.precision})
            write_config(directory, settings)
            if len(settings.population.names) > 1:
                for folder, of_policy in zip(settings.population.folders(directory), settings.policies, strict=True):
                    folder.mkdir(parents=True, exist_ok=True)
                    write_config(folder, of_policy)
            is_saved = True

    with for_this_run_alone(own):
        if not ranks.rank and not resume:
            refuse_a_run_in(directory)
        if ranks.is_alone and resume and (finished := _finished(directory, config)) is not None:
            if not quiet:
                print(f"{directory} {_why_complete(finished, config)}", file=sys.stderr)
            _play_what_is_left(directory, config, finished, quiet=quiet, trust=trust)
            return finished
        try:
            outcome = run(
                config,
                own,
                resume=resume,
                quiet=quiet,
                ranks=ranks,
                on_probed=settle,
                on_report=save_config,
                callbacks=callbacks,
                trust=trust,
                changed=changed,
                notes=plan.notes,
            )
        except (ProcessFailed, KeyboardInterrupt) as error:
            # A failure's message has the traceback; that of this process adds nothing, and would keep the run's memory
            # in a notebook.
            error.__context__ = None
            raise error.with_traceback(None) from None
    return Run(directory, outcome.agent_steps, outcome.episode_return, outcome.summary, outcome.ended_by)


def _play_what_is_left(directory: Path, config: Config, finished: Run, *, quiet: bool, trust: bool) -> None:
    """Run evaluations that were pending when the run was interrupted."""
    from rollmill.storage.evaluations import EvaluationQueue

    names = config.population.names
    pending = [
        (name, folder)
        for name, folder in zip(names, config.population.folders(directory), strict=True)
        if EvaluationQueue(folder).pending()
    ]
    if not pending:
        return
    from rollmill.evaluation.in_training import Evaluations, play_pending
    from rollmill.regimes.tracked_run import log_checkpoints, start_trackers
    from rollmill.reporting.metrics import MetricsWriter
    from rollmill.storage.checkpoints import CheckpointStore

    def note(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr)

    how = Evaluations(config.env, config.eval_episodes, config.eval_against, config.eval_video, trust)
    with start_trackers(config, directory, is_resumed=True, note=note, trust=trust) as trackers:
        for name, folder in pending:
            checkpoints = CheckpointStore(folder / "checkpoints", config.checkpoint)
            with MetricsWriter(folder, trackers=trackers, policy=name if len(names) > 1 else None) as writer:
                play_pending(folder, how, checkpoints=checkpoints)
                writer.write_evaluations()
        log_checkpoints(trackers, config, directory)
        trackers.ended(finished.ended_by)


def _finished(directory: Path, config: Config) -> Run | None:
    """The result of a run whose newest checkpoints have all steps or all of the time; None if it can continue."""
    from rollmill.regimes.steps_done import saved_steps, trained_seconds
    from rollmill.reporting.ledger_report import LEDGER_FILE
    from rollmill.reporting.metrics import METRICS_FILE, read_metrics

    folders = config.population.folders(directory)
    done = saved_steps(folders, to_resume=False)
    if done is None:
        return None
    if done < config.total_steps and (config.max_seconds is None or trained_seconds(folders) < config.max_seconds):
        return None
    rows = read_metrics(directory) if (directory / METRICS_FILE).exists() else []
    ledger = directory / LEDGER_FILE
    summary = ledger.read_text() if ledger.exists() else ""
    ended_by = "total_steps" if done >= config.total_steps else "max_seconds"
    return Run(directory, done, rows[-1].get("episode_return") if rows else None, summary, ended_by)


def _why_complete(finished: Run, config: Config) -> str:
    if finished.ended_by == "total_steps":
        return (
            f"has {finished.agent_steps:,} of {config.total_steps:,} agent steps, so it is complete; increase "
            "--total-steps (total_steps) to continue it"
        )
    return (
        f"has trained for max_seconds={config.max_seconds:g}, which counts all sessions, so it is complete; increase "
        "--max-seconds (max_seconds), or give none, to continue it"
    )


def load(
    run_dir: Path | str,
    *,
    checkpoint: str = "latest",
    device: str = "cpu",
    trust: bool = False,
    policy: str | None = None,
    task: str | None = None,
) -> Agent:
    """The trained agent of a run, or of ``hf://USER/NAME``; see :func:`rollmill.evaluation.agent.load`."""
    from rollmill.evaluation.agent import load as load_agent

    if isinstance(run_dir, str) and run_dir.startswith("hf://"):
        from rollmill.evaluation.hub import fetch

        run_dir = fetch(run_dir)
    return load_agent(run_dir, checkpoint=checkpoint, device=device, trust=trust, policy=policy, task=task)


def check_main_guard(call: str) -> None:
    """Raises MainGuardError in a process that is only importing the script that started it."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise MainGuardError(
            f"{call} was called while a process of a run was importing the script that started it. Put the call behind "
            "`if __name__ == '__main__':`, so that only the script itself makes it, not its processes."
        )
