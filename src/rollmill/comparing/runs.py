"""Which runs are compared, and with what: read from their directories, grouped by what was done alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.evaluation.human_scores import human_normalised
from rollmill.options import flatten
from rollmill.reporting.metrics import read_metrics
from rollmill.reporting.plots import curve_of
from rollmill.run_config import load_config
from rollmill.storage.evaluations import EvaluationQueue

__all__ = ["ComparedRun", "Comparison", "ComparisonError", "compare"]

# What two runs of one method may differ in, because it changes neither the method nor, beyond chance, its result.
_SAME_METHOD = (
    *("seed", "preset", "env.name", "env.imports", "env.kwargs", "max_seconds", "target_return"),
    *("report_every_s", "wandb_project", "eval_every", "eval_episodes"),
)
_SAME_METHOD_PARTS = ("placement.", "rollout.", "checkpoint.", "distributed.", "debug_")


class ComparisonError(ValueError):
    """The runs that were named cannot be compared."""


@dataclass(frozen=True)
class ComparedRun:
    """One run.

    Attributes:
        path: Its directory.
        label: The method's name.
        env: The environment's name.
        seed: Its seed.
        records: Its metrics.
        evaluations: What its evaluations found, in the order of their agent steps.
    """

    path: Path
    label: str
    env: str
    seed: int
    records: Sequence[dict[str, Any]]
    evaluations: Sequence[dict[str, Any]]

    @property
    def score(self) -> float | None:
        """Mean raw return at the end: of its last evaluation, else of its last 100 training episodes."""
        if self.evaluations:
            return float(self.evaluations[-1]["mean_return"])
        returns = [r["episode_return"] for r in self.records if r.get("episode_return") is not None]
        return float(returns[-1]) if returns else None

    @property
    def human_normalised_score(self) -> float | None:
        """The score in units of a human's; None where there is no such unit."""
        return None if self.score is None else human_normalised(self.env, self.score)

    def return_at(self, axis: str, place: float) -> float | None:
        """Mean return of the last 100 training episodes at so many ``agent_steps`` or seconds (``time_s``).

        Between two records linearly, behind the last one as it was there; None before the first episode has ended.
        """
        curve = curve_of(self.records, axis, "episode_return")
        if not len(curve.x) or place < curve.x[0]:
            return None
        return float(np.interp(place, curve.x, curve.y))

    @property
    def agent_steps(self) -> int:
        """How far it has come."""
        return int(self.records[-1]["agent_steps"]) if self.records else 0

    @property
    def minutes(self) -> float:
        """How long it took."""
        return float(self.records[-1]["time_s"]) / 60.0 if self.records else 0.0


@dataclass(frozen=True)
class Comparison:
    """The runs, by method and environment."""

    runs: tuple[ComparedRun, ...]

    @property
    def labels(self) -> list[str]:
        """The methods, in the order in which they were named."""
        return list(dict.fromkeys(run.label for run in self.runs))

    @property
    def envs(self) -> list[str]:
        """The environments, sorted."""
        return sorted({run.env for run in self.runs})

    def common(self, env: str) -> tuple[int, float]:
        """So many agent steps, and minutes, have all runs of an environment come."""
        runs = [run for run in self.runs if run.env == env]
        return min(run.agent_steps for run in runs), min(run.minutes for run in runs)

    def of(self, label: str, env: str) -> list[ComparedRun]:
        """One method's runs on one environment, by seed."""
        return sorted((r for r in self.runs if (r.label, r.env) == (label, env)), key=lambda run: run.seed)


def compare(runs: Sequence[str | Path]) -> Comparison:
    """Reads runs.

    Args:
        runs: Their directories; ``NAME=DIRECTORY`` names the method, others are named by the settings that they differ
            in.

    Raises:
        ComparisonError: None were given, one twice, or two runs of one method have the same environment and seed.
        RunDirectoryError: A directory holds no run.
        NoMetricsError: A run has no metrics.
    """
    if not runs:
        raise ComparisonError("no runs were named: give their directories, as `rollmill train` prints them")
    named = [_name_and_path(run) for run in runs]
    configs = {path: flatten(load_config(path)) for _, path in named}
    if len(configs) < len(named):
        raise ComparisonError("a run was named twice: give each directory once")
    labels = _labels([configs[path] for _, path in named])
    found = []
    for (name, path), label in zip(named, labels, strict=True):
        config = configs[path]
        seed = config["seed"]
        assert isinstance(seed, int)
        found.append(
            ComparedRun(
                path, name or label, str(config["env.name"]), seed, read_metrics(path), EvaluationQueue(path).records()
            )
        )
    _check_seeds(found)
    return Comparison(tuple(found))


def _name_and_path(run: str | Path) -> tuple[str, Path]:
    if isinstance(run, Path) or Path(run).exists():
        return "", Path(run)
    name, equals, path = run.partition("=")
    return (name, Path(path)) if equals else ("", Path(run))


def _labels(configs: Sequence[dict[str, object]]) -> list[str]:
    """For each run, the settings in which the methods differ."""

    def is_of_method(key: str) -> bool:
        return key not in _SAME_METHOD and not key.startswith(_SAME_METHOD_PARTS)

    keys = [key for key in dict.fromkeys(k for c in configs for k in c) if is_of_method(key)]
    # Presets of different environments differ, too, which is no difference of methods: only what differs within one is.
    by_env: dict[object, list[dict[str, object]]] = {}
    for config in configs:
        by_env.setdefault(config["env.name"], []).append(config)
    telling = [key for key in keys if any(len({repr(c.get(key)) for c in group}) > 1 for group in by_env.values())]
    telling = telling[: _keys_needed(configs, telling)]

    def label(config: dict[str, object]) -> str:
        # Only lockstep has a lag that is set.
        named = [key for key in telling if key != "lag" or config.get("regime") == "lockstep"]
        return ", ".join(f"{key.rpartition('.')[2]}={config.get(key)}" for key in named)

    return [label(config) or "rollmill" for config in configs]


def _keys_needed(configs: Sequence[dict[str, object]], keys: Sequence[str]) -> int:
    """How many of the keys, the first ones, tell as many methods apart as all of them do."""

    def told_apart(count: int) -> int:
        return len({tuple(repr(config.get(key)) for key in keys[:count]) for config in configs})

    return next(count for count in range(len(keys) + 1) if told_apart(count) == told_apart(len(keys)))


def _check_seeds(runs: Sequence[ComparedRun]) -> None:
    seen: dict[tuple[str, str, int], Path] = {}
    for run in runs:
        key = (run.label, run.env, run.seed)
        if key in seen:
            raise ComparisonError(
                f"{seen[key]} and {run.path} are the same method ({run.label}) on {run.env} with seed {run.seed}: they "
                "are no independent runs; leave one out, or name methods as NAME=DIRECTORY"
            )
        seen[key] = run.path
