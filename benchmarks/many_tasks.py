"""Many tasks in one run: shares of samples and of compute, and the speed beside runs of single tasks.

    python benchmarks/many_tasks.py suite/atari10 --seconds 20 --json [--KEY VALUE ...]

The run of all tasks, once with equal samples and once with equal compute, takes turns with runs of each task alone,
which have as many environments and batches of the same size. With equal samples, a sample costs on average what those
of the single runs cost on average, so that the speed is compared with the harmonic mean of theirs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rollmill.api import make_config
from rollmill.benchmarking.measured import say_measured
from rollmill.learning.report import LearnerReport
from rollmill.regimes.running import run as run_regime
from rollmill.settings.config import Config
from rollmill.settings.options import parse_overrides

WARM_UP_S = 10.0


class Window:
    """The reports after a warm-up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reports: list[tuple[float, LearnerReport]] = []
        self._begins_at: float | None = None

    def take(self, report: LearnerReport, time_s: float) -> None:
        """Receive a report."""
        if self._begins_at is None and report.agent_steps:
            self._begins_at = time_s + WARM_UP_S
        if self._begins_at is not None and time_s >= self._begins_at:
            self.reports.append((time_s, report))

    @property
    def is_over(self) -> bool:
        """Whether it has lasted for its seconds."""
        return len(self.reports) > 1 and self.reports[-1][0] - self.reports[0][0] >= self._seconds

    @property
    def speed(self) -> float:
        """Agent steps a second."""
        (began, first), (ended, last) = self.reports[0], self.reports[-1]
        return (last.agent_steps - first.agent_steps) / (ended - began)


def measure(config: Config, seconds: float) -> tuple[float, Mapping[str, float | None]]:
    """Train for a while; returns agent steps a second and the last figures."""
    window = Window(seconds)
    endless = replace(config, total_steps=10**15, report_every_s=1.0)
    with tempfile.TemporaryDirectory(prefix="rollmill-bench-") as folder:
        outcome = run_regime(endless, Path(folder), quiet=True, on_report=window.take, stop_when=lambda: window.is_over)
    if outcome.ended_by == "signal":
        raise KeyboardInterrupt
    return window.speed, window.reports[-1][1].figures


def shares(figures: Mapping[str, float | None], tasks: tuple[str, ...], kind: str) -> dict[str, float]:
    """Return the tasks' shares of samples or of compute."""
    return {task: float(figures[f"task/{task}/{kind}"] or 0.0) for task in tasks}


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", help="a suite, or names joined by commas")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement, after a warm-up")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments, rest = parser.parse_known_args()
    overrides = parse_overrides(rest)
    whole = make_config(arguments.tasks, overrides)
    tasks = whole.env.tasks
    plans = {"samples": whole.resolved()}
    for index, task in enumerate(tasks):
        # With the network of all tasks, but one output of values.
        alone = replace(whole, env=whole.env.of_task(index), preset=task)
        plans[task] = alone.resolved()
        if index == len(tasks) // 2:
            plans["compute"] = make_config(arguments.tasks, {**overrides, "task_share": "compute"}).resolved()
    plans["samples, again"] = plans["samples"]
    speeds: dict[str, float] = {}
    figures: dict[str, Mapping[str, float | None]] = {}
    began = time.monotonic()
    for done, (name, config) in enumerate(plans.items(), start=1):
        speeds[name], figures[name] = measure(config, arguments.seconds)
        say_measured(done, len(plans), name, speeds[name], began=began)
    of_samples = shares(figures["samples, again"], tasks, "samples")
    of_compute = shares(figures["compute"], tasks, "compute")
    even = 1.0 / len(tasks)
    single = statistics.harmonic_mean([speeds[task] for task in tasks])
    together = statistics.fmean([speeds["samples"], speeds["samples, again"]])
    result = {
        "tasks": len(tasks),
        "speeds": speeds,
        "harmonic_mean_of_single_runs": single,
        "together_to_single": together / single,
        "shares_of_samples": of_samples,
        "largest_deviation_of_samples": max(abs(share - even) / even for share in of_samples.values()),
        "shares_of_compute": of_compute,
        "largest_deviation_of_compute": max(abs(share - even) / even for share in of_compute.values()),
        "shares_of_samples_with_equal_compute": shares(figures["compute"], tasks, "samples"),
    }
    print(json.dumps(result, indent=None if arguments.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
