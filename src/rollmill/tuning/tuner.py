"""Finds the fastest allocation by measuring this machine; see :mod:`rollmill.tuning.tune`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import exp, log
from statistics import mean, median, stdev

from rollmill.api import make_config
from rollmill.benchmarking.stepping import TooShortError
from rollmill.models.device import resolve_device
from rollmill.regimes.setup import Probed
from rollmill.regimes.starting import probe
from rollmill.runtime.affinity import usable_cores
from rollmill.runtime.arena import NotEnoughMemory
from rollmill.runtime.events import ProcessFailed
from rollmill.runtime.supervisor import Supervisor
from rollmill.settings.config import Config
from rollmill.settings.regime_config import LockstepConfig
from rollmill.settings.value_checks import ConfigError
from rollmill.tuning.curves import balance
from rollmill.tuning.explain import LIMITS, bounds_sentence, changes, curves_of, describe_allocation
from rollmill.tuning.model import Allocation, StageCosts, Workload, predict
from rollmill.tuning.network import NetworkTimes, by_amdahl, network_times
from rollmill.tuning.profile import Demand, demand_of, fit_costs, workload_of
from rollmill.tuning.result import Tuning
from rollmill.tuning.search import Candidate, Space, choose, distance, expected_speeds, rank, search
from rollmill.tuning.settings import LEARNER_COUNTS, settings_of, space_of, under
from rollmill.tuning.trials import Slice, trial

_PROFILE_S = 2.0
_TURN_S = 1.0
_FINALISTS = 16
# The share of the time for trials that may be used to start them.
_STARTING_SHARE = 0.6
_MOST_TRIALS = 6
_MOST_FAILURES = 2
# Rollout workers a core where simulators mostly sleep.
_SLEEPING_WORKERS = 4
# Least distance between trials (see rollmill.tuning.search.distance).
_DIFFERENT = 0.45
# The speed over the preset's that a candidate needs to replace it.
_CLEARLY = 1.02
_FEWEST_ROUNDS = 4
# Rounds after which this is tested -> Student's t, 95 %, one-sided.
_LOOKS = {4: 2.353, 8: 1.895, 12: 1.796}
# Failures of a candidate, which do not end tuning.
_FAILURES = (ConfigError, NotEnoughMemory, ProcessFailed, TooShortError)


@dataclass
class _Tried:
    """A started trial.

    Attributes:
        allocation: What it runs with.
        turn: Lets its processes, which are paused, run for so many seconds.
        end: Ends it.
        turns: Its results.
        ratios: Its speed over the preset's, round by round.
        has_failed: Whether it failed after its start.
    """

    allocation: Allocation
    turn: Callable[[float], Slice]
    end: Callable[[], None]
    turns: list[Slice] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    has_failed: bool = False

    @property
    def score(self) -> float:
        """Median speed over the preset's."""
        return median(self.ratios) if self.ratios else 0.0


def is_clearly_faster(ratios: Sequence[float]) -> bool:
    """Whether an allocation is faster than the preset's, by a t-test on the logarithms of the ratios.

    Args:
        ratios: Its speed over the preset's, round by round; their number is a key of ``_LOOKS``.
    """
    logs = [log(ratio) for ratio in ratios]
    error = stdev(logs) / len(logs) ** 0.5
    return mean(logs) >= log(_CLEARLY) and mean(logs) > _LOOKS[len(logs)] * error


@dataclass(kw_only=True)
class Tuner:
    """Tunes by measuring on this machine.

    Attributes:
        config: Resolved.
        name: The preset's.
        overrides: The user's settings.
        cores: M.
        algo: The user's.
        protocol: The user's.
        say: Receives lines about the progress.
        notes: Of the result.
    """

    config: Config
    name: str
    overrides: dict[str, object]
    cores: int
    algo: str | None
    protocol: str | None
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)

    def run(self, begun: float, seconds: float) -> Tuning:
        """Profile, search, and try candidates."""
        with Supervisor() as supervisor:
            probed = probe(supervisor, self.config)
            self.config = probed.settle(self.config)
            workload = workload_of(self.config, probed)
            space = self._space(workload, probed)
            self.say("timing the network")
            times = self._time_network(supervisor, probed, space)
        with ExitStack() as stack:
            reference = self._start(stack, space.preset, probed)
            start_s = time.monotonic() - begun
            deadline = time.monotonic() + seconds
            tried = [reference]
            costs = self._costs(tried, workload, times)
            if costs.env_wait_row_s > costs.env_row_s:
                self.notes.append(
                    "simulators sleep for most of their steps, so more rollout workers than cores were looked at; the "
                    "curves have one for each core"
                )
                # Sleeping workers leave their cores to others.
                space = self._space(workload, probed, most_workers=_SLEEPING_WORKERS * self.cores)
            self.say(LIMITS[predict(costs, workload, space.preset, self.cores).limit()])
            if self.cores != usable_cores():
                # Candidates for another machine cannot be tried, but the cost of several learners can be measured.
                several = times.learners[-1] > 1 and space.preset.learner_cores < max(space.learner_cores)
                if several:
                    two = space.preset._replace(learner_cores=times.learners[1] * self.config.compute.threads)
                    tried += self._try(stack, two, probed)
                    costs = self._costs(tried, workload, times)
                return self._result(begun, workload, space, costs, tried, search(costs, workload, space))
            failed: list[Allocation] = []
            while len(tried) < _MOST_TRIALS and len(failed) < _MOST_FAILURES:
                left = deadline - time.monotonic()
                is_late = start_s + 4 * _TURN_S * (len(tried) + 1) > left or left < (1 - _STARTING_SHARE) * seconds
                if is_late and len(tried) > 1:
                    break
                following = self._following(costs, workload, space, tried, failed)
                if following is None:
                    break
                started_at = time.monotonic()
                candidates = self._try(stack, following, probed)
                tried += candidates
                failed += [] if candidates else [following]
                start_s = time.monotonic() - started_at
                costs = self._costs(tried, workload, times)
            self._take_turns(tried, deadline)
            best, gain = self._confirmed(tried)
            costs = self._costs(tried, workload, times)
            speed = self._demand(best, workload).steps_per_second
        return self._result(begun, workload, space, costs, tried, Candidate(best.allocation, speed), gain)

    def _space(self, workload: Workload, probed: Probed, *, most_workers: int | None = None) -> Space:
        # A learner on an accelerator, or one that cannot share its work, does not use more cores.
        is_one = resolve_device(self.config.compute.device).type != "cpu" or (
            self.config.in_replay and probed.shared is None
        )
        counts = (1,) if is_one else LEARNER_COUNTS
        return space_of(
            self.config,
            workload,
            self.overrides,
            self.cores,
            learner_counts=counts,
            most_workers=most_workers,
            keeps_group_size=probed.spec.keeps_group_size,
        )

    def _time_network(self, supervisor: Supervisor, probed: Probed, space: Space) -> NetworkTimes:
        wanted = sorted({1, *space.learner_cores})
        if self.config.in_replay:
            own = self.config.compute.threads
            learners = sorted({1, *(cores // own for cores in space.learner_cores)})
            return network_times(supervisor, self.config, probed, sorted({1, own}), learners)
        # More threads than there are cores would only stand in each other's way.
        here = [n for n in (1, 2, 4, 8, 16, 32) if n <= min(usable_cores(), wanted[-1])]
        times = network_times(supervisor, self.config, probed, here)
        if wanted[-1] <= here[-1] or len(space.learner_cores) == 1:
            return times
        law = "by Amdahl's law" if here[-1] > 1 else "not known, so none is expected"
        self.notes.append(f"what more than {here[-1]} thread(s) gain the learner is {law}: they cannot be timed here")
        return times._replace(threads=by_amdahl(times.threads, wanted))

    def _config_of(self, allocation: Allocation) -> Config:
        settings = under(self.overrides, settings_of(allocation, self.config))
        return make_config(self.name, settings, algo=self.algo, protocol=self.protocol).resolved()

    def _start(self, stack: ExitStack, allocation: Allocation, probed: Probed) -> _Tried:
        """Start and profile an allocation."""
        self.say(f"trying {describe_allocation(allocation)}")
        own = stack.enter_context(ExitStack())
        tried = _Tried(allocation, own.enter_context(trial(self._config_of(allocation), probed)), own.close)
        tried.turns.append(tried.turn(_PROFILE_S))
        return tried

    def _try(self, stack: ExitStack, allocation: Allocation, probed: Probed) -> list[_Tried]:
        """Start and profile a candidate; an empty list if it cannot run."""
        with ExitStack() as own:
            try:
                tried = self._start(own, allocation, probed)
            except _FAILURES as error:
                self._note_failure(allocation, error)
                return []
            stack.enter_context(own.pop_all())
        return [tried]

    def _note_failure(self, allocation: Allocation, error: BaseException) -> None:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        self.notes.append(f"left out, because it failed: {describe_allocation(allocation)}: {reason[0]}")
        self.say(self.notes[-1])

    def _costs(self, tried: list[_Tried], workload: Workload, times: NetworkTimes) -> StageCosts:
        return fit_costs([self._demand(each, workload) for each in tried], times)

    def _demand(self, tried: _Tried, workload: Workload) -> Demand:
        return demand_of(tried.allocation, workload, tried.turns, usable_cores())

    def _following(
        self, costs: StageCosts, workload: Workload, space: Space, tried: list[_Tried], failed: list[Allocation]
    ) -> Allocation | None:
        """The most promising allocation that differs from all tried ones; None if none is promising."""
        candidates = rank(costs, workload, space, count=_FINALISTS)
        expected = {c.allocation: c.steps_per_second for c in candidates}
        for each in tried:
            if each.allocation not in expected:
                expected[each.allocation] = float(expected_speeds(costs, workload, each.allocation, self.cores)[0])
        best_tried = max(expected[each.allocation] for each in tried)
        known = [*(each.allocation for each in tried), *failed]
        fresh = [c for c in candidates if all(distance(c.allocation, one) >= _DIFFERENT for one in known)]
        if not fresh:
            return None
        promising = choose(fresh, space.preset)
        return promising.allocation if promising.steps_per_second > 0.97 * best_tried else None

    def _take_turns(self, tried: list[_Tried], deadline: float) -> None:
        """Run rounds of turns, each with the preset's own; drop the slower half after every second one."""
        reference, others = tried[0], tried[1:]
        rounds = 0
        while others:
            if rounds >= _FEWEST_ROUNDS and time.monotonic() + (len(others) + 1) * (_TURN_S + 0.3) > deadline:
                break
            self._round(reference, others, is_reversed=rounds % 2 == 1)
            rounds += 1
            others = [each for each in others if not each.has_failed]
            if rounds % 2 == 0 and len(others) > 1:
                others = sorted(others, key=lambda each: -each.score)[: -(-len(others) // 2)]

    def _confirmed(self, tried: list[_Tried]) -> tuple[_Tried, float]:
        """The fastest one and its gain, measured in new rounds, because the largest of several medians is biased."""
        reference, others = tried[0], [each for each in tried[1:] if not each.has_failed]
        lasting = max((len(each.ratios) for each in others), default=0)
        best = max((each for each in others if len(each.ratios) == lasting), key=lambda each: each.score, default=None)
        reference.ratios.append(1.0)
        if best is None or best.score < _CLEARLY:
            return reference, 1.0
        before = len(best.ratios)
        for rounds in range(1, max(_LOOKS) + 1):
            self._round(reference, [best], is_reversed=rounds % 2 == 1)
            fresh = best.ratios[before:]
            if best.has_failed:
                break
            if rounds in _LOOKS:
                if is_clearly_faster(fresh):
                    return best, exp(mean(map(log, fresh)))
                if median(fresh) < _CLEARLY:
                    break
        return reference, 1.0

    def _round(self, reference: _Tried, others: list[_Tried], *, is_reversed: bool) -> None:
        """Run a turn of each; one that fails is dropped."""
        speeds: dict[int, float] = {}
        order = [*reversed(others), reference] if is_reversed else [reference, *others]
        for each in order:
            try:
                turn = each.turn(_TURN_S)
            except _FAILURES as error:
                if each is reference:
                    raise
                self._note_failure(each.allocation, error)
                each.has_failed = True
                each.end()
                continue
            each.turns.append(turn)
            speeds[id(each)] = turn.steps_per_second
        for each in others:
            if not each.has_failed:
                each.ratios.append(speeds[id(each)] / speeds[id(reference)])

    def _result(
        self,
        begun: float,
        workload: Workload,
        space: Space,
        costs: StageCosts,
        tried: list[_Tried],
        best: Candidate,
        gain: float | None = None,
    ) -> Tuning:
        demands = [self._demand(each, workload) for each in tried]
        curves = curves_of(costs, workload, best.allocation, self.cores)
        prediction = predict(costs, workload, best.allocation, self.cores)
        solution, regime = None, self.config.regime
        if not (isinstance(regime, LockstepConfig) and regime.lag == 0):
            interval = workload.update_interval
            solution = balance(curves.actors, curves.learners, update_interval=interval, cores=self.cores)
        return Tuning(
            settings=under(self.overrides, settings_of(best.allocation, self.config)),
            allocation=best.allocation,
            preset=space.preset,
            steps_per_second=best.steps_per_second,
            gain=gain,
            limit=LIMITS[prediction.limit()],
            predicted=float(prediction.steps_per_second[0]) if solution is None else solution.steps_per_second,
            changes=tuple(changes(costs, workload, best.allocation, self.cores, space)),
            curves=curves,
            solution=solution,
            update_interval=workload.update_interval,
            costs=costs,
            tried=tuple(Candidate(each.allocation, each.score) for each in tried if each.ratios),
            measured=tuple((d.actor_cores, d.learner_cores, d.steps_per_second) for d in demands),
            seconds=time.monotonic() - begun,
            name=self.name,
            notes=tuple(self.notes),
            bounds=bounds_sentence(prediction),
        )
