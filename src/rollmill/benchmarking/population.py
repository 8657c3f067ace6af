"""``rollmill bench population``: the whole system's speed with 1, 4, 8 and 12 policies on the same environments.

Each policy learns from batches of its own, so that with twelve of them a batch is complete every few seconds only. The
speed of a policy is therefore measured between two of its batches, and those of all policies are added.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rollmill.api import make_config
from rollmill.benchmarking.footprint import Footprint, footprint_of_children
from rollmill.benchmarking.stepping import TooShortError
from rollmill.learning.report import LearnerReport
from rollmill.regimes.running import run as run_regime
from rollmill.settings.config import Config
from rollmill.settings.value_checks import ConfigError

COUNTS = (1, 4, 8, 12)
# Environments of each policy where there are most policies: fewer rows make a network's forward pass inefficient.
_ENVS_PER_POLICY = 16
_ROUNDS = 3
_LOOK_EVERY_S = 2.0
# In lengths of the measurement.
_WARM_UP, _PATIENCE = 2.0, 3.0


class Arrivals:
    """When the batches of each policy were learned.

    The measurement begins when every policy has learned from a batch, or after some time, since a policy may draw no
    environment for long. Each policy is measured from its last batch before that.

    Args:
        seconds: Of the measurement.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[str, list[tuple[float, int]]] = {}
        self._first_at: float | None = None
        self._begins_at: float | None = None
        self._now = 0.0

    def take(self, report: LearnerReport, time_s: float) -> None:
        """Receive a report of the run."""
        now = {name: int(value or 0) for name, value in report.figures.items() if name.endswith("/agent_steps")}
        for name, steps in (now or {"": report.agent_steps}).items():
            seen = self._seen.setdefault(name, [])
            if steps and (not seen or steps > seen[-1][1]):
                if self._begins_at is None:
                    seen.clear()
                seen.append((time_s, steps))
        if self._first_at is None and any(self._seen.values()):
            self._first_at = time_s
        waited = 0.0 if self._first_at is None else time_s - self._first_at
        if self._begins_at is None and (all(self._seen.values()) or waited >= self._seconds * _WARM_UP):
            self._begins_at = time_s
        self._now = time_s

    @property
    def is_complete(self) -> bool:
        """Whether the seconds are over, and a policy has learned from a batch in them (or three times as many are)."""
        if self._begins_at is None:
            return False
        lasted = self._now - self._begins_at
        return lasted >= self._seconds * (1.0 if any(len(seen) > 1 for seen in self._seen.values()) else _PATIENCE)

    @property
    def steps_per_second(self) -> float:
        """Agent steps a second of all policies together.

        A policy that had no complete batch in the time, because it drew few environments, counts 0.

        Raises:
            TooShortError: No policy has learned from a batch.
        """
        total = 0.0
        if all(len(seen) < 2 for seen in self._seen.values()):
            raise TooShortError(
                "no policy has learned from a batch: measure for longer (--seconds), or use smaller batches "
                "(--learner.batch-size and --learner.minibatches)."
            )
        for seen in self._seen.values():
            if len(seen) > 1:
                (began, before), (ended, after) = seen[0], seen[-1]
                total += (after - before) / (ended - began)
        return total


def run(preset: str, *, seconds: float, overrides: Mapping[str, object] | None = None) -> dict[str, object]:
    """Train with each number of policies, several times in turns, because speeds of machines drift.

    Args:
        preset: A preset's name.
        seconds: Measured training of each number of policies, in all turns together.
        overrides: Settings that replace the preset's.

    Raises:
        ConfigError: They give a number of policies, or choose the replay regime.
    """
    given = dict(overrides or {})
    if {"population.policies", "policies"} & given.keys():
        raise ConfigError(f"population.policies: `bench population` measures {', '.join(map(str, COUNTS))}; omit it.")
    given = {"num_envs": _ENVS_PER_POLICY * COUNTS[-1], **given}
    configs = {count: make_config(preset, {**given, "population.policies": count}).resolved() for count in COUNTS}
    speeds: dict[int, list[float]] = {count: [] for count in COUNTS}
    largest = {count: Footprint(0, 0) for count in COUNTS}
    for turn in range(_ROUNDS):
        # There and back, so that a steady drift does not favour one of them.
        for count in COUNTS if turn % 2 == 0 else COUNTS[::-1]:
            speed, footprint = _measure(configs[count], seconds / _ROUNDS)
            speeds[count].append(speed)
            largest[count] = max(largest[count], footprint)
    means = {count: statistics.fmean(found) for count, found in speeds.items()}
    return {
        "preset": preset,
        "seconds": seconds,
        "num_envs": configs[1].num_envs,
        "assignment": configs[1].population.assignment,
        "steps_per_second": {str(count): found for count, found in speeds.items()},
        "memory_mib": {str(count): round(found.nbytes / 2**20) for count, found in largest.items()},
        "processes": {str(count): found.processes for count, found in largest.items()},
        "policies": {str(count): mean for count, mean in means.items()},
        "loss_12": 1.0 - means[COUNTS[-1]] / means[COUNTS[0]],
    }


def _measure(config: Config, seconds: float) -> tuple[float, Footprint]:
    """Train for a while; returns agent steps a second, and the most that the processes occupied."""
    arrivals, largest, look_at = Arrivals(seconds), Footprint(0, 0), time.monotonic()

    def is_over() -> bool:
        nonlocal largest, look_at
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + _LOOK_EVERY_S
            largest = max(largest, footprint_of_children())
        return arrivals.is_complete

    endless = replace(config, total_steps=10**15, max_seconds=None, target_return=None)
    with tempfile.TemporaryDirectory(prefix="rollmill-bench-") as folder:
        outcome = run_regime(endless, Path(folder), quiet=True, on_report=arrivals.take, stop_when=is_over)
    if outcome.ended_by == "signal":
        raise KeyboardInterrupt
    return arrivals.steps_per_second, largest
