"""``rollmill bench train``: the whole system's speed, beside that of pure simulation.

Steps are distinct valid samples that the learner has consumed, counted from report to report after a warm-up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rollmill.benchmarking.pausing import paused_children
from rollmill.benchmarking.simulation import pure_simulation
from rollmill.benchmarking.stepping import TooShortError
from rollmill.benchmarking.subject import Subject
from rollmill.learning.report import LearnerReport
from rollmill.regimes.running import run as run_regime
from rollmill.settings.config import Config
from rollmill.settings.value_checks import ConfigError

_WARM_UP_S = 10.0
_SIMULATION_SHARE = 0.15


class _Slices:
    """The learner's reports after the warm-up, by slices.

    Args:
        count: Slices.
        seconds: Of each.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self.slices: list[list[tuple[float, LearnerReport]]] = [[]]
        self._count = count
        self._seconds = seconds
        self._begins_at: float | None = None
        self._left_out = 0

    def take(self, report: LearnerReport, time_s: float) -> None:
        """Receive one report. The warm-up starts with the first one after learning began."""
        if self._begins_at is None:
            # Not agent steps: a replay counts them when they are collected, long before there are enough to learn from.
            if report.sgd_steps:
                self._begins_at = time_s + _WARM_UP_S
        elif self._left_out:
            self._left_out -= 1
        elif time_s >= self._begins_at:
            self.slices[-1].append((time_s, report))

    @property
    def is_slice_full(self) -> bool:
        """Whether the current slice has its seconds."""
        reports = self.slices[-1]
        return len(reports) >= 2 and reports[-1][0] - reports[0][0] >= self._seconds

    @property
    def is_last_slice(self) -> bool:
        """Whether the current slice is the last one."""
        return len(self.slices) == self._count

    def next_slice(self) -> None:
        """Start the next slice after a pause."""
        self.slices.append([])
        self._left_out = 1  # It may have been written before the pause.

    @property
    def seconds(self) -> float:
        """Seconds from the first to the last report of each slice, summed."""
        return sum(reports[-1][0] - reports[0][0] for reports in self.slices)

    @property
    def sgd_steps_per_second(self) -> float:
        """SGD steps a second, over all slices."""
        return sum(reports[-1][1].sgd_steps - reports[0][1].sgd_steps for reports in self.slices) / self.seconds

    @property
    def steps_per_second(self) -> float:
        """Agent steps consumed (in replay: collected) a second, over all slices."""
        if len(self.slices[-1]) < 2:
            raise TooShortError(
                "the learner reported less than twice after the warm-up: measure for longer (--seconds), or use "
                "smaller batches."
            )
        steps = sum(reports[-1][1].agent_steps - reports[0][1].agent_steps for reports in self.slices)
        return steps / self.seconds


class Training(NamedTuple):
    """The result of measured training.

    Attributes:
        seconds: That were measured.
        steps_per_second: Distinct valid samples consumed; in replay, collected.
        sgd_steps_per_second: SGD steps taken.
        frames_per_second: The same times the frameskip.
        policy_lag_mean: In policy versions, over all samples.
        policy_lag_max: The largest of a sample.
        fast_path: How the learner computed.
        ledger: Where each process's time went.
    """

    seconds: float
    steps_per_second: float
    sgd_steps_per_second: float
    frames_per_second: float
    policy_lag_mean: float
    policy_lag_max: float
    fast_path: str
    ledger: str


def measure_training(
    config: Config, seconds: float, *, slices: int = 1, between: Callable[[], None] | None = None
) -> Training:
    """Train for a warm-up and for ``seconds`` that are measured, and discard the agent.

    Args:
        config: Resolved; its limits on steps, seconds and returns are ignored.
        seconds: In all slices together; starting, warming up and pauses take as long as they take.
        slices: How many.
        between: Called between two slices, with all processes of the run paused.

    Raises:
        TooShortError: The learner reported less than twice.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended it.
    """
    window = _Slices(slices, seconds / slices)

    def is_over() -> bool:
        if not window.is_slice_full or window.is_last_slice:
            return window.is_slice_full
        if between is not None:
            with paused_children():
                between()
        window.next_slice()
        return False

    endless = replace(config, total_steps=10**15, max_seconds=None, target_return=None, report_every_s=1.0)
    with tempfile.TemporaryDirectory(prefix="rollmill-bench-") as folder:
        outcome = run_regime(endless, Path(folder), quiet=True, on_report=window.take, stop_when=is_over)
    if outcome.ended_by == "signal":
        raise KeyboardInterrupt
    steps = window.steps_per_second
    reports = [report for reports in window.slices for _, report in reports]
    lags = [report.lag for report in reports if report.lag is not None]
    return Training(
        window.seconds,
        steps,
        window.sgd_steps_per_second,
        steps * outcome.probed.spec.frameskip,
        fmean([lag.mean for lag in lags if lag.mean is not None] or [0.0]),
        max([lag.maximum for lag in lags if lag.maximum is not None], default=0),
        reports[-1].fast_path,
        outcome.summary,
    )


def _run_replay(preset: str, config: Config, seconds: float) -> dict[str, object]:
    """As :func:`run`, with SGD steps in the place of policy lag and pure simulation."""
    training = measure_training(config, seconds)
    return {
        "preset": preset,
        "seconds": training.seconds,
        "frames_per_second": training.frames_per_second,
        "steps_per_second": training.steps_per_second,
        "sgd_steps_per_second": training.sgd_steps_per_second,
        "algorithm": config.algorithm_name,
        "update_interval": config.replay.update_interval,
        "batch_size": config.algorithm.batch_size,
        "num_envs": config.num_envs,
        "rollout_workers": config.rollout.num_workers,
        "learners": config.num_learners,
        "fast_path": training.fast_path,
        "ledger": training.ledger,
    }


def run(subject: Subject, *, seconds: float) -> dict[str, object]:
    """Train for a while and measure.

    Args:
        subject: What to measure.
        seconds: Measured training, after ten seconds of warm-up and a measurement of pure simulation.
    """
    config = subject.config().resolved()
    if config.in_replay:
        return _run_replay(subject.preset, config, seconds)
    # Pure simulation uses all cores, if the environments can be distributed over them.
    alone = config
    with suppress(ConfigError):
        alone = subject.config(
            {**subject.overrides, "rollout.num_workers": "auto", "envs_per_group": "auto"}
        ).resolved()
    simulated = pure_simulation(alone, seconds=max(3.0, seconds * _SIMULATION_SHARE))
    training = measure_training(config, seconds)
    steps = training.steps_per_second
    return {
        "preset": subject.preset,
        "seconds": training.seconds,
        "frames_per_second": training.frames_per_second,
        "steps_per_second": steps,
        "pure_simulation_steps_per_second": simulated,
        "share_of_pure_simulation": steps / simulated,
        "policy_lag_mean": training.policy_lag_mean,
        "policy_lag_max": training.policy_lag_max,
        "policy_lag_unit": "batches" if config.in_lockstep else "SGD steps",
        "num_envs": config.num_envs,
        "envs_per_group": config.envs_per_group,
        "rollout_workers": config.rollout.num_workers,
        "batch_size": config.algorithm.batch_size,
        "epochs": config.on_policy.epochs,
        "fast_path": training.fast_path,
        "ledger": training.ledger,
    }
