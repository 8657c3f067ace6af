"""A run of a campaign, and the campaign's folder with the file that says how far each run is.

::

    FOLDER/
        campaign.json    what the campaign is, and each run's status; replaced atomically
        runs/NAME/       the run directories
        jobs/NAME.json   the settings that a run was started with, signed, for ``rollmill train --settings``
        jobs/NAME.log    what the run printed
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from rollmill.regimes.steps_done import saved_steps
from rollmill.runtime import sweep
from rollmill.settings.run_config import CONFIG_FILE, load_config
from rollmill.settings.run_directory import RunDirectoryError, for_this_run_alone, make_directory
from rollmill.storage.whole_files import write_whole

STATE_FILE: Final = "campaign.json"
OUTPUT_OPTION: Final = "--output, output"
_FORMAT = 1
_LONGEST_NAME = 120
_TRIAL = re.compile(r"trial_\d{4,}-\d+")

Kind = Literal["suite", "sweep"]
Status = Literal["waiting", "running", "done", "failed", "pruned"]
ENDED: Final = ("done", "failed", "pruned")


class CampaignError(ValueError):
    """A campaign cannot be started or continued as it was asked for."""


class CampaignFailedError(CampaignError):
    """A campaign ended because its runs fail or its files cannot be written, not because of what was asked for."""

    is_usage = False


@dataclass(frozen=True)
class Job:
    """A run to be made.

    Attributes:
        name: Its name in the campaign, which is also that of its directory.
        preset: What is trained.
        settings: Complete key -> JSON data.
        algo: As for ``rollmill train``; None for the preset's.
        protocol: Likewise.
        method: Name of the suite's method, if the suite has several.
    """

    name: str
    preset: str
    settings: Mapping[str, Any]
    algo: str | None = None
    protocol: str | None = None
    method: str = field(default="", compare=False)  # missing in folders of earlier versions


@dataclass(frozen=True)
class Record:
    """How far a run is.

    Attributes:
        job: The run.
        status: "waiting" (not begun, or interrupted), "running", "done", "failed" or "pruned".
        error: Why it failed; empty otherwise.
        seconds: For which it ran, over all sessions; starts and ends included.
    """

    job: Job
    status: Status = "waiting"
    error: str = ""
    seconds: float = 0.0


def job_name(*parts: str) -> str:
    """Make a name of its parts that can be a directory's; a long one is cut before its last part, such as a seed."""
    *front, last = (re.sub(r"[^\w.+-]+", "_", part) for part in parts if part)
    end = f"-{last}" if front else last
    return f"{'-'.join(front)[: max(0, _LONGEST_NAME - len(end))]}{end}"[:_LONGEST_NAME]


class Campaign:
    """The folder of a campaign, held by one process at a time; see :func:`open_campaign`.

    Attributes:
        folder: The folder.
        token: Marks the processes of the campaign's runs, in this and in earlier sessions.
        is_changed: Whether its runs are judged by something else than in the session before, which :meth:`save` makes
            known to the next one.
    """

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        definition: Mapping[str, object],
        may_change: Collection[str] = (),
        may_correct: Collection[str] = (),
    ) -> None:
        self.folder = folder
        self.is_changed = False
        self._may_change, self._may_correct = may_change, may_correct
        self._kind = kind
        self._definition = json.loads(json.dumps(definition))
        self._records: dict[str, Record] = {}
        self.token = uuid.uuid4().hex
        if (folder / STATE_FILE).exists():
            self._read()

    @property
    def records(self) -> Mapping[str, Record]:
        """Name -> record, in the order in which the runs were added."""
        return self._records

    def run_dir(self, name: str) -> Path:
        """Directory of a run."""
        return self.folder / "runs" / name

    def settings_file(self, name: str) -> Path:
        """The file with the settings of a run."""
        return self.folder / "jobs" / f"{name}.json"

    def log_file(self, name: str) -> Path:
        """The file with what a run printed."""
        return self.folder / "jobs" / f"{name}.log"

    def add(self, jobs: Iterable[Job], *, retry_failed: bool = False) -> None:
        """Add runs; those that are there already stay as they are.

        Args:
            jobs: The runs.
            retry_failed: Whether failed ones wait again; they and waiting ones may have other settings if they have no
                checkpoint.

        Raises:
            CampaignError: A run of this name was started with other settings.
        """
        for job in jobs:
            job = _plain(job)
            known = self._records.get(job.name)
            if known is None:
                self._records[job.name] = Record(job)
                continue
            # Of the runs that were ended because the first ones had failed, some wait.
            is_retried = retry_failed and known.status in ("failed", "waiting")
            folder = self.run_dir(job.name)
            is_begun = has_checkpoint(folder) if is_retried else known.status != "waiting" or folder.exists()
            if known.job != job and is_begun:
                raise CampaignError(
                    f"{self.folder} holds the run {job.name} with other settings ({_difference(known.job, job)}): "
                    f"repeat the command that began it, or choose another folder ({OUTPUT_OPTION})."
                )
            retried = replace(known, status="waiting", error="") if is_retried else known
            self._records[job.name] = replace(retried, job=job)
        self.save()

    def update(self, name: str, **changes: Any) -> Record:
        """Change the record of a run, and save."""
        self._records[name] = replace(self._records[name], **changes)
        self.save()
        return self._records[name]

    def save(self) -> None:
        """Write the file.

        Raises:
            CampaignError: It cannot be written.
        """
        content = {
            "format": _FORMAT,
            "kind": self._kind,
            "definition": self._definition,
            "token": self.token,
            "folder": identity_of(self.folder),
            "runs": [asdict(record) for record in self._records.values()],
        }
        path = self.folder / STATE_FILE
        with refused_files(path):
            write_whole(path, json.dumps(content, indent=1).encode() + b"\n", path.with_suffix(".new"))

    def _read(self) -> None:
        path = self.folder / STATE_FILE
        try:
            content = json.loads(path.read_bytes())
            kind, definition, token = content["kind"], content["definition"], str(content["token"])
            identity = content.get("folder", identity_of(self.folder))
            records = [_record(entry) for entry in content["runs"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise CampaignError(
                f"{path} cannot be read ({error}): restore it, or choose another folder ({OUTPUT_OPTION})."
            ) from error
        if identity == identity_of(self.folder):
            self.token = token  # A copy has one of its own, because the runs of the original may be alive.
        self._records = {record.job.name: record for record in records}
        keys = {*definition, *self._definition}
        changed = {key for key in keys if definition.get(key) != self._definition.get(key)}
        allowed = {*self._may_change}
        if self._may_correct and not self._has_results():
            allowed |= {*self._may_correct}
        if kind != self._kind or not changed <= allowed:
            raise CampaignError(
                f"{self.folder} holds another {kind} ({_differing(kind, definition, self._kind, self._definition)}): "
                f"repeat the command that began it, or choose another folder ({OUTPUT_OPTION})."
            )
        self.is_changed = bool(changed & {*self._may_change})
        # Pruned runs continue if they are judged by something else now.
        unfinished = ("running", "pruned") if self.is_changed else ("running",)
        # The process that ran them has ended, or it would hold the folder.
        self._records = {
            record.job.name: replace(record, status="waiting") if record.status in unfinished else record
            for record in records
        }

    def _has_results(self) -> bool:
        """Whether a run has ended without an error, or can be resumed."""
        return any(
            record.status in ("done", "pruned") or has_checkpoint(self.run_dir(name))
            for name, record in self._records.items()
        )


def identity_of(folder: Path) -> list[int]:
    """Return what tells a folder from its copies: the numbers of its device and of its inode."""
    status = folder.stat()
    return [status.st_dev, status.st_ino]


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a run can be resumed."""
    if not (run_dir / CONFIG_FILE).exists():
        return False
    return saved_steps(load_config(run_dir).population.folders(run_dir)) is not None


@contextlib.contextmanager
def refused_files(path: Path) -> Iterator[None]:
    """Raise :class:`CampaignError` where a file of a campaign cannot be written."""
    try:
        yield
    except OSError as error:
        raise CampaignFailedError(
            f"{path} cannot be written ({error.strerror or error}): free space or give permission to write there, and "
            "repeat the command, which continues."
        ) from error


@contextlib.contextmanager
def open_campaign(
    folder: Path,
    kind: Kind,
    definition: Mapping[str, object],
    may_change: Collection[str] = (),
    may_correct: Collection[str] = (),
) -> Iterator[Campaign]:
    """Hold a campaign's folder, and end what a killed session has left running in it.

    Args:
        folder: The folder, which is created.
        kind: What it is.
        definition: What must be the same in all sessions, as JSON data.
        may_change: Keys of it that say how runs are judged. With another value, pruned runs are continued, after the
            caller has checked that finished ones can be judged by it, and has saved the campaign.
        may_correct: Keys of it that may change as long as every run has failed without a checkpoint.

    Raises:
        CampaignError: Another process holds the folder, another campaign is in it, or it cannot be written.
    """
    with contextlib.ExitStack() as held:
        try:
            for path in (folder, folder / "runs", folder / "jobs"):
                make_directory(path, is_new=False)
            held.enter_context(for_this_run_alone(folder, OUTPUT_OPTION))
        except RunDirectoryError as error:
            raise CampaignError(f"the {kind} cannot use its folder: {error}") from error
        campaign = Campaign(folder, kind, definition, may_change, may_correct)
        sweep.kill_all(campaign.token)
        if not campaign.is_changed:
            campaign.save()
        yield campaign


def runs_of(folder: Path | str) -> dict[Path, str] | None:
    """The finished runs of a campaign's folder, directory -> method; None if the folder holds no campaign.

    Raises:
        CampaignError: Its file cannot be read.
    """
    folder = Path(folder)
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    try:
        records = [_record(entry) for entry in json.loads(path.read_bytes())["runs"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CampaignError(f"{path} cannot be read ({error}): restore it, or name its runs one by one.") from error
    return {
        folder / "runs" / job_name(record.job.name): record.job.method for record in records if record.status == "done"
    }


def expanded(runs: Iterable[str]) -> list[str]:
    """Run directories as :func:`rollmill.comparing.runs.compare` takes them, of campaigns' folders among them.

    The trials of a sweep are methods, and so are those that a suite names: they may differ in settings that define
    none, such as ``rollout.num_workers``, and two environments may have one method with different settings.

    Args:
        runs: Directories of runs and folders of campaigns, each also as ``NAME=DIRECTORY``.

    Raises:
        CampaignError: A campaign has no finished run, or its file cannot be read.
    """
    found: list[str] = []
    given_runs = list(runs)
    for given in given_runs:
        name, equals, path = ("", "", given) if Path(given).exists() else given.partition("=")
        done = runs_of(path)
        if done is not None and not done:
            raise CampaignError(f"{path} has no finished run yet: let one end, or name the runs in {path}/runs.")
        if done is None:
            found.append(given)
            continue
        are_trials = all(_TRIAL.fullmatch(run.name) for run in done)
        if not are_trials and len(set(done.values())) < 2:
            found += [f"{name}{equals}{run}" for run in done]
            continue
        front = name or (Path(path).name if len(given_runs) > 1 else "")
        for run, method in done.items():
            of_run = f"{front} {run.name.rpartition('-')[0] if are_trials else method}".lstrip()
            found.append(f"{of_run.replace('=', '_')}={run}")  # What follows the first "=" is the directory.
    return found


def trial_run_name(number: int, place: int) -> str:
    """Name of the run of a sweep's trial.

    Args:
        number: The trial's.
        place: Of its seed, from 0.
    """
    return f"trial_{number:04d}-{place}"


def _record(entry: Mapping[str, Any]) -> Record:
    job = entry["job"]
    if entry["status"] not in get_args(Status):
        raise ValueError(f"the status {entry['status']!r} is unknown")
    method = str(job.get("method", ""))
    return Record(
        Job(str(job["name"]), str(job["preset"]), dict(job["settings"]), job["algo"], job["protocol"], method),
        cast("Status", entry["status"]),
        str(entry["error"]),
        float(entry["seconds"]),
    )


def _plain(job: Job) -> Job:
    """The job with settings as JSON has them."""
    return replace(job, settings=json.loads(json.dumps(dict(job.settings))))


def _difference(one: Job, other: Job) -> str:
    before, now = ({"preset": j.preset, "algo": j.algo, "protocol": j.protocol, **j.settings} for j in (one, other))
    return _changes(before, now)


def _differing(kind: str, definition: Mapping[str, Any], own_kind: str, own: Mapping[str, Any]) -> str:
    return f"a {kind}, not a {own_kind}" if kind != own_kind else _changes(definition, own)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    keys = dict.fromkeys((*before, *now))
    return "; ".join(
        f"{key} is {before.get(key)!r} there, now {now.get(key)!r}" for key in keys if before.get(key) != now.get(key)
    )
