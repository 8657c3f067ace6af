"""``rollmill suite``: a run for each method, environment and seed, and the report of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.api import check_main_guard, make_config, preset_name
from rollmill.campaigns.driver import run_all
from rollmill.campaigns.follow import RunLength
from rollmill.campaigns.jobs import ENDED, Campaign, CampaignError, Job, Record, job_name, open_campaign
from rollmill.campaigns.program import with_own_code
from rollmill.campaigns.run_queue import RunningJob
from rollmill.campaigns.suite_file import Method, Suite, find_suite
from rollmill.envs.config import EnvConfig
from rollmill.extras import check_extra
from rollmill.settings.config import Config
from rollmill.settings.idle import check_evaluated
from rollmill.settings.options import encode_settings, full_keys
from rollmill.settings.value_checks import check_integer

REPORT = "report"
_UNNAMED = "preset"


@dataclass(frozen=True)
class SuiteResult:
    """The result of a suite, complete or interrupted.

    Attributes:
        folder: Its folder.
        name: The suite's name.
        records: Each run: what it is, and how it ended.
        run_dirs: The directory of each complete run, by name.
        methods: The method of each run, by name.
        is_complete: Whether all runs have ended.
        page: The report's page; None if no run is complete.
        figures: The content of its ``report.json``.
    """

    folder: Path
    name: str
    records: tuple[Record, ...]
    run_dirs: Mapping[str, Path]
    methods: Mapping[str, str]
    is_complete: bool
    page: Path | None = None
    figures: Mapping[str, Any] | None = None

    @property
    def failed(self) -> list[Record]:
        """The runs that have failed."""
        return [record for record in self.records if record.status == "failed"]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {
            "folder": str(self.folder),
            "page": None if self.page is None else str(self.page),
            "suite": self.name,
            "is_complete": self.is_complete,
            "runs": [
                {
                    "name": record.job.name,
                    "env": record.job.preset,
                    "method": self.methods[record.job.name],
                    "seed": record.job.settings["seed"],
                    "status": record.status,
                    "seconds": record.seconds,
                    "error": record.error,
                    "directory": str(path) if (path := self.run_dirs.get(record.job.name)) is not None else None,
                }
                for record in self.records
            ],
        }

    def describe(self) -> str:
        """The result in sentences."""
        done = sum(record.status == "done" for record in self.records)
        lines = [f"{done} of {len(self.records)} runs done, {len(self.failed)} failed"]
        lines += [f"{record.job.name}: {record.error.splitlines()[0]}" for record in self.failed if record.error]
        if self.failed:
            lines.append(f"{self.folder}/jobs/NAME.log has what each printed; --retry-failed tries them again")
        return "\n".join(lines)


def suite(
    name: str | Sequence[str | Callable[..., Any]],
    *,
    algo: str | None = None,
    protocol: str | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    envs: Sequence[str] | None = None,
    output: Path | str | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
    **overrides: object,
) -> SuiteResult:
    """Train in each environment of a suite, with several seeds, and compare the runs on one page.

    Called again with the same arguments, it continues where it was interrupted; ``seeds`` may grow. Not to be confused
    with ``suite/NAME`` as what to train, which are the tasks that one run learns together.

    Args:
        name: A built-in suite, the path of a TOML file (see :mod:`rollmill.campaigns.suite_file`), or environments,
            each as for :func:`rollmill.train`.
        algo: As for :func:`rollmill.train`, instead of the suite's.
        protocol: Likewise.
        seeds: Runs in each environment, with the seeds ``seed``, ``seed + 1``, ...; the suite's, or one, by default.
        jobs: Runs at the same time, each with its share of the cores.
        envs: Only these environments of the suite.
        output: Folder of everything; ``runs/suite_NAME`` by default.
        retry_failed: Continue runs that have failed.
        quiet: Show no progress.
        **overrides: Settings of all runs, as for :func:`rollmill.train`, instead of the suite's.

    Raises:
        ValueError: An unknown suite, invalid settings, or a folder with another suite.
        MissingExtra: The package of an environment is not installed.
        MainGuardError: See :func:`rollmill.train`.
        KeyboardInterrupt: A second Ctrl-C.
    """
    check_main_guard("suite()")
    check_integer("jobs", jobs, 1)
    check_extra("plots", "the report of a suite")
    found = find_suite(name) if isinstance(name, str) else Suite("environments", tuple(map(preset_name, name)))
    if not found.environments:
        raise CampaignError("the list of environments is empty: name at least one.")
    found = _chosen(found, envs)
    if seeds is not None:
        check_integer("seeds", seeds, 1)
    planned = _planned(found, algo, protocol, seeds or found.seeds or 1, overrides)
    folder = Path(output) if output is not None else Path("runs") / job_name(f"suite_{found.name}")
    with open_campaign(folder, "suite", {"suite": found.name}) as campaign:
        campaign.add((run.job for run in planned), retry_failed=retry_failed)
        source = _Runs(campaign, planned)
        is_complete = run_all(campaign, source, jobs=jobs, title=f"rollmill suite {found.name}", quiet=quiet)
        records = tuple(campaign.records[run.job.name] for run in planned)
        done = [record.job.name for record in records if record.status == "done"]
        result = SuiteResult(
            folder=folder,
            name=found.name,
            records=records,
            run_dirs={name: campaign.run_dir(name) for name in done},
            methods={run.job.name: run.label for run in planned},
            is_complete=is_complete,
        )
        return _reported(result) if is_complete and done else result


@dataclass(frozen=True)
class _PlannedRun:
    """A run, the name of its method, and how long it is."""

    job: Job
    label: str
    length: RunLength


class _Runs:
    """The runs of a suite, as the queue asks for them: in their order."""

    def __init__(self, campaign: Campaign, planned: Sequence[_PlannedRun]) -> None:
        self._left = [run.job for run in planned if campaign.records[run.job.name].status not in ENDED]
        self._lengths = {run.job.name: run.length for run in planned}

    @property
    def total(self) -> int:
        return len(self._lengths)

    @property
    def names(self) -> Collection[str]:
        return self._lengths.keys()

    def take(self) -> Job | None:
        return self._left.pop(0) if self._left else None

    def length(self, job: Job) -> RunLength:
        return self._lengths[job.name]

    def is_hopeless(self, running: RunningJob) -> bool:
        return False

    def ended(self, record: Record) -> None:
        pass


def _chosen(suite: Suite, envs: Sequence[str] | None) -> Suite:
    """The suite with some of its environments."""
    if envs is None:
        return suite
    if unknown := [env for env in envs if env not in suite.environments]:
        raise CampaignError(
            f"envs: the suite {suite.name} has no {unknown[0]!r}; it has {', '.join(suite.environments)}."
        )
    if not envs:
        raise CampaignError("envs is empty: name at least one environment of the suite, or omit it for all.")
    return replace(suite, environments=tuple(dict.fromkeys(envs)))


def _planned(
    suite: Suite, algo: str | None, protocol: str | None, seeds: int, overrides: Mapping[str, object]
) -> list[_PlannedRun]:
    """The runs: for each seed all environments, so that an interrupted suite has comparable ones."""
    shape = Config(env=EnvConfig(name="any"))
    given = full_keys(shape, overrides)
    if "env.name" in given:
        raise CampaignError(
            f"env.name={given['env.name']}: a suite says what is trained; name environments of it with envs (--envs)."
        )
    configured: list[tuple[Method, str, str, str | None, str | None, Config, dict[str, Any]]] = []
    for method in suite.methods:
        chosen_algo, chosen_protocol = algo or method.algo, protocol or method.protocol
        label = method.name or chosen_algo or _UNNAMED
        for env in suite.environments:
            layers = (suite.settings, suite.settings_of.get(env, {}), method.settings)
            merged = {key: value for layer in layers for key, value in full_keys(shape, layer).items()}
            merged = with_own_code(env, {**merged, **given}, algo=chosen_algo, protocol=chosen_protocol)
            config = make_config(env, merged, algo=chosen_algo, protocol=chosen_protocol)
            config.resolved()
            check_evaluated(full_keys(shape, merged), config)
            settings = encode_settings(config, merged)
            configured.append((method, label, env, chosen_algo, chosen_protocol, config, settings))
    trained: dict[tuple[str, str], str] = {}
    for _, label, env, _, _, config, _ in configured:
        if (other := trained.setdefault((label, config.env.name), env)) != env:
            raise CampaignError(
                f"the suite {suite.name} has {other!r} and {env!r}, which are the same: name one of them."
            )
    planned = []
    for place in range(seeds):
        for method, label, env, chosen_algo, chosen_protocol, config, settings in configured:
            seed = config.seed + place
            name = job_name(env, method.name, f"seed_{seed}")
            job = Job(name, env, {**settings, "seed": seed}, chosen_algo, chosen_protocol, label)
            planned.append(_PlannedRun(job, label, RunLength(config.total_steps, config.max_seconds)))
    names = [run.job.name for run in planned]
    if twice := [name for name in names if names.count(name) > 1]:
        raise CampaignError(
            f"the suite {suite.name} has two runs that are called {twice[0]}: name methods and environments so "
            "that they differ in letters and digits."
        )
    return planned


def _reported(result: SuiteResult) -> SuiteResult:
    """The result with the report of its complete runs."""
    from rollmill.comparing.page import write_report  # It draws with matplotlib.

    runs = [f"{result.methods[name]}={path}" for name, path in result.run_dirs.items()]
    notes = [
        f"{record.job.name} has failed and is not in the report: {record.error.splitlines()[0]}"
        for record in result.failed
    ]
    title = f"Suite {result.name}: {len(runs)} runs"
    report = write_report(runs, result.folder / REPORT, title=title, notes=notes)
    return replace(result, page=report.page, figures=report.figures)
