"""Record of a run's start and end, for ``run.log`` and the display.

``run.log`` documents what was run, with which versions and settings, from where it resumed, and why it ended.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rollmill.envs.config import EnvConfig
from rollmill.extras import install_command, missing_modules
from rollmill.regimes.ending import EndedBy
from rollmill.runtime.machine import describe_machine
from rollmill.runtime.ranks import Ranks
from rollmill.settings.config import Config
from rollmill.settings.option_values import format_value
from rollmill.settings.options import flatten
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

_log = logging.getLogger("rollmill.run")

_PACKAGES = ("rollmill", "torch", "numpy", "gymnasium", "ale-py", "vizdoom", "mujoco", "minigrid", "envpool")
# What a run writes with an extra only.
_NEEDING_EXTRAS = (("plots", "learning_curve.png"),)  # Trackers tell themselves what they lack.


class RunRecord:
    """Context manager that logs a run's start and its end.

    Args:
        config: The resolved configuration.
        run_dir: The run's directory.
        ranks: The ranks.
        resume: Whether the run resumes from a checkpoint.
        changed: For a resumed run: key -> value before and now, for settings that differ.
        show: Shows a line; None shows nothing.

    Attributes:
        agent_steps: Agent steps as of the last report.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        ranks: Ranks,
        *,
        resume: bool,
        changed: Mapping[str, tuple[object, object]],
        show: Callable[[str], None] | None,
    ) -> None:
        self.agent_steps = 0
        self._config = config
        self._run_dir = run_dir
        self._ranks = ranks
        self._resume = resume
        self._changed = changed
        self._show = show
        self._ending: str | None = None
        self._ended_by: EndedBy | None = None

    def __enter__(self) -> Self:
        for line in _about_the_start(self._config, self._ranks, resume=self._resume):
            _log.info("%s", line)
        self.note(f"run directory: {self._run_dir}")
        if self._changed:
            changes = (
                f"{key}={format_value(now)} (was {format_value(was)})" for key, (was, now) in self._changed.items()
            )
            self.note(f"settings changed on resume: {', '.join(changes)}")
        elif self._resume:
            _log.info("settings changed on resume: none")
        return self

    def ended(self, ended_by: EndedBy, *, mean_return: float | None, received: signal.Signals | None) -> None:
        """Set how the run ended, to be logged on exit of the context.

        Args:
            ended_by: The reason for the end.
            mean_return: Mean raw return of the last 100 episodes, or None.
            received: The received signal, if any.
        """
        self._ended_by = ended_by
        self._ending = describe_end(
            ended_by, self._config, agent_steps=self.agent_steps, mean_return=mean_return, received=received
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None and self._ending is not None:
            self.note(f"end: {self._ending}")
        elif isinstance(error, KeyboardInterrupt) and self._ending is not None:
            self.note(f"end: {self._ending}; interrupted while the run was being closed")
        elif isinstance(error, KeyboardInterrupt):
            self.note(f"end: stopped by the user {self._reached}; progress since the last checkpoint is lost")
        elif error is not None:
            reason = str(error).strip().split("\n")[0]
            # Not shown: the program prints the error, and so does Python.
            _log.error("end: failed %s: %s: %s", self._reached, type(error).__name__, reason)
        if not self._ranks.rank:
            for line in next_commands(self._run_dir, self._config, self._ended_by, self._ranks):
                self.note(line)

    @property
    def _reached(self) -> str:
        return f"after {self.agent_steps:,} agent steps" if self.agent_steps else "before anything was learned"

    def note(self, line: str) -> None:
        """Log a line and show it."""
        self._tell(line, logging.INFO)

    def warn(self, line: str) -> None:
        """Log a line as a warning and show it."""
        self._tell(line, logging.WARNING)

    def _tell(self, line: str, level: int) -> None:
        _log.log(level, "%s", line)
        if self._show is not None:
            self._show(line)


def describe_end(
    ended_by: EndedBy,
    config: Config,
    *,
    agent_steps: int,
    mean_return: float | None,
    received: signal.Signals | None = None,
) -> str:
    """Describe in one line why a run ended."""
    done = f"{agent_steps:,} of {config.total_steps:,} agent steps"
    if ended_by == "total_steps":
        return f"finished: {done}"
    if ended_by == "max_seconds":
        return f"time limit: max_seconds={config.max_seconds:g}; {done}"
    if ended_by == "target_return":
        return (
            f"target reached: mean return of the last 100 episodes {mean_return:,.2f}, "
            f"target_return={config.target_return:g}; {done}"
        )
    if ended_by == "callback":
        return f"stopped by a callback: {done}"
    if ended_by == "signal":
        by = "another process" if received is None else f"the user ({received.name})"
        return f"stopped by {by}: what was learned is saved; {done}"
    return f"stopped by its caller: what was learned is saved; {done}"


def next_commands(run_dir: Path, config: Config, ended_by: EndedBy | None, ranks: Ranks) -> list[str]:
    """Return commands that continue, evaluate and watch a run; empty without a checkpoint."""
    stores = [
        CheckpointStore(folder / "checkpoints", CheckpointConfig()) for folder in config.population.folders(run_dir)
    ]
    if not (run_dir / "config.json").exists() or not all(store.paths() for store in stores):
        return []
    directory = shlex.quote(str(run_dir))
    more = ""
    if ended_by == "total_steps":
        more = f" --total-steps {2 * config.total_steps}"
    elif ended_by == "target_return":
        more = " --target-return none"
    elif ended_by == "max_seconds" and config.max_seconds is not None:
        more = f" --max-seconds {2 * config.max_seconds:g}"  # over all sessions
    names = config.population.names
    policy = f" --policy {names[0]}" if len(names) > 1 else ""
    train = "rollmill train" if ranks.is_alone else "torchrun ... -m rollmill train"
    return [
        f"continue: {train} --resume {directory}{more}",
        f"evaluate: rollmill eval {directory}{policy}",
        f"watch:    rollmill watch {directory}{policy}",
    ]


def _about_the_start(config: Config, ranks: Ranks, *, resume: bool) -> list[str]:
    rank = "" if ranks.is_alone else f", rank {ranks.rank} of {ranks.world_size}"
    versions = ", ".join(f"{name} {version}" for name in _PACKAGES if (version := _version(name)))
    defaults = flatten(Config(env=EnvConfig(name=config.env.name)))
    differing = [f"{k}={format_value(v)}" for k, v in flatten(config).items() if v != defaults.get(k)]
    lines = [
        f"start: a {'resumed' if resume else 'new'} {config.regime.name} run of {config.env.name}, "
        f"pid {os.getpid()}{rank}",
        f"versions: Python {platform.python_version()}, {versions}; {platform.platform()}",
        f"machine: {describe_machine()}",
        f"command: {shlex.join(sys.orig_argv)} (in {Path.cwd()})",
        f"settings that differ from the defaults: {', '.join(differing)}",
    ]
    unwritten = [f"{what} ({install_command(extra)})" for extra, what in _NEEDING_EXTRAS if missing_modules(extra)]
    return lines if ranks.rank or not unwritten else [*lines, f"not written here: {', '.join(unwritten)}"]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
