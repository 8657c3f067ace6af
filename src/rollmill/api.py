"""The public functions behind ``import rollmill``: train an agent, load it, register environments and models."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.config import Config
from rollmill.envs.registry import find_registration
from rollmill.options import apply, from_json, to_json

if TYPE_CHECKING:
    from rollmill.evaluation.agent import Agent
    from rollmill.learning.report import LearnerReport

__all__ = ["MainGuardError", "Run", "RunDirectoryError", "load", "make_config", "train"]

CONFIG_FILE = "config.json"


class MainGuardError(RuntimeError):
    """A script trains at its top level, where its own worker processes come by."""


class RunDirectoryError(ValueError):
    """The run directory holds something else than the call needs."""


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        dir: Its directory: ``config.json``, ``metrics.jsonl``, ``checkpoints/``, ``run.log``, TensorBoard events and
            ``learning_curve.png``.
        agent_steps: Agent steps consumed, earlier sessions included.
        episode_return: Mean raw return of the last 100 episodes; None when no episode ended.
        summary: The account of every process's time, as text.
        ended_by: "total_steps", "max_seconds", "target_return", or "signal" (Ctrl-C, SIGTERM).
    """

    dir: Path
    agent_steps: int
    episode_return: float | None
    summary: str
    ended_by: str


def make_config(preset: str, overrides: Mapping[str, object] | None = None) -> Config:
    """The configuration of a preset with settings over it.

    Args:
        preset: A preset's name, a registered environment or a Gymnasium id.
        overrides: Dotted key (or its unambiguous last part) -> value, for example ``{"learner.epochs": 2}``.

    Raises:
        ValueError: A key or value that is not allowed, with what is.
    """
    from rollmill.presets import resolve

    chosen = resolve(preset)
    config = apply(Config(env=chosen.env, preset=preset), dict(chosen.overrides))
    return apply(config, dict(overrides or {}))


def train(
    preset: str | None = None,
    *,
    total_steps: int | None = None,
    run_dir: Path | str | None = None,
    seed: int | None = None,
    resume: bool = False,
    quiet: bool = False,
    **overrides: object,
) -> Run:
    """Trains an agent and returns when the run has ended.

    Args:
        preset: What to train, for example ``"atari/pong"`` or ``"gym/CartPole-v1"``; ``rollmill envs`` lists them. May
            be left out when resuming.
        total_steps: Agent steps to train for; the preset's by default.
        run_dir: Where the run is kept; a new directory in ``runs/`` by default.
        seed: Keys every random stream.
        resume: Go on with the run in ``run_dir``: its configuration, with what is given here over it.
        quiet: Show no progress.
        **overrides: Any other setting; dots are written as in ``**{"learner.epochs": 2}``.

    Raises:
        ValueError: The configuration cannot be used, or the run directory does not fit the call.
        MainGuardError: A script calls this without the guard ``if __name__ == "__main__":``.
        ProcessFailed: A process of the run failed; the message holds its traceback.
    """
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise MainGuardError(
            "train() was called while a process of a run was importing the script that started it. Put the call behind "
            "`if __name__ == '__main__':`, so that only the script itself makes it, not its processes."
        )
    from rollmill.regimes.asynchronous import run

    given = dict(overrides)
    if total_steps is not None:
        given["total_steps"] = total_steps
    if seed is not None:
        given["seed"] = seed
    if resume:
        if run_dir is None:
            raise RunDirectoryError("resume=True without run_dir: give the directory of the run that is to go on.")
        directory = Path(run_dir)
        saved = load_config(directory)
        config = apply(saved, given)
        _check_same_network(directory, saved, config)
        if preset is not None and config.preset and preset != config.preset:
            raise RunDirectoryError(
                f"{directory} is a run of {config.preset!r}, not of {preset!r}: resume it by its own "
                "name, or start a new run in another directory."
            )
    else:
        if preset is None:
            raise RunDirectoryError("no preset was given: name one (`rollmill envs` lists them), or resume a run.")
        config = make_config(preset, given)
        directory = Path(run_dir) if run_dir is not None else _new_directory(preset)
        if (directory / CONFIG_FILE).exists():
            raise RunDirectoryError(
                f"{directory} already holds a run: resume it (--resume), or choose another directory."
            )
    config = config.resolved()
    directory.mkdir(parents=True, exist_ok=True)
    is_saved = False

    def save_config(report: LearnerReport, time_s: float) -> None:
        # Not before the learner runs with it: a run that cannot even start must not replace what is there.
        nonlocal is_saved
        if not is_saved:
            _write_config(directory, config)
            is_saved = True

    outcome = run(config, directory, resume=resume, quiet=quiet, on_report=save_config)
    return Run(directory, outcome.agent_steps, outcome.episode_return, outcome.summary, outcome.ended_by)


def load_config(run_dir: Path | str) -> Config:
    """The configuration that a run was started with.

    Raises:
        RunDirectoryError: There is no run in this directory.
    """
    path = Path(run_dir) / CONFIG_FILE
    if not path.exists():
        raise RunDirectoryError(f"{run_dir} holds no run: there is no {CONFIG_FILE} in it.")
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise RunDirectoryError(f"{path} is not whole ({error}): restore it, or begin a new run.") from error
    config = from_json(Config, content)
    assert isinstance(config, Config)
    return config


def load(run_dir: Path | str, *, checkpoint: str = "latest", device: str = "cpu") -> Agent:
    """The trained agent of a run; see :class:`rollmill.evaluation.agent.Agent`."""
    from rollmill.evaluation.agent import load as load_agent

    return load_agent(run_dir, checkpoint=checkpoint, device=device)


def _check_same_network(directory: Path, saved: Config, config: Config) -> None:
    """Refuses settings that a checkpoint cannot be continued with, before anything is started."""
    changed = [
        f"model.{field.name}"
        for field in fields(saved.model)
        if getattr(saved.model, field.name) != getattr(config.model, field.name)
    ]
    if saved.learner.optimiser != config.learner.optimiser:
        changed.append("learner.optimiser")
    if changed:
        raise RunDirectoryError(
            f"the run in {directory} cannot go on with another {', '.join(changed)}: its weights and its optimiser's "
            "state would not fit; leave it as it was, or begin a new run."
        )


def _write_config(directory: Path, config: Config) -> None:
    """Replaces ``config.json`` as a whole.

    Where the environment was registered in the user's own script, the file names the script, so that ``rollmill eval``
    and others, which the script does not start, find it.
    """
    registration, main = find_registration(config.env.name), sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if registration is not None and script is not None and registration.factory.__module__ == "__main__":
        imports = dict.fromkeys((*config.env.imports, str(Path(script).resolve())))
        config = replace(config, env=replace(config.env, imports=tuple(imports)))
    aside = directory / f"{CONFIG_FILE}.new"
    aside.write_text(json.dumps(to_json(config), indent=2) + "\n")
    aside.replace(directory / CONFIG_FILE)


def _new_directory(preset: str) -> Path:
    """``runs/<preset>/<date and time>``, free."""
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    base = Path("runs") / preset.replace("/", "_").replace(":", "_")
    for suffix in ("", *(f"_{i}" for i in range(2, 1000))):
        directory = base / f"{stamp}{suffix}"
        if not directory.exists():
            return directory
    raise RunDirectoryError(f"{base} has no free name left for {stamp}: give run_dir.")
