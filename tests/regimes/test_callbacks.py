"""Callbacks in whole runs: their arguments, what they change, and how one ends a run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.regimes.leftovers import nothing_is_left

import rollmill
from rollmill.learning.fingerprints import first_difference, read_fingerprints
from rollmill.reporting.metrics import read_metrics
from rollmill.runtime.events import ProcessFailed
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

pytestmark = pytest.mark.usefixtures("leaves_nothing")
slow = pytest.mark.slow

SMALL: dict[str, Any] = {
    "num_envs": 8,
    "envs_per_group": 2,
    "rollout_length": 16,
    "learner.batch_size": 128,
    "learner.minibatches": 2,
    "learner.epochs": 2,
    "learner.precision": "fp32",
    "inference.precision": "fp32",
    "model.mlp_sizes": "16",
    "rollout.num_workers": 1,
    "total_steps": 6400,
}
LOCKSTEP: dict[str, Any] = {**SMALL, "regime": "lockstep", "debug_fingerprints": True, "total_steps": 128 * 8}
REPLAY: dict[str, Any] = {
    "algo": "dqn",
    "num_envs": 4,
    "learner.batch_size": 16,
    "replay.capacity": 256,
    "replay.min_size": 50,
    "replay.update_interval": 4,
    "rollout.num_workers": 1,
    "model.mlp_sizes": "16",
    "total_steps": 2000,
}


def train(run_dir: Path, *callbacks: rollmill.Callback, **settings: Any) -> rollmill.Run:
    return rollmill.train("gym/CartPole-v1", run_dir=run_dir, quiet=True, callbacks=callbacks, **settings)


def checkpoints(run_dir: Path) -> CheckpointStore:
    return CheckpointStore(run_dir / "checkpoints", CheckpointConfig())


class Recorder(rollmill.Callback):
    """Writes down each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rows: list[Mapping[str, Any]] = []
        self.paths: list[Path] = []
        self.existed: list[bool] = []

    def on_start(self, run: rollmill.LiveRun) -> None:
        self.calls.append("start")
        assert run.metrics == {}
        assert run.dir.is_dir()
        assert run.config.total_steps == 6400

    def on_report(self, run: rollmill.LiveRun, metrics: Mapping[str, Any]) -> None:
        self.calls.append("report")
        self.rows.append(metrics)
        assert run.metrics == metrics

    def on_checkpoint(self, run: rollmill.LiveRun, path: Path) -> None:
        self.calls.append("checkpoint")
        self.paths.append(path)
        self.existed.append(path.exists())

    def on_end(self, run: rollmill.LiveRun, ended_by: str) -> None:
        self.calls.append(f"end {ended_by}")


class Setting(rollmill.Callback):
    """Sets numbers once: at the start, or at the first row after so many batches."""

    def __init__(self, after: int | None = None, from_batch: int | None = None, **numbers: float | None) -> None:
        self.after, self.from_batch, self.numbers = after, from_batch, numbers
        self.set_at: int | None = None

    def on_start(self, run: rollmill.LiveRun) -> None:
        if self.after is None:
            run.set(from_batch=self.from_batch, **self.numbers)

    def on_report(self, run: rollmill.LiveRun, metrics: Mapping[str, Any]) -> None:
        if self.after is not None and self.set_at is None and metrics["batches"] >= self.after:
            self.set_at = metrics["batches"]
            run.set(from_batch=self.from_batch, **self.numbers)


class Halving(rollmill.Callback):
    """Halves the learning rate twice, and returns to the schedule."""

    def on_report(self, run: rollmill.LiveRun, metrics: Mapping[str, Any]) -> None:
        if metrics["batches"] in (10, 20):
            run.set(learning_rate=metrics["learning_rate"] / 2)
        if metrics["batches"] == 30:
            run.set(learning_rate=None)


class Asking(rollmill.Callback):
    """Asks for a checkpoint and an evaluation."""

    def on_report(self, run: rollmill.LiveRun, metrics: Mapping[str, Any]) -> None:
        if metrics["batches"] == 10:
            run.save()
            run.evaluate()


class Told(NamedTuple):
    """A run and two callbacks that it has told all that happened."""

    run: rollmill.Run
    first: Recorder
    second: Recorder


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """A run that several tests look at, with callbacks that do not disturb each other."""
    with nothing_is_left():
        callbacks = Recorder(), Recorder(), Halving(), Asking()
        constant = {"learner.schedule": "constant", "learner.learning_rate": 0.0008, "eval_episodes": 2}
        run = train(tmp_path_factory.mktemp("told") / "run", *callbacks, **SMALL, **constant)
    return Told(run, callbacks[0], callbacks[1])


def test_callbacks_are_told_what_happens_in_its_order(told: Told) -> None:
    calls = told.first.calls
    assert calls[0] == "start"
    assert calls[-1] == "end total_steps"
    assert {"report", "checkpoint"} == set(calls[1:-1])
    assert told.first.rows == read_metrics(told.run.dir)
    assert all(told.first.existed)
    assert told.first.paths[-1] == checkpoints(told.run.dir).paths()[0]
    assert calls == told.second.calls
    assert told.run.ended_by == "total_steps"


def test_one_that_halves_the_learning_rate(told: Told) -> None:
    rows = read_metrics(told.run.dir)
    assert [row["learning_rate"] for row in rows if row["batches"] <= 10] == [0.0008] * 11
    assert 0.0002 in [row["learning_rate"] for row in rows if row["batches"] > 20]
    assert "learning_rate is 0.0004" in (told.run.dir / "run.log").read_text()


def test_a_number_returns_to_its_schedule(told: Told) -> None:
    rates = [row["learning_rate"] for row in read_metrics(told.run.dir)]
    assert min(rates) == 0.0002
    assert rates[-1] == 0.0008


def test_a_checkpoint_and_an_evaluation_on_request(told: Told) -> None:
    check_requests(told.run.dir, told.first.paths, can_resume=True)


def check_requests(run_dir: Path, paths: list[Path], *, can_resume: bool) -> None:
    """Check what `Asking` has asked for."""
    asked = [path for path in paths if "steps_000000000000" not in path.name][:-1]
    assert len(asked) == 1
    steps = int(asked[0].stem.split("_")[3])
    last = read_metrics(run_dir)[-1]["agent_steps"]
    assert 128 * 10 <= steps < last
    assert asked[0].stem.endswith("_end") == (not can_resume)
    lines = (run_dir / "evaluations.jsonl").read_text().splitlines()
    evaluated = [int(line.split('"agent_steps": ')[1].split(",")[0]) for line in lines]
    assert len(evaluated) == 1
    assert 128 * 10 <= evaluated[0] < last


@slow
def test_a_run_in_lockstep_does_not_resume_from_a_checkpoint_on_request(tmp_path: Path) -> None:
    recorder = Recorder()
    train(tmp_path, recorder, Asking(), **{**LOCKSTEP, "total_steps": 6400, "eval_episodes": 2})
    check_requests(tmp_path, recorder.paths, can_resume=False)


@pytest.mark.slow
def test_one_that_stops_the_run(tmp_path: Path) -> None:
    class Stopping(Recorder):
        def on_report(self, run: rollmill.LiveRun, metrics: Mapping[str, Any]) -> None:
            if metrics["batches"] >= 5:
                run.stop()

        def on_start(self, run: rollmill.LiveRun) -> None: ...

    callback = Stopping()
    run = train(tmp_path, callback, **{**SMALL, "total_steps": 10**9})
    assert run.ended_by == "callback"
    assert callback.calls[-1] == "end callback"
    assert 0 < run.agent_steps < 10**9
    assert checkpoints(tmp_path).latest_header().agent_steps == run.agent_steps
    assert "end: stopped by a callback" in (tmp_path / "run.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_start", "on_report", "on_checkpoint", "on_end"])
def test_an_exception_in_a_callback_ends_the_run_with_its_traceback(tmp_path: Path, hook: str) -> None:
    class Failing(rollmill.Callback):
        ends: list[str]
        still_training: list[str]

        def on_end(self, run: rollmill.LiveRun, ended_by: str) -> None:
            self.ends = [ended_by]
            self.still_training = [child.name for child in multiprocessing.active_children() if "learner" in child.name]

    def fail(self: object, run: rollmill.LiveRun, *arguments: Any) -> None:
        if hook != "on_report" or arguments[0]["batches"] >= 3:
            raise KeyError("what is missing")

    witness = Failing()
    setattr(Failing if hook == "on_end" else type(witness), hook, fail)
    with pytest.raises(ProcessFailed, match=rf"the callback Failing\.{hook} failed: KeyError") as caught:
        train(tmp_path, witness, **SMALL)
    assert "what is missing" in caught.value.traceback
    assert "in fail" in caught.value.traceback
    if hook != "on_end":
        assert witness.ends == ["failure"]
        assert witness.still_training == []
    saved = checkpoints(tmp_path).paths()
    assert bool(saved) == (hook != "on_start")
    if hook == "on_report":
        assert checkpoints(tmp_path).latest_header().agent_steps > 0, "what was learned is saved"


@pytest.mark.slow
def test_a_run_that_fails_otherwise_tells_its_end(tmp_path: Path) -> None:
    from faulty_envs import TINY

    class Killing(Recorder):
        def on_start(self, run: rollmill.LiveRun) -> None: ...

        def on_report(self, run: rollmill.LiveRun, metrics: Mapping[str, Any]) -> None: ...

        def on_end(self, run: rollmill.LiveRun, ended_by: str) -> None:
            super().on_end(run, ended_by)
            raise RuntimeError("not to be seen")

    callback = Killing()
    settings = {**TINY, "env.kwargs": {"fault": "step"}}
    with pytest.raises(ProcessFailed, match="the step went wrong"):
        rollmill.train("test/walk", run_dir=tmp_path, quiet=True, callbacks=[callback], **settings)
    assert callback.calls[-1] == "end failure"
    assert "Killing.on_end failed while the run was failing" in (tmp_path / "run.log").read_text()


@pytest.mark.slow
def test_numbers_that_are_set_act_as_the_settings_do(tmp_path: Path) -> None:
    numbers = {
        "learning_rate": 0.0007,
        "entropy_coef": 0.05,
        "clip_range": 0.3,
        "reward_scale": 0.25,
        "value_coef": 0.7,
        "discount": 0.9,
        "gae_lambda": 0.8,
        "max_grad_norm": 0.1,
    }
    constant = {"learner.schedule": "constant", "learner.clip_schedule": "constant"}
    settings = {f"learner.{name}": value for name, value in numbers.items()}
    train(tmp_path / "settings", **LOCKSTEP, **constant, **settings, **{"learner.adam_betas": (0.8, 0.99)})
    train(tmp_path / "set", Setting(**numbers, adam_beta1=0.8, adam_beta2=0.99), **LOCKSTEP, **constant)
    one, other = read_fingerprints(tmp_path / "settings"), read_fingerprints(tmp_path / "set")
    assert len(one) >= 8
    assert first_difference(one, other) is None


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [{"learning_rate": 1e-4}, {"reward_scale": 0.5, "entropy_coef": 0.1}])
def test_a_change_from_a_batch_on_is_the_same_for_any_number_of_workers(
    tmp_path: Path, numbers: dict[str, float]
) -> None:
    runs = {}
    for name, callback, spread in (
        ("one", Setting(from_batch=4, **numbers), {"rollout.num_workers": 1}),
        ("two", Setting(from_batch=4, **numbers), {"rollout.num_workers": 2, "debug_delay_s": 0.01}),
        ("without", rollmill.Callback(), {}),
    ):
        train(tmp_path / name, callback, **{**LOCKSTEP, **spread})
        runs[name] = read_fingerprints(tmp_path / name)
    assert first_difference(runs["one"], runs["two"]) is None
    different = first_difference(runs["one"], runs["without"])
    assert different is not None
    assert different.update in (4, 5), "fingerprints of the updates before are those of the run without a change"


def test_a_batch_that_has_begun_is_refused(tmp_path: Path) -> None:
    callback = Setting(after=4, from_batch=2, learning_rate=0.1)
    with pytest.raises(ProcessFailed, match=r"run\.set\(from_batch=2\): batch \d+ has begun; give a later one"):
        train(tmp_path, callback, **LOCKSTEP)


@slow
def test_a_resumed_run_keeps_the_numbers_that_were_set(tmp_path: Path) -> None:
    settings = {**LOCKSTEP, "checkpoint.every_steps": 128 * 6, "learner.schedule": "constant"}
    changes = Setting(from_batch=4, learning_rate=0.00003), Setting(from_batch=10, reward_scale=0.5)
    train(tmp_path / "whole", *changes, **{**settings, "total_steps": 128 * 14})
    train(tmp_path / "parts", *changes, **settings)
    state = checkpoints(tmp_path / "parts").load_latest(to_resume=True).state["numbers"]
    assert (state["set"], state["pending"]) == ({"learning_rate": 0.00003}, [["reward_scale", 0.5, 10]])
    rollmill.train(run_dir=tmp_path / "parts", resume=True, quiet=True, total_steps=128 * 14)
    whole, parts = read_fingerprints(tmp_path / "whole"), read_fingerprints(tmp_path / "parts")
    assert len(whole) == len(parts) > 12
    assert first_difference(whole, parts) is None


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2])
def test_replay_takes_the_learning_rate_and_the_scale_of_rewards(tmp_path: Path, learners: int) -> None:
    callback = Setting(after=50, learning_rate=0.00002, reward_scale=0.001)
    train(tmp_path / "run", callback, **{**REPLAY, "learner.num_learners": learners})
    rows = read_metrics(tmp_path / "run")
    assert rows[-1]["learning_rate"] == 0.00002
    # a report without an SGD step since the one before it has no losses
    learned = [row for row in rows if "loss/td_error" in row]
    before = [row["loss/td_error"] for row in learned if 20 < row["batches"] <= 50]
    assert learned[-1]["loss/td_error"] < max(before)
    with pytest.raises(ProcessFailed, match="this run takes learning_rate, reward_scale, max_grad_norm"):
        train(tmp_path / "refused", Setting(clip_range=0.1), **REPLAY)


COMMAND = [
    *("-m", "rollmill", "train", "gym/CartPole-v1", "--regime", "lockstep", "--num-envs", "8", "--envs-per-group", "2"),
    *("--rollout-length", "16", "--learner.minibatches", "2", "--learner.epochs", "2", "--quiet"),
    *("--learner.precision", "fp64", "--model.mlp-sizes", "16", "--total-steps", str(128 * 6)),
]

MODULE = """
import rollmill

class Late(rollmill.Callback):
    def on_start(self, run):
        run.set(learning_rate=1e-4, from_batch=2)
        run.set(entropy_coef=0.1, reward_scale=0.5, from_batch=4)

class Broken(rollmill.Callback):
    def on_report(self, run, metrics):
        raise ZeroDivisionError("in the user's callback")

class Waiting(rollmill.Callback):
    def on_report(self, run, metrics):
        run.stop()
"""


def _run(*words: str, cwd: Path, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        [sys.executable, *launcher, *COMMAND, *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


@pytest.mark.timeout(300)
@slow
def test_two_ranks_use_the_same_numbers_in_the_same_batch(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    weights = {}
    for name, launcher, words in (
        ("one", (), ("--callback", "mine:Late")),
        ("two", ranks, ("--callback", "mine.py:Late")),
        ("without", (), ()),
    ):
        done = _run(*words, "--run-dir", name, cwd=tmp_path, launcher=launcher)
        assert done.returncode == 0, done.stderr
        model = checkpoints(tmp_path / name).load_latest().state["model"]
        weights[name] = torch.cat([tensor.double().reshape(-1) for tensor in model.values()])

    def distance(one: str, other: str) -> float:
        return float((weights[one] - weights[other]).norm() / weights[one].norm())

    assert distance("one", "two") < 1e-12
    assert distance("one", "without") > 1e-6


@pytest.mark.slow
def test_the_command_line_ends_as_after_a_failed_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    done = _run("--callback", "mine:Broken", "--run-dir", "broken", cwd=tmp_path)
    assert done.returncode == 1
    assert "the callback Broken.on_report failed: ZeroDivisionError: in the user's callback" in done.stderr
    assert 'mine.py", line 11, in on_report' in done.stderr
    done = _run("--callback", "mine:Waiting", "--callback", "mine.py:Late", "--run-dir", "stopped", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
