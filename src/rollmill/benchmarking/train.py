"""``rollmill bench train``: the whole system's speed, beside pure simulation and the machine's bound in the same run.

Steps are distinct valid samples that the learner has consumed, counted from the first report after a warm-up to the
last one. The bound comes from frozen standalone kernels (:mod:`rollmill.benchmarking.bound`), so slowing a stage of
Rollmill down cannot raise the efficiency.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rollmill.api import make_config
from rollmill.benchmarking.bound import Bound, measure_bound
from rollmill.benchmarking.simulation import pure_simulation
from rollmill.config import Config
from rollmill.learning.report import LearnerReport
from rollmill.regimes.asynchronous import run as run_async

_WARM_UP_S = 10.0
_BOUND_SHARE = 0.3
_SIMULATION_SHARE = 0.15


class TooShortError(RuntimeError):
    """A measurement has nothing to report."""


class _Window:
    """Collects the learner's reports after the warm-up."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, LearnerReport]] = []
        self._first: float | None = None

    def take(self, report: LearnerReport, time_s: float) -> None:
        """Receives one report; the clock of the warm-up starts with the first that has learned something."""
        if self._first is None and report.agent_steps:
            self._first = time_s
        if self._first is not None and time_s >= self._first + _WARM_UP_S:
            self.reports.append((time_s, report))

    @property
    def steps_per_second(self) -> float:
        """Agent steps consumed between the first and the last report of the window."""
        if len(self.reports) < 2:
            raise TooShortError(
                "the learner reported less than twice after the warm-up: measure for longer (--seconds), or use "
                "smaller batches."
            )
        (begin, first), (end, last) = self.reports[0], self.reports[-1]
        return (last.agent_steps - first.agent_steps) / (end - begin)


class Training(NamedTuple):
    """What a measured piece of training has shown.

    Attributes:
        seconds: Between the first and the last report that count.
        steps_per_second: Distinct valid samples consumed.
        frames_per_second: The same times the frameskip.
        policy_lag_mean: In SGD steps, over all samples.
        policy_lag_max: The largest of a sample.
        fast_path: How the learner computed.
        ledger: Where each process's time went.
    """

    seconds: float
    steps_per_second: float
    frames_per_second: float
    policy_lag_mean: float
    policy_lag_max: float
    fast_path: str
    ledger: str


def measure_training(config: Config, seconds: float) -> Training:
    """Trains for a warm-up and a window of so many seconds, and throws the agent away.

    Args:
        config: Resolved; it goes on until it is stopped, whatever it says about steps, seconds and returns.
        seconds: The window; starting and warming up take as long as they take.

    Raises:
        TooShortError: The learner reported less than twice.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended it.
    """
    window = _Window()
    endless = replace(config, total_steps=10**15, max_seconds=None, target_return=None, report_every_s=1.0)
    with tempfile.TemporaryDirectory(prefix="rollmill-bench-") as folder:
        outcome = run_async(
            endless, Path(folder), quiet=True, on_report=window.take, stop_when=lambda: _is_full(window, seconds)
        )
    if outcome.ended_by == "signal":
        raise KeyboardInterrupt
    steps = window.steps_per_second
    reports = [report for _, report in window.reports]
    return Training(
        window.reports[-1][0] - window.reports[0][0],
        steps,
        steps * outcome.probed.spec.frameskip,
        sum(report.policy_lag_mean for report in reports) / len(reports),
        max(report.policy_lag_max for report in reports),
        reports[-1].fast_path,
        outcome.summary,
    )


def run(preset: str, *, seconds: float, overrides: Mapping[str, object] | None = None) -> dict[str, object]:
    """Trains for a while and measures.

    Args:
        preset: A preset's name.
        seconds: Length of the training's measurement after ten seconds of warm-up; bound and pure simulation take half
            as long in addition.
        overrides: Settings over the preset's.
    """
    config = make_config(preset, overrides).resolved()
    # Pure simulation has all cores, whatever the run gives its rollout workers.
    alone = make_config(
        preset, {**(overrides or {}), "rollout.num_workers": "auto", "envs_per_group": "auto"}
    ).resolved()
    # A shared machine changes its speed within minutes: the bound is measured on both sides of the run.
    before = _bound(config, seconds * _BOUND_SHARE)
    simulated = pure_simulation(alone, seconds=max(3.0, seconds * _SIMULATION_SHARE))
    training = measure_training(config, seconds)
    after = _bound(config, seconds * _BOUND_SHARE)
    steps = training.steps_per_second
    result: dict[str, object] = {
        "preset": preset,
        "seconds": training.seconds,
        "frames_per_second": training.frames_per_second,
        "steps_per_second": steps,
        "pure_simulation_steps_per_second": simulated,
        "share_of_pure_simulation": steps / simulated,
        "policy_lag_mean": training.policy_lag_mean,
        "policy_lag_max": training.policy_lag_max,
        "num_envs": config.num_envs,
        "envs_per_group": config.envs_per_group,
        "rollout_workers": config.rollout.num_workers,
        "batch_size": config.learner.batch_size,
        "epochs": config.learner.epochs,
        "fast_path": training.fast_path,
        "ledger": training.ledger,
    }
    if before is not None and after is not None:
        alone_bound = _mean(before.bound_steps_per_second, after.bound_steps_per_second)
        loaded_bound = _mean(before.bound_loaded_steps_per_second, after.bound_loaded_steps_per_second)
        result |= {
            "bound_steps_per_second": alone_bound,
            "bound_loaded_steps_per_second": loaded_bound,
            "efficiency": steps / alone_bound,
            "efficiency_loaded": steps / loaded_bound,
            "bounds": [before.as_dict(), after.as_dict()],
        }
    return result


def _is_full(window: _Window, seconds: float) -> bool:
    return len(window.reports) >= 2 and window.reports[-1][0] - window.reports[0][0] >= seconds


def _mean(a: float, b: float) -> float:
    """Of two rates, that of the mean time."""
    return 2.0 / (1.0 / a + 1.0 / b)


def _bound(config: Config, seconds: float) -> Bound | None:
    """The machine's bound for this environment and network; None where there are no frozen kernels for them."""
    family, _, name = config.env.name.partition("/")
    epochs, sizes = config.learner.epochs, {"minibatch": config.learner.minibatch_size}
    if family == "atari" and config.model.core == "none" and config.model.encoder in ("auto", "nature"):
        return measure_bound("atari", seconds, epochs=epochs, env_options={"game": name}, train_options=sizes)
    if family == "vizdoom" and config.model.core == "gru":
        return measure_bound("vizdoom", seconds, epochs=epochs, env_options={"scenario": name}, train_options=sizes)
    if config.env.name in ("gym/CartPole-v1", "CartPole-v1"):
        return measure_bound("cartpole", seconds, epochs=epochs, train_options=sizes)
    if config.env.name == "envpool/CartPole-v1":
        return measure_bound("cartpole-envpool", seconds, epochs=epochs, train_options=sizes)
    return None
