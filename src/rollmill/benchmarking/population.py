"""``rollmill bench population``: the whole system's speed with 1, 4, 8 and 12 policies on the same environments.

Each policy learns from batches of its own, so that with twelve of them a policy's batch is complete every few seconds
only. See :class:`Arrivals`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from rollmill.benchmarking.footprint import Footprint, footprint_of_children
from rollmill.benchmarking.measured import say_measured
from rollmill.benchmarking.stepping import TooShortError
from rollmill.benchmarking.subject import Subject
from rollmill.learning.report import LearnerReport
from rollmill.regimes.running import run as run_regime
from rollmill.settings.config import Config
from rollmill.settings.options import full_keys
from rollmill.settings.value_checks import ConfigError

COUNTS = (1, 4, 8, 12)
# Environments of each policy where there are most policies: fewer rows make a network's forward pass inefficient.
_ENVS_PER_POLICY = 16
# Of every policy. One policy learns sooner than each of twelve, so its games would get longer (306 steps of Breakout
# instead of 182 after 95 s) and fewer of them would have to be started, which takes time.
_HARDLY_LEARN = {"learner.learning_rate": 1e-9, "learner.schedule": "constant"}
# There and back. A few long measurements tell more than many short ones: each has to start and warm up, which takes a
# minute with twelve policies, and the speed of a training changes within seconds.
_ROUNDS = 2
# Reading what the processes of 12 policies occupy takes 0.12 s of processor time.
_LOOK_EVERY_S = 10.0
# In lengths of the measurement. Policies that are drawn begin to share groups after about a minute (Breakout).
_WARM_UP = 4.0


class Arrivals:
    """When the batches of each policy were learned.

    The measurement begins when every policy has learned from a batch, or after some time, since a policy may draw no
    environment for long. A batch is complete only every few seconds where there are many policies, so its steps are
    spread over the time since the policy's last one, but not over more than ``seconds``: the run goes on for so long
    at most, and a policy that pauses counts when it plays.

    Args:
        seconds: Of the measurement.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Policy -> (time, agent steps) before its first batch, and after each.
        self._learned: dict[str, list[tuple[float, int]]] = {}
        self._first_at: float | None = None
        self._begins_at: float | None = None
        self._now = 0.0

    def take(self, report: LearnerReport, time_s: float) -> None:
        """Receive a report of the run."""
        now = {name: int(value or 0) for name, value in report.figures.items() if name.endswith("/agent_steps")}
        for name, steps in (now or {"": report.agent_steps}).items():
            learned = self._learned.setdefault(name, [(time_s, steps)])
            if steps > learned[-1][1]:
                learned.append((time_s, steps))
        if self._first_at is None and any(len(learned) > 1 for learned in self._learned.values()):
            self._first_at = time_s
        waited = 0.0 if self._first_at is None else time_s - self._first_at
        every = all(len(learned) > 1 for learned in self._learned.values())
        if self._begins_at is None and (every or waited >= self._seconds * _WARM_UP):
            # Not at the arrival of a batch, which would count half a batch too much on average.
            self._begins_at = time_s + self._seconds / 2
        self._now = time_s

    @property
    def is_complete(self) -> bool:
        """Whether the seconds are over, and what is learned from now on would not count."""
        if self._begins_at is None:
            return False
        end = self._begins_at + self._seconds
        has_all = all(learned[-1][0] >= end for learned in self._learned.values())
        return self._now >= (end if has_all else end + self._seconds)

    @property
    def steps_per_second(self) -> float:
        """Agent steps a second of all policies together.

        Raises:
            TooShortError: No policy has learned from a batch.
        """
        total = 0.0
        if (begin := self._begins_at) is not None:
            for learned in self._learned.values():
                for (last, before), (at, after) in pairwise(learned):
                    since = max(last, at - self._seconds)
                    measured = min(at, begin + self._seconds) - max(since, begin)
                    total += (after - before) * max(0.0, measured) / (at - since)
        if not total:
            raise TooShortError(
                "no policy has learned from a batch: measure for longer (--seconds), or use smaller batches "
                "(--learner.batch-size and --learner.minibatches)."
            )
        return total / self._seconds


def run(subject: Subject, *, seconds: float) -> dict[str, object]:
    """Train with each number of policies, several times in turns, because speeds of machines drift.

    The learning rate is so small that all play the same kind of game, as untrained policies do.

    Args:
        subject: What to measure.
        seconds: Measured training of each number of policies, in all turns together.

    Raises:
        ConfigError: Its settings give a number of policies, or choose the replay regime.
    """
    given = full_keys(subject.config({}), subject.overrides)
    if "population.policies" in given:
        raise ConfigError(f"population.policies: `bench population` measures {', '.join(map(str, COUNTS))}; omit it.")
    if subject.config(given).in_replay:
        raise ConfigError(
            "regime='replay': `bench population` counts the samples of learned batches, and a replay learns from a "
            "sample many times; use `rollmill bench train`."
        )
    rate = {} if _HARDLY_LEARN.keys() & given.keys() else _HARDLY_LEARN
    given = {"num_envs": _ENVS_PER_POLICY * COUNTS[-1], **rate, **given}
    configs = {count: subject.config({**given, "population.policies": count}).resolved() for count in COUNTS}
    speeds: dict[int, list[float]] = {count: [] for count in COUNTS}
    largest = {count: Footprint(0, 0) for count in COUNTS}
    # A steady drift of the machine's speed favours none of them.
    turns = [count for turn in range(_ROUNDS) for count in (COUNTS if turn % 2 == 0 else COUNTS[::-1])]
    began = time.monotonic()
    for done, count in enumerate(turns, start=1):
        speed, footprint = _measure(configs[count], seconds / _ROUNDS)
        speeds[count].append(speed)
        largest[count] = max(largest[count], footprint)
        what = "1 policy" if count == 1 else f"{count} policies"
        say_measured(done, len(turns), what, speed, began=began)
    means = {count: statistics.fmean(found) for count, found in speeds.items()}
    return {
        "preset": subject.preset,
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
        is_complete = arrivals.is_complete
        if is_complete or time.monotonic() >= look_at:
            look_at = time.monotonic() + _LOOK_EVERY_S
            largest = max(largest, footprint_of_children())
        return is_complete

    endless = replace(config, total_steps=10**15, max_seconds=None, target_return=None)
    with tempfile.TemporaryDirectory(prefix="rollmill-bench-") as folder:
        outcome = run_regime(endless, Path(folder), quiet=True, on_report=arrivals.take, stop_when=is_over)
    if outcome.ended_by == "signal":
        raise KeyboardInterrupt
    return arrivals.steps_per_second, largest
