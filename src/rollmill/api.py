"""The public functions behind ``import rollmill``: train an agent, load it, register environments and models."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rollmill.callback import Callback
from rollmill.envs.config import EnvConfig
from rollmill.envs.registry import register_factory
from rollmill.envs.trust import named_code
from rollmill.learning.config import FixedSchedule
from rollmill.runtime.events import ProcessFailed
from rollmill.runtime.ranks import Ranks, folder_of_rank
from rollmill.runtime.signatures import Verdict
from rollmill.runtime.signed_files import require_trust, signed, unsigned, verdict_on
from rollmill.settings.config import Config
from rollmill.settings.idle import check_idle
from rollmill.settings.option_values import coerce
from rollmill.settings.options import apply, flatten, from_json, full_keys, to_json
from rollmill.settings.run_config import (
    CONFIG_FILE,
    changed_settings,
    check_can_resume,
    load_config,
    load_trusted,
    write_config,
)
from rollmill.settings.run_directory import (
    RunDirectoryError,
    directory_of_launcher,
    for_this_run_alone,
    make_directory,
    new_directory,
)
from rollmill.settings.value_checks import ConfigError
from rollmill.tracking.registry import check_trackers

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
            SIGTERM), or, on ranks other than the first, "caller": another rank ended the run.
    """

    dir: Path
    agent_steps: int
    episode_return: float | None
    summary: str = field(repr=False)
    ended_by: str


# Settings whose values decide which others are taken.
_NAMES: dict[str, object] = {
    "regime": Literal["async", "lockstep", "replay"],
    "off_policy.algorithm": Literal["dqn", "ddpg", "td3", "sac"] | str,
    "population.pbt": bool,
}


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
        algo: "ppo" or "impala": Cleanba's hyperparameters instead of the preset's, except for network and normalisers;
            or "dqn", "ddpg", "td3", "sac" or a registered algorithm: off-policy, in the replay regime.
        protocol: "machado": the evaluation protocol of Machado et al. (2018) for Atari games, instead of the preset's.

    Raises:
        ValueError: An unknown key or an invalid value.
        TypeError: ``preset`` is neither a name nor a class or function that worker processes can import.
    """
    from rollmill.settings.presets import resolve
    from rollmill.settings.presets.by_algorithm import (
        algorithm_overrides,
        lockstep_overrides,
        pbt_overrides,
        protocol_overrides,
        with_policies_algorithms,
    )
    from rollmill.settings.presets.off_policy import off_policy_overrides
    from rollmill.settings.presets.tasks import fitted, name_for_settings

    chosen = resolve(preset_name(preset))
    # Tasks come with the preset's number of environments, which they must divide.
    tasks = {"env.tasks": chosen.env.tasks} if chosen.env.tasks else {}
    alone = Config(env=replace(chosen.env, tasks=()), preset=chosen.name)
    config = apply(alone, {**chosen.overrides, **tasks})
    settings_of = name_for_settings(chosen)

    def fit(settings: Mapping[str, object]) -> Mapping[str, object]:
        return fitted(settings, flatten(config), len(chosen.env.tasks)) if chosen.env.tasks else settings

    if algo is not None:
        config = apply(config, fit(algorithm_overrides(algo, settings_of)))
    if protocol is not None:
        config = apply(config, protocol_overrides(protocol, settings_of))
    given = full_keys(config, overrides or {})
    given = with_policies_algorithms(given, settings_of, in_replay=config.in_replay)
    for key in _NAMES.keys() & given.keys():
        given[key] = coerce(given[key], _NAMES[key], key, text=isinstance(given[key], str))
    own = config.algorithm_name
    if algo is not None and given.get("off_policy.algorithm", own) != own:
        raise ConfigError(
            f"off_policy.algorithm={given['off_policy.algorithm']!r} with algo={algo!r}, which brings settings of its "
            "own: give only one of the two."
        )
    if algo is not None and config.in_replay and given.get("regime", "replay") != "replay":
        raise ConfigError(
            f"regime={given['regime']!r} with algo={algo!r}: off-policy algorithms learn from a replay; use "
            "regime='replay', or omit algo."
        )
    if given.get("regime", config.regime.name) == "replay" and not config.in_replay:
        wanted = given.get("off_policy.algorithm")
        if wanted is None:
            raise ConfigError(
                "regime='replay' without an algorithm: give off_policy.algorithm (or, to train, algo), one of dqn, "
                "ddpg, td3 and sac."
            )
        config = apply(config, fit(off_policy_overrides(str(wanted), settings_of)))
    if config.in_replay and chosen.env.tasks:
        # Without PopArt, rewards are clipped and scaled as those of the first task alone.
        alone_settings = resolve(chosen.env.tasks[0]).overrides
        rewards = ("learner.reward_clip", "learner.reward_scale")
        config = apply(config, {key: alone_settings[key] for key in rewards if key in alone_settings})
    if given.get("population.pbt"):
        config = apply(config, pbt_overrides(in_replay=config.in_replay))
    if given.get("regime", config.regime.name) == "lockstep":
        # Read them without applying them: they may be inconsistent with the preset's batch, made for async.
        num_envs, rollout_length = (
            coerce(given.get(key, getattr(config, key)), int, key, text=isinstance(given.get(key), str))
            for key in ("num_envs", "rollout_length")
        )
        needed = lockstep_overrides(
            num_envs=cast("int", num_envs),
            rollout_length=cast("int", rollout_length),
            minibatch_size=config.minibatch_size,
        )
        given = {**needed, **given}
    config = apply(config, given)
    policies = len(config.population.names)
    if config.in_replay and config.num_envs < policies and "num_envs" not in given and not tasks:
        config = replace(config, num_envs=policies)  # The presets' one environment is for one policy.
    _check_effects(given, config)
    return config


def _check_effects(given: Mapping[str, object], config: Config) -> None:
    """Refuse settings, by full key, that have no effect together with the others."""
    schedule, rate = config.optimiser.schedule, config.optimiser.learning_rate
    points = schedule.points if isinstance(schedule, FixedSchedule) else ()
    if "learner.learning_rate" in given and points and points[0][1] != rate:
        raise ConfigError(
            f"learner.learning_rate={rate:g} with learner.schedule={schedule.name!r}, whose points are learning rates: "
            "omit learning_rate, or give that of the first point."
        )
    check_idle(given, config)


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

    def plan_run() -> _Plan:
        return _plan(preset, given, run_dir, resume=resume, algo=algo, protocol=protocol, ranks=ranks, trust=trust)

    if ranks.is_alone:
        return _run(plan_run(), ranks, quiet=quiet, trust=trust, callbacks=callbacks)
    from rollmill.learning.process_group import meeting

    # Rank 0 decides and owns the run directory; other ranks may be on other machines.
    with meeting(ranks) as meet:
        plan, verdict = _Plan.unpack(meet("plan", lambda: plan_run().pack()))
        code = named_code(plan.settings.env) if ranks.rank else ""
        # The plan came over the network. Execute the code that it names only if this rank's own arguments name it too.
        if code and not (preset is not None and _environment_of(preset, given, algo, protocol) == plan.settings.env):
            require_trust(plan.directory / CONFIG_FILE, verdict, code, trust=trust)
        return _run(plan, ranks, quiet=quiet, trust=trust, callbacks=callbacks)


def _check_callbacks(callbacks: Sequence[object]) -> None:
    for callback in callbacks:
        if not isinstance(callback, Callback):
            kind = "a class: give an object of it" if isinstance(callback, type) else type(callback).__name__
            raise TypeError(f"callbacks contains {callback!r}, {kind}; allowed are objects of rollmill.Callback")


@dataclass(frozen=True)
class _Plan:
    """A run to be started.

    Attributes:
        directory: The run's.
        settings: What is saved, with "auto" where the user set nothing, because a resume may be on another machine.
        resume: Whether it continues from a checkpoint.
    """

    directory: Path
    settings: Config
    resume: bool

    def pack(self) -> tuple[str, dict[str, Any], bool]:
        """Encode the plan as plain data, for the other ranks."""
        return str(self.directory), signed(to_json(self.settings)), self.resume

    @classmethod
    def unpack(cls, packed: tuple[str, dict[str, Any], bool]) -> tuple[_Plan, Verdict]:
        """Decode the result of :meth:`pack`, with the verdict on its signature."""
        directory, settings, resume = packed
        return cls(Path(directory), from_json(Config, unsigned(settings)), resume), verdict_on(settings)


def _plan(
    preset: str | None,
    given: dict[str, object],
    run_dir: Path | str | None,
    *,
    resume: bool,
    algo: str | None,
    protocol: str | None,
    ranks: Ranks,
    trust: bool,
) -> _Plan:
    """Turn the arguments of :func:`train` into a plan, and create the run directory."""
    if run_dir is None and ranks.restarts and preset is not None:
        run_dir = directory_of_launcher(preset)
    if ranks.restarts and run_dir is not None and (Path(run_dir) / CONFIG_FILE).exists():
        # torchrun restarted all processes with the original command.
        resume, algo, protocol = True, None, None
    if resume:
        if run_dir is None:
            raise RunDirectoryError(
                "resume without run_dir: give the directory of the run to resume (--run-dir DIR, run_dir=DIR)."
            )
        directory = Path(run_dir)
        saved = load_trusted(directory, trust=trust)
        if algo is not None or protocol is not None:
            named = {"algo": algo, "protocol": protocol}
            given_names = ", ".join(f"{name}={value!r}" for name, value in named.items() if value is not None)
            raise RunDirectoryError(
                f"{given_names} with resume: a resumed run keeps its algorithm and protocol; omit them, or give single "
                "settings."
            )
        given = full_keys(saved, given)
        if "env.imports" in given:  # Those of the run are needed, too.
            text = isinstance(given["env.imports"], str)
            imports = coerce(given["env.imports"], tuple[str, ...], "env.imports", text=text)
            given["env.imports"] = tuple(dict.fromkeys((*saved.env.imports, *cast("tuple[str, ...]", imports))))
        settings = apply(saved, given)
        check_can_resume(directory, saved, settings)
        _check_effects(given, settings)
        if preset is not None and settings.preset and settings.preset not in (preset, f"gym/{preset}"):
            raise RunDirectoryError(
                f"{directory} is a run of {settings.preset!r}, not of {preset!r}: resume it by its own "
                "name, or start a new run in another directory."
            )
    else:
        if preset is None:
            raise RunDirectoryError(
                "no preset was given: name one (`rollmill envs` lists them) before the settings, or resume a run."
            )
        settings = make_config(preset, given, algo=algo, protocol=protocol)
    settings.resolved(ranks.world_size)
    check_trackers(settings.tracking)
    if settings.eval_video is not None and find_spec("imageio_ffmpeg") is None:
        raise ConfigError(
            f"eval_video={settings.eval_video} needs ffmpeg, which is missing: pip install imageio-ffmpeg."
        )
    to_json(settings)  # Raises if config.json cannot represent a value, before anything is created or started.
    if run_dir is None:
        assert preset is not None
        if ranks.is_alone:
            return _Plan(new_directory(preset), settings, resume)
        run_dir = directory_of_launcher(preset)
    make_directory(Path(run_dir), is_new=False)
    return _Plan(Path(run_dir), settings, resume)


def _environment_of(preset: str, given: dict[str, object], algo: str | None, protocol: str | None) -> EnvConfig | None:
    """What the arguments of a new run name; None where they are those of a resume alone."""
    try:
        return make_config(preset, given, algo=algo, protocol=protocol).env
    except ValueError:
        return None


def refuse_a_run_in(directory: Path | str) -> None:
    """Refuses a directory for a new run.

    Raises:
        RunDirectoryError: It holds one already.
    """
    if (Path(directory) / CONFIG_FILE).exists():
        raise RunDirectoryError(f"{directory} already holds a run: resume it (--resume), or choose another directory.")


def _run(plan: _Plan, ranks: Ranks, *, quiet: bool, trust: bool, callbacks: Sequence[Callback]) -> Run:
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
                print(
                    f"{directory} has {finished.agent_steps:,} of {config.total_steps:,} agent steps, so it is "
                    "complete; increase --total-steps (total_steps) to continue it",
                    file=sys.stderr,
                )
            _play_what_is_left(directory, config, quiet=quiet, trust=trust)
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
            )
        except ProcessFailed as error:
            # The message has the traceback of the failure; the one of this process adds nothing.
            raise error.with_traceback(None) from None
    return Run(directory, outcome.agent_steps, outcome.episode_return, outcome.summary, outcome.ended_by)


def _play_what_is_left(directory: Path, config: Config, *, quiet: bool, trust: bool) -> None:
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
    from rollmill.evaluation.in_training import play_pending
    from rollmill.regimes.tracked_run import log_checkpoints, start_trackers
    from rollmill.reporting.metrics import MetricsWriter
    from rollmill.storage.checkpoints import CheckpointStore

    def note(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr)

    with start_trackers(config, directory, is_resumed=True, note=note, trust=trust) as trackers:
        for name, folder in pending:
            checkpoints = CheckpointStore(folder / "checkpoints", config.checkpoint)
            with MetricsWriter(folder, trackers=trackers, policy=name if len(names) > 1 else None) as writer:
                play_pending(
                    folder,
                    config.env,
                    episodes=config.eval_episodes,
                    checkpoints=checkpoints,
                    opponents=config.eval_against,
                    film_every=config.eval_video,
                )
                writer.write_evaluations()
        log_checkpoints(trackers, config, directory)
        trackers.ended("total_steps")


def _finished(directory: Path, config: Config) -> Run | None:
    """The result of a run whose newest checkpoints have all steps; None if the run is not complete."""
    from rollmill.regimes.steps_done import saved_steps
    from rollmill.reporting.ledger_report import LEDGER_FILE
    from rollmill.reporting.metrics import METRICS_FILE, read_metrics

    done = saved_steps(config.population.folders(directory), to_resume=False)
    if done is None or done < config.total_steps:
        return None
    rows = read_metrics(directory) if (directory / METRICS_FILE).exists() else []
    ledger = directory / LEDGER_FILE
    summary = ledger.read_text() if ledger.exists() else ""
    return Run(directory, done, rows[-1]["episode_return"] if rows else None, summary, "total_steps")


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
