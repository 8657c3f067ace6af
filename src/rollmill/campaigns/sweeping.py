"""``rollmill sweep``: search settings by many runs.

1. The preset's own values are the first trial, where they lie in the space: what the others are compared with.
2. Optuna proposes the settings of the next trials (:mod:`.study`).
3. Each trial is one run for each seed, made by a queue (:mod:`.run_queue`). A pruner may end a trial early, by the
   learning curve of its first seed.
4. A page shows the result (:mod:`.sweep_page`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.api import check_main_guard, make_config, preset_name
from rollmill.campaigns.driver import run_all
from rollmill.campaigns.follow import RunFollower, RunLength, curve_of_metric, known_until, value_at
from rollmill.campaigns.jobs import ENDED, Campaign, CampaignError, Job, Record, job_name, open_campaign, trial_run_name
from rollmill.campaigns.program import with_own_code
from rollmill.campaigns.run_queue import RunningJob
from rollmill.campaigns.space import Dimension, contains, grid_of, parse_space, read_space
from rollmill.campaigns.study import DIRECTIONS, POINTS, PRUNERS, SAMPLERS, Study, Trial, check_installed
from rollmill.campaigns.sweep_metric import check_has_metric, check_metric
from rollmill.campaigns.sweep_result import SweepResult
from rollmill.extras import check_extra
from rollmill.settings.config import Config
from rollmill.settings.idle import check_evaluated
from rollmill.settings.options import encode_settings, full_keys, quote_entries
from rollmill.settings.value_checks import check_choice, check_integer

TRIALS = 20
METRIC = "episode_return"


def sweep(
    preset: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
    space: Mapping[str, Any] | Path | str,
    *,
    trials: int = TRIALS,
    jobs: int = 1,
    algo: str | None = None,
    protocol: str | None = None,
    sampler: str = "tpe",
    pruner: str = "median",
    metric: str = METRIC,
    direction: str = "maximize",
    seeds: int = 1,
    output: Path | str | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
    **overrides: object,
) -> SweepResult:
    """Search settings: train with many, and compare the results.

    Called again with the same arguments, it continues where it was interrupted; ``trials`` and ``jobs`` may change.
    With another ``metric`` or ``direction``, finished runs are read again, and pruned ones continue.

    Args:
        preset: As for :func:`rollmill.train`.
        space: Setting -> what is searched, such as ``{"learner.learning_rate": {"low": 1e-5, "high": 1e-2, "log":
            True}}`` or ``{"learner.minibatches": {"choices": [2, 4]}}``; or the path of a TOML file of such tables.
        trials: How many different points are tried, failed ones included; at most as many as the space has.
        jobs: Runs at the same time, each with its share of the cores.
        algo: As for :func:`rollmill.train`.
        protocol: Likewise.
        sampler: "tpe", "random", "cmaes" or "grid".
        pruner: "median" or "hyperband" end trials early that look worse than others; "none" ends none.
        metric: A key of ``metrics.jsonl``, whose last value counts, or ``evaluation/KEY`` of ``evaluations.jsonl``,
            with several policies ``policy/NAME/evaluation/KEY``.
        direction: "maximize" or "minimize".
        seeds: Runs of each trial, with the seeds ``seed``, ``seed + 1``, ...; their mean counts.
        output: Folder of everything; ``runs/sweep_PRESET`` by default.
        retry_failed: Try the points of failed trials again.
        quiet: Show no progress.
        **overrides: Settings that all trials share, as for :func:`rollmill.train`. Of a setting that is also in the
            space, it is the value to start from.

    Raises:
        ValueError: Invalid settings, an invalid space, a folder with another sweep, or a first run that has ended
            without the metric.
        ImportError: Optuna is not installed.
        MainGuardError: See :func:`rollmill.train`.
        KeyboardInterrupt: A second Ctrl-C.
    """
    check_main_guard("sweep()")
    for name, value in (("trials", trials), ("jobs", jobs), ("seeds", seeds)):
        check_integer(name, value, 1)
    for name, chosen, allowed in (
        ("sampler", sampler, SAMPLERS),
        ("pruner", pruner, PRUNERS),
        ("direction", direction, DIRECTIONS),
    ):
        check_choice(name, chosen, allowed)
    check_installed()
    check_extra("plots", "the page of a sweep")
    fixed = with_own_code(preset, overrides, algo=algo, protocol=protocol)
    name = preset_name(preset)
    plan = _plan(name, space, fixed, algo=algo, protocol=protocol, metric=metric)
    if sampler == "grid":
        grid_of(plan.space)  # Refused before anything is written.
    folder = Path(output) if output is not None else Path("runs") / job_name(f"sweep_{name}")
    definition = {
        "preset": name,
        "algo": algo,
        "protocol": protocol,
        "settings": plan.fixed,
        "seed": plan.config.seed,
        "start": plan.start,
        "space": {dimension.key: dimension.describe() for dimension in plan.space},
        "metric": metric,
        "direction": direction,
        "seeds": seeds,
        "sampler": sampler,
        "pruner": pruner,
    }
    may_correct = ("settings", "start") if retry_failed else ()
    with open_campaign(folder, "sweep", definition, ("metric", "direction"), may_correct) as campaign:
        if campaign.is_changed:
            done = [name for name, record in campaign.records.items() if record.status == "done"]
            check_has_metric([campaign.run_dir(name) for name in done], metric)
            campaign.save()
            if not quiet:
                print(_describe_change(metric, direction, len(done)), file=sys.stderr, flush=True)
        study = Study(
            folder,
            plan.space,
            sampler=sampler,
            pruner=pruner,
            metric=metric,
            direction=direction,
            seed=plan.config.seed,
            jobs=jobs,
        )
        if not study.trials and plan.start is not None and sampler != "grid":
            study.propose(plan.start)
        elif plan.outside and sampler != "grid" and not quiet:
            print(
                "no trial has the values of the preset and of this command, because the space does not contain "
                f"{', '.join(plan.outside)}; to have a trial to compare with, give values that it contains "
                "(--KEY VALUE), in a new folder (--output)",
                file=sys.stderr,
                flush=True,
            )
        if retry_failed:
            study.retry_failed()
        if study.most_trials is not None and study.most_trials < trials:
            trials = study.most_trials
            if not quiet:
                print(
                    f"the sweep ends after {trials} trial(s), because the space has no more different points",
                    file=sys.stderr,
                    flush=True,
                )
        source = _Trials(campaign, study, plan, trials=trials, seeds=seeds, metric=metric, retry_failed=retry_failed)
        is_complete = run_all(campaign, source, jobs=jobs, title=f"rollmill sweep {name}", quiet=quiet)
        found = tuple(study.trials)
        start = next((trial for trial in found if trial.settings == plan.start), None)
        result = SweepResult(
            folder=folder,
            preset=name,
            algo=algo,
            protocol=protocol,
            fixed=plan.fixed,
            space=plan.space,
            metric=metric,
            direction=direction,
            trials=found,
            start=start,
            run_dirs={trial.number: source.run_dirs(trial.number) for trial in found},
            is_complete=is_complete,
        )
        if result.best is None:
            return result
        from rollmill.campaigns.sweep_page import write_sweep_page  # It draws with matplotlib.

        return replace(result, page=write_sweep_page(result))


@dataclass(frozen=True)
class _Plan:
    """What a sweep searches.

    Attributes:
        preset: Its name.
        config: With the fixed settings.
        space: What varies.
        fixed: The settings that all trials share, as JSON data by complete key.
        start: The values of the configuration in the space; None if one lies outside.
        outside: Those that lie outside, as ``setting=value``.
        algo: The algorithm.
        protocol: The protocol.
    """

    preset: str
    config: Config
    space: tuple[Dimension, ...]
    fixed: dict[str, Any]
    start: dict[str, Any] | None
    outside: tuple[str, ...]
    algo: str | None
    protocol: str | None

    def settings(self, trial: Trial, seed: int) -> dict[str, Any]:
        """The settings of a run."""
        return {**quote_entries(Config, {**self.fixed, **trial.settings}), "seed": seed}


def _plan(
    preset: str,
    space: Mapping[str, Any] | Path | str,
    overrides: Mapping[str, object],
    *,
    algo: str | None,
    protocol: str | None,
    metric: str,
) -> _Plan:
    def config_with(more: Mapping[str, object]) -> Config:
        # A setting given in both is replaced, however its key is written.
        entries, others = _apart({**full_keys(base, overrides), **more})
        given = {**quote_entries(Config, entries), **others} if more else overrides
        found = make_config(preset, given, algo=algo, protocol=protocol)
        found.resolved()
        return found

    base = make_config(preset, overrides, algo=algo, protocol=protocol)
    config = config_with({})
    check_evaluated(full_keys(config, overrides), config)
    tables = space if isinstance(space, Mapping) else read_space(space)
    dimensions = parse_space(tables, config, config_with)
    searched = {dimension.key for dimension in dimensions}
    if "seed" in searched:
        raise CampaignError(
            "the space has seed, which is no setting to search: give seeds for several runs of a trial."
        )
    values = _values(config, searched)
    outside = [dimension for dimension in dimensions if not contains(dimension, values.get(dimension.key))]
    given = full_keys(config, overrides)
    for dimension in outside:
        if dimension.key in given:
            raise CampaignError(
                f"{dimension.key}={given[dimension.key]!r} is the value to start from, outside of the space "
                f"({dimension.describe()}): give one in it, or omit it."
            )
    fixed = {key: value for key, value in encode_settings(config, overrides).items() if key not in searched}
    fixed.pop("seed", None)
    entries, others = _apart(fixed, searched)
    fixed = {key: value for key, value in {**entries, **others}.items() if key not in searched}
    check_metric(metric, config)
    return _Plan(
        preset=preset,
        config=config,
        space=dimensions,
        fixed=fixed,
        start=None if outside else {dimension.key: values[dimension.key] for dimension in dimensions},
        outside=tuple(
            f"{key}={values[key]!r}" if key in values else f"{key} (as the environment has it)"
            for key in (dimension.key for dimension in outside)
        ),
        algo=algo,
        protocol=protocol,
    )


def _apart(settings: Mapping[str, Any], varied: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide settings into those of entries, of mappings of which single entries are set or vary, and the others."""
    entries: dict[str, Any] = {}
    others = dict(settings)
    for key in [key for key in settings if any(name.startswith(f"{key}.") for name in (*settings, *varied))]:
        whole = others.pop(key)
        if isinstance(whole, str):  # A word of a command line.
            whole = json.loads(whole)
        entries |= {f"{key}.{name}": value for name, value in whole.items()}
    return entries, others


def _values(config: Config, keys: Collection[str]) -> dict[str, Any]:
    """The values of complete keys as JSON data; of an entry that its mapping lacks, there is none."""
    found: dict[str, Any] = encode_settings(config, keys)
    for mapping in [name for name in found if name not in keys]:
        found |= {f"{mapping}.{entry}": value for entry, value in found.pop(mapping).items()}
    return {key: value for key, value in found.items() if key in keys}


def _describe_change(metric: str, direction: str, num_done: int) -> str:
    return (
        f"the sweep continues with metric={metric}, direction={direction}: {num_done} finished run(s) are read again, "
        "and pruned ones continue"
    )


class _Trials:
    """The runs of a sweep, as the queue asks for them."""

    def __init__(
        self,
        campaign: Campaign,
        study: Study,
        plan: _Plan,
        *,
        trials: int,
        seeds: int,
        metric: str,
        retry_failed: bool = False,
    ) -> None:
        self._campaign = campaign
        self._study = study
        self._plan = plan
        self._trials = trials
        self._seeds = seeds
        self._metric = metric
        self._is_metric_known = any(record.status == "done" for record in campaign.records.values())
        self._queued: list[Job] = []
        self._trial_of: dict[str, Trial] = {}
        for trial in study.open_trials:  # Of a session that was interrupted.
            self._begin(trial, retry_failed=retry_failed)

    @property
    def total(self) -> int:
        trials = self._study.trials
        ended = [trial.number for trial in trials if trial.state != "running"]
        # Where one seed of a trial was pruned or has failed, others have not begun.
        runs = [self._campaign.records.get(trial_run_name(n, seed)) for n in ended for seed in range(self._seeds)]
        of_ended = sum(record is not None and record.status in ENDED for record in runs)
        return of_ended + max(0, self._trials - len(ended)) * self._seeds

    @property
    def names(self) -> Collection[str]:
        return [trial_run_name(trial.number, seed) for trial in self._study.trials for seed in range(self._seeds)]

    def take(self) -> Job | None:
        while not self._queued:
            if len(self._study.trials) >= self._trials:
                return None
            self._begin(self._study.ask())
        return self._queued.pop(0)

    def length(self, job: Job) -> RunLength:
        config, settings = self._plan.config, job.settings
        steps = settings.get("total_steps", config.total_steps)
        return RunLength(int(steps), settings.get("max_seconds", config.max_seconds))

    def is_hopeless(self, running: RunningJob) -> bool:
        trial = self._trial_of[running.job.name]
        if not self._study.is_open(trial.number):
            return True  # Another seed of it was pruned, or has failed.
        if running.job.name != trial_run_name(trial.number, 0):  # The pruner goes by the first seed.
            return False
        self._report(trial.number, running.follower, self.length(running.job))
        return self._study.is_hopeless(trial.number)

    def ended(self, record: Record) -> None:
        if record.status == "done" and not self._is_metric_known:
            # Before the trial ends in the study, so that it can be ended by another metric.
            check_has_metric([self._campaign.run_dir(record.job.name)], self._metric)
            self._is_metric_known = True
        trial = self._trial_of[record.job.name]
        self._settle(trial.number)

    def run_dirs(self, number: int) -> tuple[Path, ...]:
        """Directories of the runs of a trial that have begun."""
        paths = (self._campaign.run_dir(trial_run_name(number, seed)) for seed in range(self._seeds))
        return tuple(path for path in paths if path.exists())

    def _begin(self, trial: Trial, *, retry_failed: bool = False) -> None:
        jobs = [
            Job(
                name=trial_run_name(trial.number, place),
                preset=self._plan.preset,
                settings=self._plan.settings(trial, self._plan.config.seed + place),
                algo=self._plan.algo,
                protocol=self._plan.protocol,
            )
            for place in range(self._seeds)
        ]
        self._campaign.add(jobs, retry_failed=retry_failed)
        self._trial_of.update((job.name, trial) for job in jobs)
        if not self._settle(trial.number):
            records = self._campaign.records
            self._queued += [job for job in jobs if records[job.name].status not in ENDED]

    def _settle(self, number: int) -> bool:
        """End a trial whose runs have ended; returns whether it has."""
        if not self._study.is_open(number):
            return True
        records = [self._campaign.records[trial_run_name(number, place)] for place in range(self._seeds)]
        names = {record.job.name for record in records}
        if failed := [record for record in records if record.status == "failed"]:
            self._drop(names)
            self._study.fail(number, failed[0].error)
        elif any(record.status == "pruned" for record in records):
            self._drop(names)
            self._study.prune(number)
        elif all(record.status == "done" for record in records):
            curves = [self._curve(record.job.name) for record in records]
            first = RunFollower(self._campaign.run_dir(records[0].job.name))
            first.update()
            self._report(number, first, self.length(records[0].job), has_ended=True)
            if empty := [record.job.name for record, curve in zip(records, curves, strict=True) if not curve]:
                error = f"{empty[0]} has no value of {self._metric}; if no episode ended, give more steps"
                self._study.fail(number, error)
            else:
                self._study.complete(number, [curve[-1][1] for curve in curves])
        else:
            return False
        return True

    def _drop(self, names: set[str]) -> None:
        """Take back the other runs of a trial."""
        self._queued = [job for job in self._queued if job.name not in names]

    def _report(self, number: int, follower: RunFollower, length: RunLength, *, has_ended: bool = False) -> None:
        curve = follower.curve(self._metric)
        known = follower.agent_steps if has_ended else known_until(self._metric, curve, follower.agent_steps)
        by_share = [(follower.share(length, steps), value) for steps, value in curve]
        for point in range(1, math.floor(POINTS * follower.share(length, known)) + 1):
            value = value_at(by_share, point / POINTS)
            if value is not None:
                self._study.report(number, point, value)

    def _curve(self, name: str) -> Sequence[tuple[int, float]]:
        follower = RunFollower(self._campaign.run_dir(name))
        follower.update()
        return curve_of_metric(self._campaign.run_dir(name), follower.rows, self._metric)
