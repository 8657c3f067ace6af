"""A stopped or silent process is named in the error; a run stopped as a whole continues."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollmill
from rollmill.learning.report import LearnerReport
from rollmill.regimes import hanging, running
from rollmill.runtime.events import ProcessHung
from rollmill.settings.config import Config
from rollmill.storage.evaluations import EvaluationQueue

pytestmark = pytest.mark.usefixtures("leaves_nothing")
slow = pytest.mark.slow

LIMIT_S = 3.0
LIMITS = {f"{part}.step_timeout_s": LIMIT_S for part in ("rollout", "inference", "learner")}
# Generous: a machine that others use, and a learner that has three seconds to save.
LONGEST_END_S = 30.0

REGIMES: dict[str, dict[str, Any]] = {
    "async": {},
    "lockstep": {"regime": "lockstep", "envs_per_group": 2, "learner.batch_size": 64},
    "replay": {
        "algo": "dqn",
        "learner.batch_size": 32,
        "learner.micro_batch": "auto",
        "learner.num_learners": 2,
        "replay.min_size": 100,
        "replay.capacity": 4096,
        "model.mlp_sizes": "16",
        # Most of the time there is nothing to learn from.
        "env.kwargs": {"fault": "slow"},
    },
}


def endless(regime: str, **changes: Any) -> Config:
    from faulty_envs import TINY

    settings = {**TINY, "total_steps": 10**9, **LIMITS, **REGIMES[regime], **changes}
    algo = settings.pop("algo", None)
    if algo is not None:
        del settings["learner.epochs"], settings["learner.minibatches"]
    return rollmill.make_config("test/walk", settings, algo=algo).resolved()


def once_it_learns(action: Callable[[dict[str, int]], None]) -> Callable[[LearnerReport, float], None]:
    """For ``on_report``: calls ``action`` with the processes' names and pids, once something has been learned."""
    done: list[bool] = []

    def on_report(report: LearnerReport, time_s: float) -> None:
        if report.sgd_steps and not done:
            done.append(True)
            action({p.name: p.pid for p in multiprocessing.active_children() if p.pid is not None})

    return on_report


@pytest.mark.parametrize(
    ("regime", "name"),
    [
        pytest.param("async", "policy worker 0", marks=slow),
        pytest.param("async", "rollout worker 1", marks=slow),
        pytest.param("async", "learner", marks=slow),
        pytest.param("lockstep", "policy worker 0", marks=slow),
        pytest.param("lockstep", "rollout worker 0", marks=slow),
        pytest.param("lockstep", "learner", marks=slow),
        pytest.param("replay", "policy worker 0", marks=slow),
        pytest.param("replay", "rollout worker 1", marks=slow),
        pytest.param("replay", "learner", marks=slow),
        ("replay", "gradient learner 1"),
    ],
)
def test_a_stopped_process_ends_the_run_by_name(
    tmp_path: Path, regime: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hanging, "_SHORTEST_SILENCE_S", LIMIT_S)
    stopped_at: list[float] = []

    def stop(pids: dict[str, int]) -> None:
        os.kill(pids[name], signal.SIGSTOP)
        stopped_at.append(time.monotonic())

    option = {"p": "inference", "r": "rollout", "l": "learner", "g": "learner"}[name[0]]
    message = rf"^{name} \(pid \d+\) hangs: it has been stopped .*; 3 s are allowed \({option}.step_timeout_s sets"
    with pytest.raises(ProcessHung, match=message):
        running.run(
            endless(regime),
            tmp_path,
            quiet=True,
            on_report=once_it_learns(stop),
            stop_when=lambda: bool(stopped_at) and time.monotonic() - stopped_at[0] > LONGEST_END_S,
        )


@slow
def test_a_stopped_evaluation_is_named_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "_SHORTEST_SILENCE_S", LIMIT_S)
    stopped_at: list[float] = []
    log = tmp_path / "run.log"

    def stop(pids: dict[str, int]) -> None:
        os.kill(pids["evaluator"], signal.SIGSTOP)
        stopped_at.append(time.monotonic())

    def is_noted() -> bool:
        if stopped_at and time.monotonic() - stopped_at[0] > LONGEST_END_S:
            return True
        return "evaluations stop, training continues: evaluator (pid" in log.read_text()

    outcome = running.run(
        endless("async", eval_every=10**6, eval_episodes=1),
        tmp_path,
        quiet=True,
        on_report=once_it_learns(stop),
        stop_when=is_noted,
    )
    assert outcome.ended_by == "caller"
    assert "hangs: it has been stopped" in log.read_text()


@slow
def test_a_stopped_evaluation_after_training_does_not_hold_the_run(tmp_path: Path) -> None:
    log = tmp_path / "run.log"

    def stop_the_last() -> None:
        while not log.exists() or "evaluating 1 remaining network(s)" not in log.read_text():
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(
            next(p.pid for p in multiprocessing.active_children() if p.name == "evaluator" and p.pid), signal.SIGSTOP
        )

    threading.Thread(target=stop_the_last, daemon=True).start()
    # So many episodes that they are not played before the run ends.
    config = endless("async", total_steps=500, eval_every=10**6, eval_episodes=10**6)
    running.run(config, tmp_path, quiet=True)
    assert "an evaluation failed: evaluator (pid" in log.read_text()
    assert EvaluationQueue(tmp_path).pending()


@pytest.mark.slow
def test_a_run_that_is_stopped_as_a_whole_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "_SHORTEST_SILENCE_S", LIMIT_S)
    limits = {f"{part}.step_timeout_s": 2.0 for part in ("rollout", "inference", "learner")}
    continued_at: list[float] = []
    steps: list[int] = []

    def hold_still(pids: dict[str, int]) -> None:
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        # This process is held still as well: it does not look meanwhile.
        time.sleep(7.0)
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
        continued_at.append(time.monotonic())

    holds = once_it_learns(hold_still)

    def on_report(report: LearnerReport, time_s: float) -> None:
        holds(report, time_s)
        if continued_at and time.monotonic() - continued_at[0] > 3.0:
            steps.append(report.agent_steps)

    outcome = running.run(
        endless("async", **limits), tmp_path, quiet=True, on_report=on_report, stop_when=lambda: bool(steps)
    )
    assert outcome.agent_steps >= steps[0] > 0
