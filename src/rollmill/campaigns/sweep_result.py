"""The result of a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from rollmill.campaigns.space import Dimension
from rollmill.campaigns.study import Trial
from rollmill.settings.config import Config
from rollmill.settings.option_values import format_untyped, format_value
from rollmill.settings.options import is_entry, quote_entries

# Above it, six digits would have less than one decimal, or an exponent.
_LARGE: Final = 1e5


def format_metric(value: float | None) -> str:
    """Write a metric such that different values look different: with six digits, and large ones with two decimals."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if abs(value) >= _LARGE else f"{value:,.6g}"


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep, complete or interrupted.

    Attributes:
        folder: Its folder.
        preset: What was trained.
        algo: The algorithm; None for the preset's.
        protocol: The protocol; None for the preset's.
        fixed: Settings that all trials share, by complete key.
        space: What varied.
        metric: What was compared.
        direction: "maximize" or "minimize".
        trials: All trials that have begun, by number.
        start: The trial with the preset's own values; None where there is none.
        run_dirs: The directories of each trial's runs, by number.
        is_complete: Whether all trials have ended.
        page: The page; None if no trial has a result.
    """

    folder: Path
    preset: str
    algo: str | None
    protocol: str | None
    fixed: Mapping[str, Any]
    space: tuple[Dimension, ...]
    metric: str
    direction: str
    trials: tuple[Trial, ...]
    start: Trial | None
    run_dirs: Mapping[int, tuple[Path, ...]]
    is_complete: bool
    page: Path | None = None

    @property
    def best(self) -> Trial | None:
        """The complete trial with the best value; the first of several."""
        return self.ranked[0] if self.ranked else None

    @property
    def ranked(self) -> list[Trial]:
        """The complete trials, the best first."""
        complete = [trial for trial in self.trials if trial.state == "complete" and trial.value is not None]
        return sorted(complete, key=lambda trial: self.sign * cast("float", trial.value), reverse=True)

    @property
    def sign(self) -> float:
        """1 where larger values are better, -1 otherwise."""
        return 1.0 if self.direction == "maximize" else -1.0

    @property
    def best_settings(self) -> dict[str, Any]:
        """The settings of the best trial and what all share, for ``rollmill.train(preset, **settings)``."""
        chosen = {"algo": self.algo, "protocol": self.protocol}
        settings = quote_entries(Config, self._settings)
        return {**{name: value for name, value in chosen.items() if value is not None}, **settings}

    @property
    def command(self) -> str:
        """The command that trains with the settings of the best trial."""
        words = ["rollmill", "train", self.preset]
        for name, chosen in (("algo", self.algo), ("protocol", self.protocol)):
            words += [] if chosen is None else [f"--{name}", chosen]
        for key, value in self._settings.items():
            text = format_untyped(value) if is_entry(Config, key) else format_value(value)
            option = f"--{key.replace('_', '-')}"
            words += [f"{option}={text}"] if text.startswith("--") else [option, text]
        return shlex.join(words)

    @property
    def _settings(self) -> dict[str, Any]:
        return {**self.fixed, **(self.best.settings if self.best is not None else {})}

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON data."""
        return {
            "folder": str(self.folder),
            "page": None if self.page is None else str(self.page),
            "preset": self.preset,
            "metric": self.metric,
            "direction": self.direction,
            "is_complete": self.is_complete,
            "best": None if self.best is None else self._of_trial(self.best),
            "start": None if self.start is None else self._of_trial(self.start),
            "command": self.command if self.best is not None else None,
            "trials": [self._of_trial(trial) for trial in self.trials],
        }

    def describe(self) -> str:
        """The result in sentences."""
        counts = {
            state: sum(trial.state == state for trial in self.trials) for state in ("complete", "pruned", "failed")
        }
        lines = [", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no trial has ended"]
        if self.best is None:
            errors = [trial.error.splitlines()[0] for trial in self.trials if trial.error]
            return f"{lines[0]}; none has a value of {self.metric}" + (f": {errors[0]}" if errors else "")
        lines.append(
            f"best: trial {self.best.number}, {self.metric} {format_metric(self.best.value)} with "
            f"{self._text(self.best)}"
        )
        if self.start is not None and self.start.value is not None:
            lines.append(f"start: {self.metric} {format_metric(self.start.value)} with {self._text(self.start)}")
        return "\n".join([*lines, "To train with the settings of the best trial:", self.command])

    def _of_trial(self, trial: Trial) -> dict[str, Any]:
        return {
            "number": trial.number,
            "state": trial.state,
            "settings": dict(trial.settings),
            "value": trial.value,
            "values": list(trial.values),
            "error": trial.error,
            "runs": [str(path) for path in self.run_dirs.get(trial.number, ())],
        }

    def _text(self, trial: Trial) -> str:
        return ", ".join(f"{key}={format_value(value)}" for key, value in trial.settings.items())
