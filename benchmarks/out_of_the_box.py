"""Do the defaults learn? Environments without a preset of their own, beside Stable-Baselines3's defaults.

    python benchmarks/out_of_the_box.py                             # everything: days on two cores
    python benchmarks/out_of_the_box.py --only gym/ --libraries sb3 random
    python benchmarks/out_of_the_box.py --only acrobot:dqn --libraries rollmill
    python benchmarks/out_of_the_box.py --table                     # what there is, as Markdown

Both libraries train with their defaults, for equal numbers of agent steps, with the same seeds, and are evaluated with
the same number of episodes. Rollmill: `rollmill train NAME [--algo ALGO] --total-steps N --seed S`. Each result is a
file in the results folder; what has one is not run again (remove the file to repeat it). Interrupted runs of Rollmill
resume, those of Stable-Baselines3 start again. Where an environment has no time limit, both get the same one. The
rules of the verdicts are in ``untuned/verdicts.py``, the environments and their budgets in ``untuned/tasks.py``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from untuned.runs import LIBRARIES, FailedError, Job, Places, StoppedError, jobs_of, read_result, run_job
from untuned.table import table
from untuned.tasks import RANDOM, scaled, selected
from untuned.verdicts import false_verdicts

_RESULTS = Path(__file__).resolve().parent / "results" / "out_of_the_box"
_SAY_EVERY_S = 300.0


class Progress:
    """What is done and how long the rest takes, from expected minutes and how wrong these were so far.

    Args:
        jobs: The runs to make.
        at_once: How many run side by side.
    """

    def __init__(self, jobs: list[Job], at_once: int) -> None:
        self._left = {job.name: job.minutes for job in jobs}
        self._total = len(jobs)
        self._at_once = at_once
        self._expected = 0.0
        self._taken = 0.0

    def finish(self, job: Job, minutes: float, *, succeeded: bool = True) -> None:
        """A job has ended; only successful ones say something about the speed."""
        expected = self._left.pop(job.name)
        if succeeded:
            self._expected += expected
            self._taken += minutes

    @property
    def minutes_left(self) -> float:
        """Estimate for all that has not ended."""
        ratio = self._taken / self._expected if self._expected else 1.0
        return sum(self._left.values()) * ratio / self._at_once

    def describe(self) -> str:
        """One line's beginning, and its end."""
        hours, minutes = divmod(round(self.minutes_left), 60)
        return f"{self._total - len(self._left)} of {self._total} done, about {hours} h {minutes:02} min left"


def run_all(places: Places, jobs: list[Job], *, at_once: int, timeout_seconds: float, stop: threading.Event) -> int:
    """Runs jobs side by side until all have ended or ``stop`` is set.

    Returns:
        How many failed.
    """
    progress = Progress(jobs, at_once)
    failures = 0
    began: dict[str, float] = {}

    def work(job: Job) -> dict[str, Any]:
        if stop.is_set():
            raise StoppedError
        began[job.name] = time.perf_counter()
        return run_job(places, job, stop, timeout_seconds)

    with ThreadPoolExecutor(at_once) as pool:
        pending: dict[Future[dict[str, Any]], Job] = {pool.submit(work, job): job for job in jobs}
        said = time.perf_counter()
        while pending:
            ended, _ = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in ended:
                job = pending.pop(future)
                minutes = (time.perf_counter() - began.get(job.name, time.perf_counter())) / 60
                try:
                    result = future.result()
                except StoppedError:
                    continue
                except (FailedError, OSError) as error:
                    failures += 1
                    progress.finish(job, minutes, succeeded=False)
                    _say(f"{job.describe()}: {error}; {progress.describe()}")
                    continue
                progress.finish(job, minutes)
                mean = sum(result["returns"]) / len(result["returns"])
                took = f"{minutes:.1f} min, {job.minutes:.1f} expected"
                _say(f"{job.describe()}: mean return {mean:,.2f} ({took}); {progress.describe()}")
            if time.perf_counter() - said > _SAY_EVERY_S:
                said = time.perf_counter()
                running = [job for job in pending.values() if job.name in began]
                for job in running:
                    minutes = (said - began[job.name]) / 60
                    _say(f"{job.describe()}: running for {minutes:.0f} min, {job.minutes:.1f} expected")
    return failures


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="ENV[:ALGO]", help="these tasks only; a part of a name will do"
    )
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), help="default: all three")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="training seeds (default: 1 2)")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="multiply all budgets; results are kept apart")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--timeout-hours", type=float, default=24.0, help="of one run (default: 24)")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of the results")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/out_of_the_box"), help="folder of run directories, logs"
    )
    parser.add_argument("--table", action="store_true", help="run nothing; print what there is as Markdown")
    parser.add_argument(
        "--error-rate", action="store_true", help="run nothing; print how often equal libraries would be told apart"
    )
    parser.add_argument("--list", action="store_true", help="run nothing; list the remaining runs with their minutes")
    return parser


def main() -> int:
    """Runs the command line; 1 if a run failed, 130 if it was interrupted."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.steps_scale <= 0 or arguments.jobs < 1:
        parser.error("--steps-scale must be above 0, and --jobs at least 1")
    try:
        tasks = tuple(scaled(task, arguments.steps_scale) for task in selected(arguments.only))
    except ValueError as error:
        parser.error(str(error))
    folder = "" if arguments.steps_scale == 1.0 else f"steps-x{arguments.steps_scale:g}"
    places = Places(results=arguments.results.resolve() / folder, runs=arguments.runs.resolve() / folder)
    if arguments.table:
        print(table(tasks, places, arguments.seeds))
        return 0
    if arguments.error_rate:
        print(f"{len(arguments.seeds)} seeds: share of comparisons of equal libraries that are not called equal")
        for ratio in (0.0, 1.0, 2.0, 5.0):
            rate = false_verdicts(len(arguments.seeds), ratio)
            print(f"{rate:4.0%}  where seeds differ by {ratio:g} standard errors of an evaluation")
        return 0
    jobs = jobs_of(tasks, arguments.libraries, arguments.seeds)
    left = [job for job in jobs if read_result(places, job) is None]
    _say(f"{len(jobs)} runs, {len(jobs) - len(left)} of them done; {Progress(left, arguments.jobs).describe()}")
    if arguments.list:
        for job in left:
            print(f"{job.minutes:7.1f} min  {job.steps:9,} steps  {job.describe()}")
        return 0
    if any(job.library in ("sb3", RANDOM) for job in left):
        from peers import STABLE_BASELINES3_DEFAULTS, AbsentError, install

        try:
            install(STABLE_BASELINES3_DEFAULTS)
        except AbsentError as error:
            parser.exit(1, f"Stable-Baselines3 {error}\n")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    failures = run_all(places, left, at_once=arguments.jobs, timeout_seconds=3600 * arguments.timeout_hours, stop=stop)
    if stop.is_set():
        _say("interrupted: repeat the command to continue")
        return 130
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
