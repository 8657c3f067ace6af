"""Trains and evaluates: one file of results for each environment, algorithm, library and seed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from untuned.tasks import RANDOM, Task

LIBRARIES = ("rollmill", "sb3", RANDOM)
RANDOM_SEEDS = (1,)  # whichever seeds are trained
ROOT = Path(__file__).resolve().parents[2]
_SB3_SCRIPT = "benchmarks/peers/stable_baselines3_defaults.py"  # from the root, where commands are run
_GRACE_SECONDS = 60  # for Rollmill to save what it has


class FailedError(Exception):
    """A run did not end with a result; says why."""


class StoppedError(Exception):
    """A run was asked to stop before its end."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things are.

    Attributes:
        results: Folder of the results.
        runs: Folder of Rollmill's run directories, and of the logs.
        rollmill: Command of Rollmill.
        sb3: Interpreter that has Stable-Baselines3.
    """

    results: Path
    runs: Path
    rollmill: tuple[str, ...] = (sys.executable, "-m", "rollmill")
    sb3: Path = ROOT / ".venv-peers" / "bin" / "python"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: a task, a library and a seed."""

    task: Task
    library: str
    seed: int

    @property
    def algorithm(self) -> str:
        """The task's; of random play "random"."""
        return RANDOM if self.library == RANDOM else self.task.algorithm

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.task.env.replace('/', '-')}--{self.algorithm}--{self.library}--seed{self.seed}"

    @property
    def minutes(self) -> float:
        """Expected minutes on two quiet cores."""
        if self.library == RANDOM:
            return 1.0 if self.task.family in ("atari", "vizdoom") else 0.1
        return self.task.minutes[0 if self.library == "rollmill" else 1]

    @property
    def steps(self) -> int:
        """Agent steps of training; 0 for random play."""
        return 0 if self.library == RANDOM else self.task.steps

    def describe(self) -> str:
        """For the progress."""
        return f"{self.task.env} {self.algorithm} {self.library} seed {self.seed}"


def jobs_of(tasks: Iterable[Task], libraries: Iterable[str], seeds: Iterable[int]) -> list[Job]:
    """All jobs, those of the fewest expected minutes first; random play once for each environment."""
    jobs: dict[str, Job] = {}
    seeds = tuple(seeds)
    for task in tasks:
        for library in libraries:
            for seed in RANDOM_SEEDS if library == RANDOM else seeds:
                job = Job(task=task, library=library, seed=seed)
                jobs.setdefault(job.name, job)
    return sorted(jobs.values(), key=lambda job: job.minutes)


def read_result(places: Places, job: Job) -> dict[str, Any] | None:
    """The result of a finished job; None where there is none, or one of another budget or number of episodes."""
    path = places.results / f"{job.name}.json"
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text())
    fits = result["steps"] == job.steps and len(result["returns"]) == job.task.episodes
    return result if fits and result["sampled"] == job.task.sampled else None


def run_job(places: Places, job: Job, stop: threading.Event, timeout_seconds: float) -> dict[str, Any]:
    """Trains, evaluates, and writes the result; returns it.

    An interrupted run of Rollmill resumes from its run directory; one of Stable-Baselines3 starts again.

    Raises:
        FailedError: A command failed or took longer than the timeout; the log says more.
        StoppedError: ``stop`` was set.
    """
    started = time.perf_counter()
    deadline = started + timeout_seconds
    places.runs.mkdir(parents=True, exist_ok=True)
    log = places.runs / f"{job.name}.log"
    if job.library == "rollmill":
        result, command = _train_rollmill(places, job, log, stop, deadline)
    else:
        command = _sb3_command(places, job)
        result = _last_json(_run(command, log, stop, deadline), log)
    if result["agent_steps"] < job.steps:
        raise FailedError(f"ended after {result['agent_steps']:,} of {job.steps:,} agent steps: {log}")
    record = {
        "env": job.task.env,
        "algorithm": job.algorithm,
        "library": job.library,
        "seed": job.seed,
        "steps": job.steps,
        "sampled": job.task.sampled,
        "command": [Path(command[0]).name, *command[1:]],
        "seconds": round(time.perf_counter() - started, 1),
        "machine": f"{len(os.sched_getaffinity(0))} cores of {_processor()}",
        "commit": _commit() if job.library == "rollmill" else None,
        **result,
    }
    write_record(places.results / f"{job.name}.json", record)
    return record


def _sb3_command(places: Places, job: Job) -> list[str]:
    task = job.task
    return [
        *(str(places.sb3), _SB3_SCRIPT, "--env", task.env, "--algo", job.algorithm, "--steps", str(job.steps)),
        *("--seed", str(job.seed), "--episodes", str(task.episodes)),
        *(("--sampled",) if task.sampled else ()),
        *(() if task.limit is None else ("--limit", str(task.limit))),
    ]


def _train_rollmill(
    places: Places, job: Job, log: Path, stop: threading.Event, deadline: float
) -> tuple[dict[str, Any], list[str]]:
    task = job.task
    run_dir = places.runs / f"{job.name}-{task.steps}"
    first = [
        *("train", task.env, *(() if task.algorithm == "ppo" else ("--algo", task.algorithm))),
        *("--total-steps", str(task.steps), "--seed", str(job.seed)),
        *(() if task.limit is None else ("--env.max-episode-steps", str(task.limit))),
    ]
    can_resume = any((run_dir / "checkpoints").glob("checkpoint_*.pt"))
    if run_dir.exists() and not can_resume:
        shutil.rmtree(run_dir)
    train = ["train", "--resume"] if can_resume else first
    _run([*places.rollmill, *train, "--run-dir", str(run_dir), "--quiet"], log, stop, deadline)
    evaluate = [
        *("eval", str(run_dir), "--episodes", str(task.episodes), "--seed", str(job.seed), "--json"),
        "--explore" if task.sampled else "--deterministic",
    ]
    found = _last_json(_run([*places.rollmill, *evaluate], log, stop, deadline), log)
    result = {key: found[key] for key in ("agent_steps", "returns", "lengths")}
    return result, ["rollmill", *first]


def _run(command: list[str], log: Path, stop: threading.Event, deadline: float) -> str:
    """Runs a command to its end; its errors go to the log.

    Returns:
        Its standard output.
    """
    with log.open("a") as errors, log.with_suffix(".out").open("w+") as output:
        errors.write(f"$ {' '.join(command)}\n")
        errors.flush()
        with _child(command, output, errors) as process:
            while process.poll() is None:
                if stop.wait(0.2):
                    raise StoppedError
                if time.perf_counter() > deadline:
                    raise FailedError(f"did not end in time: {log}")
        # A terminal's Ctrl-C reaches every process: the child may have ended by it.
        if process.returncode and stop.wait(1.0):
            raise StoppedError
        if process.returncode:
            raise FailedError(f"failed with code {process.returncode}: {log}")
        output.seek(0)
        return output.read()


@contextlib.contextmanager
def _child(command: list[str], output: IO[str], errors: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that it starts, which are ended with the context: first asked, so that it can save."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, cwd=ROOT, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_json(output: str, log: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError) as error:
        raise FailedError(f"did not end with a line of JSON: {log}") from error
    return result


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Writes whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(record) + "\n")
    temporary.replace(path)


def _commit() -> str | None:
    """The commit of this checkout, because defaults change between commits."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "an unknown processor"
