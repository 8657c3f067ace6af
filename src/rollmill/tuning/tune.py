"""``rollmill tune``: profile, choose, try, report, and write settings that ``rollmill train`` accepts.

1. The preset's own allocation is started and measured for some seconds: what each stage costs (:mod:`.profile`).
2. The model ranks every allocation that is free, the simulation the best of those (:mod:`.search`).
3. The most promising are started too; what they show corrects the costs, and so what is tried next.
4. All that were started take turns; after each round the slower half leaves (:mod:`.trials`).

With curves, of a machine or an accelerator that is not here, nothing is measured: PAL's equation 5 is solved on them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, stdev
from typing import Any

from rollmill.api import make_config
from rollmill.config import Config, ConfigError
from rollmill.envs.registry import register_factory
from rollmill.models.device import resolve_device
from rollmill.regimes.running import probe
from rollmill.regimes.setup import Probed
from rollmill.runtime.affinity import usable_cores
from rollmill.runtime.arena import NotEnoughMemory
from rollmill.runtime.signals import sigterm_interrupts
from rollmill.runtime.supervisor import Supervisor
from rollmill.tuning.curves import Balance, CurveError, Curves, balance, whole_cores
from rollmill.tuning.model import Allocation, StageCosts, Workload
from rollmill.tuning.network import NetworkTimes, by_amdahl, network_times
from rollmill.tuning.profile import Demand, demand_of, fit_costs, workload_of
from rollmill.tuning.report import Change, changes, curves_of, describe_allocation, draw, limit_sentence
from rollmill.tuning.search import Candidate, Space, choose, distance, rank, search, simulated
from rollmill.tuning.settings import SettingsFileError, settings_of, space_of, under
from rollmill.tuning.trials import Slice, Trial

__all__ = ["TUNED_FILE", "Tuning", "tune"]

TUNED_FILE = "tuned.json"
SECONDS = 60.0

_PROFILE_S = 2.0
_TURN_S = 1.0
_FINALISTS = 16
# Of the time for trials, what may go into starting them.
_STARTING_SHARE = 0.6
_MOST_TRIALS = 6
# Trials that hardly differ say nothing that is worth a start.
_DIFFERENT = 0.45
# A measured speed must be above the preset's by so much to replace it: within that two measurements differ anyway.
_CLEARLY = 1.02
_FEWEST_ROUNDS = 4
_UNCLEAR = 0.05


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What was chosen, and why.

    Attributes:
        settings: By dotted key, what the user gave included: ``train(preset, **tuning.settings)`` runs with them.
        allocation: The chosen one.
        preset: The one without tuning.
        steps_per_second: Agent steps a second of the chosen one: measured, or by the given curves.
        gain: Measured speed over that of the preset's own allocation, in the same turns; None where none was.
        limit: What limits the machine, a sentence.
        changes: What single changes would bring.
        curves: Both sides' throughput.
        solution: Of PAL's equation 5 on them.
        update_interval: Agent steps for each SGD step.
        costs: The stages', as fitted; None where curves were given.
        tried: Allocations that were run, with their agent steps a second over the preset's.
        measured: (actors' cores, learner's cores, agent steps a second) of the joint runs.
        seconds: It took.
        name: What was tuned.
        notes: What else is to be known of the figures.
    """

    settings: dict[str, Any]
    allocation: Allocation
    preset: Allocation
    steps_per_second: float
    gain: float | None
    limit: str
    changes: tuple[Change, ...]
    curves: Curves
    solution: Balance
    update_interval: float
    costs: StageCosts | None
    tried: tuple[Candidate, ...]
    measured: tuple[tuple[float, float, float], ...]
    seconds: float
    name: str
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """The report."""
        lines = [
            f"{self.name}, {self.curves.cores} cores: {describe_allocation(self.allocation)}",
            f"{self.steps_per_second:,.0f} agent steps/s"
            + ("" if self.gain is None else f", {self.gain:.2f} times the preset's own allocation")
            + f" (tuned in {self.seconds:.0f} s)",
            self.limit,
            f"actors {self.solution.actor_cores:.2f} cores, learner {self.solution.learner_cores:.2f} cores: "
            f"f_a(x_a) = u f_l(x_l) = {self.solution.steps_per_second:,.0f} agent steps/s, "
            f"u = {self.update_interval:g}",
            *self.notes,
        ]
        if self.changes:
            lines.append("what single changes would bring, by the model:")
            lines += [f"  {change.what:<44}{change.gain:+.0%}" for change in self.changes]
        if self.tried:
            lines.append("tried, over the preset's own:")
            lines += [f"  {c.steps_per_second:.2f}  {describe_allocation(c.allocation)}" for c in self.tried]
        changed = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return "\n".join([*lines, f"settings: {changed}"])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "settings": self.settings,
            "steps_per_second": self.steps_per_second,
            "gain": self.gain,
            "limit": self.limit,
            "notes": list(self.notes),
            "changes": {change.what: change.gain for change in self.changes},
            "curves": self.curves.to_json(),
            "solution": self.solution._asdict(),
            "tried": [{"over_preset": c.steps_per_second, **c.allocation._asdict()} for c in self.tried],
            "seconds": self.seconds,
        }

    def write(self, directory: Path | str) -> Path:
        """Leaves ``tuned.json``, ``curves.json``, ``tuning.txt`` and ``tuning.png``; returns the first one's path."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / TUNED_FILE).write_text(json.dumps(self.settings, indent=2) + "\n")
        (directory / "curves.json").write_text(json.dumps(self.curves.to_json(), indent=2) + "\n")
        (directory / "tuning.txt").write_text(self.describe() + "\n")
        draw(
            self.curves,
            self.update_interval,
            directory / "tuning.png",
            title=self.name,
            solution=self.solution,
            measured=self.measured,
        )
        return directory / TUNED_FILE


def tune(
    preset: str | Callable[..., Any],
    *,
    algo: str | None = None,
    protocol: str | None = None,
    seconds: float = SECONDS,
    curves: Curves | Path | str | None = None,
    cores: int | None = None,
    output: Path | str | None = None,
    say: Callable[[str], None] | None = None,
    **overrides: object,
) -> Tuning:
    """Finds the fastest allocation of this machine's cores, or of one whose curves are given.

    Args:
        preset: As for :func:`rollmill.train`.
        algo: Likewise.
        protocol: Likewise.
        seconds: For starting and measuring candidates. The preset's own allocation comes first and in addition, and one
            candidate is tried, whatever that takes.
        curves: Measured throughput of both sides, or a file of it: nothing is measured then.
        cores: M; by default this machine's, or the curves' own.
        output: A directory for ``tuned.json``, the curves, the report and the picture.
        say: Takes lines about what is going on.
        **overrides: Settings, as for :func:`rollmill.train`; they are kept.

    Raises:
        ValueError: Settings or curves that cannot be used.
        ProcessFailed: The preset's own run failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM came.
    """
    begun = time.monotonic()
    if output is not None:
        _check_can_be_written(overrides)
    if not isinstance(preset, str):
        preset = register_factory(preset)
    config = make_config(preset, overrides, algo=algo, protocol=protocol).resolved()
    if cores is not None and cores < 1:
        raise CurveError(f"cores={cores}: give a whole number of at least 1.")
    if curves is not None:
        given = curves if isinstance(curves, Curves) else Curves.read(curves, cores=cores)
        tuning = _by_curves(config, preset, overrides, given, begun)
    else:
        tuner = _Tuner(config, preset, overrides, cores or usable_cores(), algo, protocol, say or (lambda _: None))
        with sigterm_interrupts():
            tuning = tuner.run(begun, seconds)
    if output is not None:
        tuning.write(output)
    return tuning


def _check_can_be_written(overrides: dict[str, object]) -> None:
    try:
        json.dumps(overrides)
    except (TypeError, ValueError) as error:
        raise SettingsFileError(
            f"a setting cannot be written to {TUNED_FILE} ({error}): leave output out, and train with tuning.settings."
        ) from error


def _by_curves(config: Config, name: str, overrides: dict[str, object], curves: Curves, begun: float) -> Tuning:
    """Equation 5 on the given curves; how the actors' cores are divided is not in them."""
    workload = workload_of(config, None)
    space = space_of(config, workload, overrides, curves.cores)
    preset, interval = space.preset, workload.update_interval
    if curves.cores >= 2:
        solution = whole_cores(curves.actors, curves.learners, update_interval=interval, cores=curves.cores)
    else:
        solution = balance(curves.actors, curves.learners, update_interval=interval, cores=curves.cores)
    policy_workers = preset.policy_workers
    workers = max(1, int(solution.actor_cores) - policy_workers) if solution.actor_cores > 2 else 1
    if len(space.rollout_workers) == 1:
        workers = preset.rollout_workers
    size, num_envs = preset.envs_per_group, preset.num_envs
    if len(space.envs_per_group) > 1:
        # Two groups on each worker: double buffering.
        wanted = max(1, num_envs // (2 * workers))
        size = max(n for n in range(1, wanted + 1) if num_envs % n == 0)
    if not space.num_envs:
        num_envs = max(num_envs, 2 * workers * size)
    workers = min(workers, num_envs // size)
    learner_cores = max(1, round(solution.learner_cores)) if len(space.learner_cores) > 1 else preset.learner_cores
    chosen = Allocation(workers, policy_workers, learner_cores, num_envs, size)
    more_a = balance(_faster(curves, actors=1.25).actors, curves.learners, update_interval=interval, cores=curves.cores)
    more_l = balance(
        curves.actors, _faster(curves, learners=1.25).learners, update_interval=interval, cores=curves.cores
    )
    at_best = balance(curves.actors, curves.learners, update_interval=interval, cores=curves.cores)
    limits = {
        "actors": "collecting is the limit: learning waits for it",
        "learners": "learning is the limit: collecting waits for it",
        "both": "both sides are always busy: the cores are the limit",
    }
    return Tuning(
        settings=under(overrides, settings_of(chosen, config)),
        allocation=chosen,
        preset=preset,
        steps_per_second=solution.steps_per_second,
        gain=None,
        limit=limits[solution.limited_by],
        changes=(
            Change("collecting a quarter faster", more_a.steps_per_second / at_best.steps_per_second - 1),
            Change("learning a quarter faster", more_l.steps_per_second / at_best.steps_per_second - 1),
        ),
        curves=curves,
        solution=solution,
        update_interval=interval,
        costs=None,
        tried=(),
        measured=(),
        seconds=time.monotonic() - begun,
        name=name,
    )


def _faster(curves: Curves, *, actors: float = 1.0, learners: float = 1.0) -> Curves:
    def scaled(curve: Any, factor: float) -> Any:
        return type(curve)(curve.cores, tuple(rate * factor for rate in curve.rates))

    return Curves(cores=curves.cores, actors=scaled(curves.actors, actors), learners=scaled(curves.learners, learners))


@dataclass
class _Tried:
    """A trial that was started.

    Attributes:
        allocation: Its.
        trial: Held still.
        turns: What it has shown.
        ratios: Its speed over the preset's, round by round.
    """

    allocation: Allocation
    trial: Trial
    turns: list[Slice] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def standard_error(self) -> float:
        """Of the score, roughly."""
        return stdev(self.ratios) / len(self.ratios) ** 0.5 if len(self.ratios) > 1 else float("inf")

    @property
    def score(self) -> float:
        """Over the preset's."""
        return median(self.ratios) if self.ratios else 0.0


class _Tuner:
    """Measures on this machine.

    Args:
        config: Resolved.
        name: The preset's.
        overrides: The user's settings.
        cores: M.
        algo: The user's.
        protocol: The user's.
        say: Takes lines about what is going on.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        overrides: dict[str, object],
        cores: int,
        algo: str | None,
        protocol: str | None,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._name, self._overrides, self._cores = config, name, overrides, cores
        self._algo, self._protocol, self._say = algo, protocol, say
        self._notes: list[str] = []

    def run(self, begun: float, seconds: float) -> Tuning:
        """Profiles, searches, tries."""
        with Supervisor() as supervisor:
            probed = probe(supervisor, self._config)
            workload = workload_of(self._config, probed)
            one_learner = resolve_device(self._config.learner.device).type != "cpu" or (
                self._config.in_replay and probed.shared is None
            )
            space = space_of(self._config, workload, self._overrides, self._cores, one_learner=one_learner)
            self._say("timing the network")
            times = self._time_network(supervisor, probed, space)
        with ExitStack() as stack:
            reference = self._start(stack, space.preset, probed)
            start_s = time.monotonic() - begun
            deadline = time.monotonic() + seconds
            reference.turns.append(reference.trial.turn(_PROFILE_S))
            tried = [reference]
            costs = self._costs(tried, workload, times)
            self._say(limit_sentence(costs, workload, space.preset, self._cores))
            if self._cores != usable_cores():
                # Of a machine that is not here nothing can be tried.
                return self._result(begun, workload, space, costs, tried, search(costs, workload, space))
            while len(tried) < _MOST_TRIALS:
                left = deadline - time.monotonic()
                is_late = start_s + 4 * _TURN_S * (len(tried) + 1) > left or left < (1 - _STARTING_SHARE) * seconds
                if is_late and len(tried) > 1:
                    break
                following = self._following(costs, workload, space, tried)
                if following is None:
                    break
                started_at = time.monotonic()
                try:
                    tried.append(self._start(stack, following, probed))
                except (ConfigError, NotEnoughMemory) as error:
                    self._say(f"not tried: {error}")
                    break
                tried[-1].turns.append(tried[-1].trial.turn(_PROFILE_S))
                start_s = time.monotonic() - started_at
                costs = self._costs(tried, workload, times)
            self._take_turns(tried, deadline, at_most=deadline + 0.5 * seconds)
            best = max(tried, key=lambda t: t.score)
            if best.score < _CLEARLY:
                best = reference
            costs = self._costs(tried, workload, times)
            speed = self._demand(best, workload).steps_per_second
        return self._result(begun, workload, space, costs, tried, Candidate(best.allocation, speed), best.score)

    def _time_network(self, supervisor: Supervisor, probed: Probed, space: Space) -> NetworkTimes:
        wanted = sorted({1, *space.learner_cores})
        if self._config.in_replay:
            own = self._config.learner.threads
            learners = sorted({1, *(cores // own for cores in space.learner_cores)})
            return network_times(supervisor, self._config, probed, sorted({1, own}), learners)
        # More threads than there are cores would only stand in each other's way.
        here = [n for n in (1, 2, 4, 8, 16, 32) if n <= min(usable_cores(), wanted[-1])]
        times = network_times(supervisor, self._config, probed, here)
        if wanted[-1] <= here[-1] or len(space.learner_cores) == 1:
            return times
        law = "by Amdahl's law" if here[-1] > 1 else "not known, so none is expected"
        self._notes.append(f"what more than {here[-1]} thread(s) gain the learner is {law}: they cannot be timed here")
        return times._replace(speedup=by_amdahl(times.speedup, wanted))

    def _config_of(self, allocation: Allocation) -> Config:
        settings = under(self._overrides, settings_of(allocation, self._config))
        return make_config(self._name, settings, algo=self._algo, protocol=self._protocol).resolved()

    def _start(self, stack: ExitStack, allocation: Allocation, probed: Probed) -> _Tried:
        self._say(f"trying {describe_allocation(allocation)}")
        return _Tried(allocation, stack.enter_context(Trial(self._config_of(allocation), probed)))

    def _costs(self, tried: list[_Tried], workload: Workload, times: NetworkTimes) -> StageCosts:
        return fit_costs([self._demand(each, workload) for each in tried], times)

    def _demand(self, tried: _Tried, workload: Workload) -> Demand:
        return demand_of(tried.allocation, workload, tried.turns, usable_cores())

    def _following(self, costs: StageCosts, workload: Workload, space: Space, tried: list[_Tried]) -> Allocation | None:
        """The most promising allocation that has not been tried, nor one like it; None if none is promising."""
        candidates = simulated(costs, workload, rank(costs, workload, space, count=_FINALISTS), self._cores)
        expected = {c.allocation: c.steps_per_second for c in candidates}
        for each in tried:
            if each.allocation not in expected:
                (one,) = simulated(costs, workload, [Candidate(each.allocation, 0.0)], self._cores)
                expected[each.allocation] = one.steps_per_second
        best_tried = max(expected[each.allocation] for each in tried)
        fresh = [c for c in candidates if all(distance(c.allocation, each.allocation) >= _DIFFERENT for each in tried)]
        if not fresh:
            return None
        promising = choose(fresh, space.preset)
        return promising.allocation if promising.steps_per_second > 0.97 * best_tried else None

    def _take_turns(self, tried: list[_Tried], deadline: float, *, at_most: float) -> None:
        """Rounds of turns, the preset's own in each; the slower half leaves after every second one.

        Where turns differ much, because others use the cores, there are some more than the deadline allows.
        """

        def goes_on() -> bool:
            end = time.monotonic() + (len(others) + 1) * (_TURN_S + 0.3)
            is_unclear = max(each.standard_error for each in others) > _UNCLEAR
            return rounds < _FEWEST_ROUNDS or end < (at_most if is_unclear else deadline)

        reference, others = tried[0], tried[1:]
        rounds = 0
        reference.ratios.append(1.0)
        while others and goes_on():
            order = [reference, *others] if rounds % 2 == 0 else [*reversed(others), reference]
            speeds: dict[int, float] = {}
            for each in order:
                turn = each.trial.turn(_TURN_S)
                each.turns.append(turn)
                speeds[id(each)] = turn.steps_per_second
            for each in others:
                each.ratios.append(speeds[id(each)] / speeds[id(reference)])
            rounds += 1
            if rounds % 2 == 0 and len(others) > 1:
                others = sorted(others, key=lambda each: -each.score)[: -(-len(others) // 2)]

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
        curves = curves_of(costs, workload, best.allocation, self._cores)
        return Tuning(
            settings=under(self._overrides, settings_of(best.allocation, self._config)),
            allocation=best.allocation,
            preset=space.preset,
            steps_per_second=best.steps_per_second,
            gain=gain,
            limit=limit_sentence(costs, workload, best.allocation, self._cores),
            changes=tuple(changes(costs, workload, best.allocation, self._cores, space)),
            curves=curves,
            solution=balance(
                curves.actors, curves.learners, update_interval=workload.update_interval, cores=self._cores
            ),
            update_interval=workload.update_interval,
            costs=costs,
            tried=tuple(Candidate(each.allocation, each.score) for each in tried if each.ratios),
            measured=tuple((d.actor_cores, d.learner_cores, d.steps_per_second) for d in demands),
            seconds=time.monotonic() - begun,
            name=self._name,
            notes=tuple(self._notes),
        )
