"""The runs to compare, read from their directories and grouped by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.comparing.methods import differing_settings, labels, settings_of_run
from rollmill.reporting.metrics import is_number, read_metrics
from rollmill.reporting.plots import curve_of
from rollmill.scores import human_normalised
from rollmill.settings.options import flatten
from rollmill.settings.run_config import load_config
from rollmill.storage.evaluations import EvaluationQueue
from rollmill.storage.missing_runs import has_only_begun


class ComparisonError(ValueError):
    """The given runs cannot be compared."""


@dataclass(frozen=True)
class ComparedRun:
    """One run.

    Attributes:
        path: Its directory.
        label: The method's name.
        env: The environment's name.
        seed: Its seed.
        records: Its metrics.
        evaluations: The results of its evaluations, in the order of their agent steps.
        settings: Its settings by dotted key; see :func:`rollmill.comparing.methods.settings_of_run`.
        is_evaluated: Whether evaluations tell its return: all runs of its environment that are compared have some.
    """

    path: Path
    label: str
    env: str
    seed: int
    records: Sequence[dict[str, Any]]
    evaluations: Sequence[dict[str, Any]]
    settings: Mapping[str, Any]
    is_evaluated: bool = True

    @property
    def evaluated_returns(self) -> list[float]:
        """Mean raw returns of its evaluations."""
        return [r["mean_return"] for r in self.evaluations if is_number(r.get("mean_return"))]

    @property
    def score(self) -> float | None:
        """Mean raw return at the end: of its last evaluation, or of its last 100 training episodes."""
        returns = self.evaluated_returns if self.is_evaluated else []
        returns = returns or [r["episode_return"] for r in self.records if is_number(r.get("episode_return"))]
        return float(returns[-1]) if returns else None

    @property
    def human_normalised_score(self) -> float | None:
        """The human-normalised score; None for environments without one."""
        return None if self.score is None else human_normalised(self.env, self.score)

    def return_at(self, axis: str, place: float) -> float | None:
        """Mean return of the last 100 training episodes at a number of ``agent_steps`` or seconds (``time_s``).

        It is linear between records and constant after the last one; None before the first episode has ended.
        """
        curve = curve_of(self.records, axis, "episode_return")
        if not len(curve.x) or place < curve.x[0]:
            return None
        return float(np.interp(place, curve.x, curve.y))

    @property
    def agent_steps(self) -> int:
        """Agent steps of its last record."""
        return int(self.records[-1]["agent_steps"]) if self.records else 0

    @cached_property
    def env_metrics(self) -> dict[str, float]:
        """``env/NAME`` -> the last value that environments have given in ``info["metrics"]``."""
        return {
            name: float(value)
            for record in self.records
            for name, value in record.items()
            if name.startswith("env/") and is_number(value)
        }

    @property
    def minutes(self) -> float:
        """Minutes of training at its last record."""
        return float(self.records[-1].get("time_s", 0.0)) / 60.0 if self.records else 0.0


@dataclass(frozen=True)
class Comparison:
    """The runs, by method and environment.

    Attributes:
        runs: The runs.
        left_out: Directories of runs that are starting, or have failed at their start.
    """

    runs: tuple[ComparedRun, ...]
    left_out: tuple[Path, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences that name the runs that are left out."""
        return [f"{path} is left out: the run has no metrics, see its run.log." for path in self.left_out]

    @property
    def labels(self) -> list[str]:
        """The methods, in the order in which they were named."""
        return list(dict.fromkeys(run.label for run in self.runs))

    @property
    def envs(self) -> list[str]:
        """The environments, sorted."""
        return sorted({run.env for run in self.runs})

    def common(self, env: str) -> tuple[int, float]:
        """Agent steps and minutes that all runs of an environment reached, except for those without records."""
        runs = [run for run in self.runs if run.env == env]
        runs = [run for run in runs if run.agent_steps] or runs
        return min(run.agent_steps for run in runs), min(run.minutes for run in runs)

    def differing_settings(self, env: str) -> list[str]:
        """Keys of the settings that differ between the runs of an environment."""
        runs = [run for run in self.runs if run.env == env]
        return differing_settings([run.settings for run in runs], [env] * len(runs))

    def ranked(self, env: str) -> list[str]:
        """The methods of an environment, the one with the largest mean return first; those without a return last."""
        scores = {label: [r.score for r in self.of(label, env) if r.score is not None] for label in self.labels}
        present = [label for label in self.labels if self.of(label, env)]
        return sorted(present, key=lambda label: -float(np.mean(scores[label])) if scores[label] else np.inf)

    def of(self, label: str, env: str) -> list[ComparedRun]:
        """One method's runs on one environment, by seed."""
        return sorted((r for r in self.runs if (r.label, r.env) == (label, env)), key=lambda run: run.seed)


def compare(runs: Sequence[str | Path]) -> Comparison:
    """Read runs.

    Runs that are starting, or have failed at their start, are left out, unless there are no others.

    Args:
        runs: Their directories. ``NAME=DIRECTORY`` names the method; other methods are named by the settings that
            differ.

    Raises:
        ComparisonError: No runs, a duplicate, or two runs of one method with the same environment and seed.
        RunDirectoryError: A directory does not contain a run.
        NoMetricsError: A run has no metrics.
    """
    if not runs:
        raise ComparisonError("no runs were named: give their directories, as `rollmill train` prints them")
    given = [_name_and_path(run) for run in runs]
    named = [(name, path) for name, path in given if not has_only_begun(path)] or given
    configs = {path: flatten(load_config(path)) for _, path in named}
    if len(configs) < len(named):
        paths = [path for _, path in named]
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ComparisonError(f"the run {twice} was named twice: give each directory once")
    records = {path: read_metrics(path) for path in configs}
    settings = {path: settings_of_run(config, path, records[path]) for path, config in configs.items()}
    of_runs = [settings[path] for _, path in named]
    differing = differing_settings(of_runs, [str(configs[path]["env.name"]) for _, path in named])
    found = []
    for (name, path), label in zip(named, labels(of_runs, differing), strict=True):
        config = configs[path]
        seed = config["seed"]
        assert isinstance(seed, int)
        found.append(
            ComparedRun(
                path=path,
                label=name or label,
                env=str(config["env.name"]),
                seed=seed,
                records=records[path],
                evaluations=EvaluationQueue(path).records(),
                settings=settings[path],
            )
        )
    _check_seeds(found)
    # Actions are sampled in training, and an evaluation may take the best: both together would compare nothing.
    trained_only = {run.env for run in found if not run.evaluated_returns}
    return Comparison(
        tuple(replace(run, is_evaluated=run.env not in trained_only) for run in found),
        tuple(path for _, path in given if path not in configs),
    )


def _name_and_path(run: str | Path) -> tuple[str, Path]:
    if isinstance(run, Path) or Path(run).exists():
        return "", Path(run)
    name, equals, path = run.partition("=")
    return (name, Path(path)) if equals else ("", Path(run))


def _check_seeds(runs: Sequence[ComparedRun]) -> None:
    seen: dict[tuple[str, str, int], Path] = {}
    for run in runs:
        key = (run.label, run.env, run.seed)
        if key in seen:
            raise ComparisonError(
                f"{seen[key]} and {run.path} are the same method ({run.label}) on {run.env} with seed {run.seed}: they "
                "are not independent; omit one, or name methods as NAME=DIRECTORY"
            )
        seen[key] = run.path
