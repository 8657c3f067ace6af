"""Time to end a run, and what it saves, after a stop request or when a process hangs."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rollmill
from rollmill.learning.report import LearnerReport
from rollmill.regimes import running
from rollmill.runtime.events import ProcessHung
from rollmill.runtime.fork_server import fork_server_pid
from rollmill.settings.config import Config
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

pytestmark = pytest.mark.usefixtures("leaves_nothing")

LONGEST_END_S = 10.0


def endless(**changes: object) -> Config:
    from faulty_envs import TINY

    return rollmill.make_config("test/walk", {**TINY, "total_steps": 10**9, **changes}).resolved()


def once_it_learns(action: Callable[[dict[str, int]], None]) -> Callable[[LearnerReport, float], None]:
    """For ``on_report``: calls ``action`` with the processes' names and pids, once something has been learned."""
    done: list[bool] = []

    def on_report(report: LearnerReport, time_s: float) -> None:
        if report.agent_steps and not done:
            done.append(True)
            action({p.name: p.pid for p in multiprocessing.active_children() if p.pid is not None})

    return on_report


def saved_steps(run_dir: Path) -> int:
    return CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).latest_header().agent_steps


def signal_after(seconds: float, pid: int, number: signal.Signals) -> None:
    timer = threading.Timer(seconds, os.kill, (pid, number))
    timer.daemon = True
    timer.start()


def wait_for(text: str, path: Path) -> None:
    while not path.exists() or text not in path.read_text():
        time.sleep(0.05)


_OTHERS = [pytest.param(to, marks=pytest.mark.slow) for to in ("workers and soon to main", "learner alone")]


@pytest.mark.slow
@pytest.mark.parametrize("to", ["all", *_OTHERS])
def test_sigterm_to_every_process_saves_what_was_learned(tmp_path: Path, to: str) -> None:
    def send(pids: dict[str, int]) -> None:
        if to == "all":
            os.kill(os.getpid(), signal.SIGTERM)
            server = fork_server_pid()
            assert server is not None
            os.kill(server, signal.SIGTERM)
        for name, pid in pids.items():
            if to == "all" or (name == "learner") == (to == "learner alone"):
                os.kill(pid, signal.SIGTERM)
        if to == "workers and soon to main":
            signal_after(0.2, os.getpid(), signal.SIGTERM)

    outcome = running.run(endless(), tmp_path, quiet=True, on_report=once_it_learns(send))
    assert outcome.ended_by == "signal"
    assert saved_steps(tmp_path) == outcome.agent_steps > 0


@pytest.mark.slow
def test_a_signal_ends_a_run_whose_learner_hangs(tmp_path: Path) -> None:
    sent: list[float] = []

    def send(pids: dict[str, int]) -> None:
        os.kill(pids["learner"], signal.SIGSTOP)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(ProcessHung, match=r"learner .* did not end within .* since the newest checkpoint is lost"):
        running.run(endless(), tmp_path, quiet=True, on_report=once_it_learns(send))
    assert time.monotonic() - sent[0] < LONGEST_END_S


@pytest.mark.slow
def test_a_signal_ends_a_run_whose_workers_are_stuck_in_constructors(tmp_path: Path) -> None:
    mark, sent = tmp_path / "mark", list[float]()

    def interrupt() -> None:
        wait_for("environments in", tmp_path / "run.log")  # The probe is over, the processes are being started.
        mark.touch()
        wait_for("rollout worker", tmp_path / "started")
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()

    def is_building() -> bool:
        # Runs in the main thread, between two looks at the processes.
        if mark.exists():
            (tmp_path / "started").write_text(" ".join(p.name for p in multiprocessing.active_children()))
        return False

    kwargs = {"fault": "slow constructor at the mark", "mark": str(mark)}
    try:
        outcome = running.run(endless(**{"env.kwargs": kwargs}), tmp_path, quiet=True, stop_when=is_building)
    except KeyboardInterrupt:
        pass  # On a busy machine, where the learner itself does not come up in time.
    else:
        assert outcome.ended_by == "signal"
    assert time.monotonic() - sent[0] < LONGEST_END_S


@pytest.mark.slow
def test_a_signal_that_comes_while_the_run_is_ending_is_told_to_the_caller(tmp_path: Path) -> None:
    learned = threading.Event()

    def ends_and_is_told_to() -> bool:
        if learned.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
        return learned.is_set()

    learns = once_it_learns(lambda pids: learned.set())
    outcome = running.run(endless(), tmp_path, quiet=True, on_report=learns, stop_when=ends_and_is_told_to)
    assert outcome.ended_by == "signal"


@pytest.mark.slow
def test_decorrelation_ends_with_the_run(tmp_path: Path) -> None:
    stepping = tmp_path / "stepping"
    stepping.mkdir()
    kwargs = {"fault": "slow and marked", "mark": str(stepping)}
    config = endless(**{"env.kwargs": kwargs, "rollout.decorrelate_steps": 10_000})

    def all_are_stepping() -> bool:
        workers = [p for p in multiprocessing.active_children() if p.name.startswith("rollout worker")]
        return len(workers) == config.rollout.num_workers and all((stepping / str(p.pid)).exists() for p in workers)

    running.run(config, tmp_path, quiet=True, stop_when=all_are_stepping)
    assert not re.search(r"rollout worker \d.* did not stop", (tmp_path / "run.log").read_text())


def test_when_a_worker_hangs_the_learner_has_time_to_save(tmp_path: Path) -> None:
    mark, learned = tmp_path / "mark", list[int]()

    def hang(pids: dict[str, int]) -> None:
        mark.touch()
        time.sleep(0.2)
        # A learner that needs three of the five seconds that a failed run may take: large networks, slow disks.
        os.kill(pids["learner"], signal.SIGSTOP)
        signal_after(3.0, pids["learner"], signal.SIGCONT)

    learns = once_it_learns(hang)

    def on_report(report: LearnerReport, time_s: float) -> None:
        if report.agent_steps:
            learned.append(report.agent_steps)
        learns(report, time_s)

    config = endless(**{"env.kwargs": {"fault": "hang at the mark", "mark": str(mark)}, "rollout.step_timeout_s": 1.0})
    with pytest.raises(ProcessHung, match=r"rollout worker .*simulating") as failure:
        running.run(config, tmp_path, quiet=True, on_report=on_report)
    assert "faulty_envs.py" in str(failure.value)
    assert saved_steps(tmp_path) >= learned[0]
