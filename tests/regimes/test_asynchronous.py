"""Whole runs with all their real processes: what they leave in the run directory, and how they end."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import rollmill
from rollmill.regimes.record import next_commands
from rollmill.reporting.metrics import read_metrics
from rollmill.runtime.events import ProcessFailed, ProcessHung
from rollmill.runtime.ranks import Ranks
from rollmill.settings.run_config import load_config
from rollmill.settings.run_directory import RunDirectoryError
from rollmill.settings.value_checks import ConfigError
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

pytestmark = pytest.mark.usefixtures("leaves_nothing")

slow = pytest.mark.slow


def train(run_dir: Path, **changes: object) -> rollmill.Run:
    from faulty_envs import TINY

    settings = {**TINY, "total_steps": 3000, **changes}
    return rollmill.train("test/walk", run_dir=run_dir, quiet=True, **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> rollmill.Run:
    """A run that several tests look at. Its network fails wherever denormal numbers are kept."""
    from leftovers import nothing_is_left

    with nothing_is_left(), contextlib.redirect_stderr(io.StringIO()) as shown:
        run = train(tmp_path_factory.mktemp("finished") / "run", **{"model.encoder": "test/flushing"})
    assert not shown.getvalue(), "it was to be quiet"
    return run


def test_a_run_leaves_what_a_user_expects(finished: rollmill.Run) -> None:
    run = finished
    assert run.agent_steps >= 3000
    assert run.episode_return is not None
    assert 0.0 <= run.episode_return <= 1.0
    for name in ("config.json", "metrics.jsonl", "run.log", "ledger.txt", "learning_curve.png"):
        assert (run.dir / name).stat().st_size > 0, name
    assert (run.dir / "checkpoints" / "initial.pt").stat().st_size > 0
    assert any((run.dir / "tensorboard").iterdir())
    assert load_config(run.dir).num_envs == 8
    rows = [json.loads(line) for line in (run.dir / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["agent_steps"] == run.agent_steps
    assert rows[-1]["policy_lag_mean"] >= 0.0
    assert "Bottleneck" in run.summary


def test_the_agent_of_a_run_acts(finished: rollmill.Run) -> None:
    import numpy as np
    import torch

    agent = rollmill.load(finished.dir)
    torch.set_flush_denormal(True)
    try:
        assert agent.act(np.array([0.0, 0.0, 1.0], np.float32)) in (0, 1)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes"),
    [
        {
            "model.core": "gru",
            "model.core_size": 16,
            "learner.advantage": "vtrace",
            "rollout.groups_per_worker": 1,
            "rollout.num_workers": 1,
            "debug_poison": True,
        },
        {"model.normalise_observations": True, "model.normalise_returns": True, "learner.schedule": "kl"},
    ],
    ids=["gru-vtrace-single-buffered-poisoned", "normalisers-kl"],
)
def test_other_ways_to_run(tmp_path: Path, changes: dict[str, object]) -> None:
    assert train(tmp_path / "run", **changes).agent_steps >= 3000


@pytest.mark.slow
def test_resuming_goes_on_where_the_run_ended_and_passes_over_a_torn_checkpoint(
    finished: rollmill.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = replace(finished, dir=shutil.copytree(finished.dir, tmp_path / "run"))
    newest = sorted((first.dir / "checkpoints").glob("checkpoint_*.pt"))[-1]
    torn = newest.with_name(f"checkpoint_999999_steps_{first.agent_steps + 128:012}.pt")
    torn.write_bytes(newest.read_bytes()[:1000])
    again = rollmill.train(run_dir=first.dir, resume=True, total_steps=first.agent_steps + 2000)
    shown, log = capsys.readouterr().err.splitlines(), (first.dir / "run.log").read_text()
    assert torn.name in log
    assert shown[0] == f"run directory: {first.dir}"
    for line in (
        f"settings changed on resume: total_steps={first.agent_steps + 2000} (was 3000)",
        f"resumed at step {first.agent_steps:,}",
        f"end: finished: {again.agent_steps:,} of {first.agent_steps + 2000:,} agent steps",
    ):
        assert line in shown
        assert log.count(line) == 1
    assert shown[-3:] == next_commands(first.dir, load_config(first.dir), "total_steps", Ranks())
    assert re.findall("start: a (new|resumed) async run", log) == ["new", "resumed"]
    assert again.agent_steps >= first.agent_steps + 2000
    rows = [json.loads(line) for line in (first.dir / "metrics.jsonl").read_text().splitlines()]
    steps = [row["agent_steps"] for row in rows]
    assert steps == sorted(steps)
    versions = [row["policy_version"] for row in rows]
    assert versions == sorted(versions)
    episodes = [row["episodes"] for row in rows]
    assert episodes == sorted(episodes)
    earlier = max(i for i, row in enumerate(rows) if row["agent_steps"] <= first.agent_steps)
    assert rows[earlier]["episode_return"] is not None
    assert all(row["episode_return"] is not None for row in rows[earlier:]), "the last episodes must be kept"


def test_a_run_that_has_trained_long_enough_is_said_to_be_complete_before_anything_starts(
    finished: rollmill.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(finished.dir, tmp_path / "run")
    log = (directory / "run.log").read_text()
    again = rollmill.train(run_dir=directory, resume=True, total_steps=10_000, max_seconds=0.01)
    assert again.ended_by == "max_seconds"
    assert again.agent_steps == finished.agent_steps
    assert capsys.readouterr().err.startswith(
        f"{directory} has trained for max_seconds=0.01, which counts all sessions"
    )
    assert (directory / "run.log").read_text() == log


@slow
def test_old_samples_are_left_out_and_counted(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{"learner.max_policy_lag": 0, "learner.minibatches": 2})
    last = read_metrics(run.dir)[-1]
    assert last["stale_samples"] > 0
    assert last["agent_steps"] == run.agent_steps >= 3000


@pytest.mark.slow
def test_pictures_are_centred_by_what_a_run_has_seen(tmp_path: Path) -> None:
    import torch

    run = rollmill.train(
        "atari/pong",
        total_steps=600,
        run_dir=tmp_path / "run",
        quiet=True,
        **{"num_envs": 4, "rollout_length": 16, "learner.batch_size": 64, "learner.minibatches": 2},
    )
    newest = sorted((run.dir / "checkpoints").glob("checkpoint_*.pt"))[-1]
    model = torch.load(newest, weights_only=True)["model"]
    (count,) = [value for name, value in model.items() if name.endswith("moments.count")]
    (mean,) = [value for name, value in model.items() if name.endswith("moments.mean")]
    assert count > 0
    assert (mean[-1] - 87).abs() < 10, "Pong's background"


def test_a_run_ends_at_its_target_return(tmp_path: Path) -> None:
    # Two policy workers, and batches that end within the rows of a group.
    changes: dict[str, object] = {"inference.num_workers": 2, "learner.epochs": 2, "learner.minibatches": 2}
    changes |= {"learner.batch_size": 208, "num_envs": 12, "envs_per_group": 3, "learner.max_policy_lag": 1}
    run = train(tmp_path / "run", total_steps=10**9, target_return=-1.0, **changes)
    assert run.episode_return is not None
    assert run.episode_return >= -1.0
    assert run.ended_by == "target_return"
    assert run.agent_steps < 10**9
    assert sum(row["episodes"] >= 100 for row in read_metrics(run.dir)) >= 1


# The rest is slow: what an environment raises is tested with groups (tests/envs/test_failures.py, test_corners.py),
# and how a process can end with the supervisor (tests/runtime/test_supervisor.py).
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("constructor", "the constructor went wrong"),
        pytest.param("reset", "the reset went wrong", marks=slow),
        pytest.param("step", "the step went wrong", marks=slow),
        pytest.param("nan", "NaN|finite", marks=slow),
        ("kill", "SIGKILL"),
        pytest.param("segfault", "SIGSEGV", marks=slow),
        pytest.param("exit", "code 3", marks=slow),
        pytest.param("exit 0", "rollout worker .* code 0 before its work was done", marks=slow),
        ("exit 0 in the constructor", "probe .* code 0 before its work was done"),
        pytest.param("sys.exit", "SystemExit", marks=slow),
        pytest.param(
            "interrupt",
            r"environment \d of test/walk raised KeyboardInterrupt in its step .*: not the user's",
            marks=slow,
        ),
        ("step and close", "the step went wrong"),
    ],
)
def test_a_fault_ends_the_run_soon_and_says_what_it_was(tmp_path: Path, fault: str, message: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ProcessFailed, match=message) as failure:
        train(tmp_path / "run", total_steps=10**9, **{"env.kwargs": {"fault": fault, "child": True}})
    assert time.monotonic() - begun < 60.0
    if fault in ("constructor", "reset", "step", "sys.exit", "step and close", "interrupt"):
        assert "faulty_envs.py" in str(failure.value), "the environment's own traceback is shown"
    reason = str(failure.value).split("\n")[0]
    assert re.search(rf"end: failed .*: ProcessFailed: {re.escape(reason)}", (tmp_path / "run" / "run.log").read_text())


def test_a_hanging_environment_is_named_with_its_stack(tmp_path: Path) -> None:
    with pytest.raises(ProcessHung, match=r"rollout worker.*simulating") as failure:
        train(tmp_path / "run", total_steps=10**9, **{"env.kwargs": {"fault": "hang"}, "rollout.step_timeout_s": 3.0})
    assert "faulty_envs.py" in str(failure.value)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "hangs"), [("learner", "in training"), ("inference", "in inference")])
def test_a_hanging_network_is_named_with_its_stack(tmp_path: Path, part: str, hangs: str) -> None:
    changes = {"model.encoder": f"test/hangs {hangs}", f"{part}.step_timeout_s": 3.0}
    with pytest.raises(ProcessHung, match=rf"hangs: .*\({part}.step_timeout_s sets how many\)") as failure:
        train(tmp_path / "run", total_steps=10**9, **changes)
    assert "in forward" in str(failure.value)


@pytest.mark.slow
def test_failing_environments_are_rebuilt_within_a_budget(tmp_path: Path) -> None:
    # Each of the eight fails after 300 steps of its own, so the budget is used up in the third round.
    faults = {"env.kwargs": {"fault": "step", "after": 300}, "env.on_failure": "restart", "env.restart_budget": 20}
    with pytest.raises(ProcessFailed, match="the step went wrong"):
        train(tmp_path / "run", total_steps=10**9, **faults)
    assert read_metrics(tmp_path / "run")[-1]["agent_steps"] >= 3000


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=slow)])
def test_a_signal_saves_a_checkpoint_and_time_ends_a_run_over_all_its_sessions(
    tmp_path: Path, number: signal.Signals
) -> None:
    run_dir = tmp_path / "run"

    def interrupt() -> None:
        while (
            not (run_dir / "metrics.jsonl").exists()
            or not read_metrics(run_dir)[-1:]
            or (read_metrics(run_dir)[-1]["agent_steps"] == 0)
        ):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    run = train(run_dir, total_steps=10**9)
    assert 0 < run.agent_steps < 10**9
    state = CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).load_latest().state
    assert state["counters"]["agent_steps"] == run.agent_steps
    again = rollmill.train(run_dir=run_dir, resume=True, total_steps=run.agent_steps + 1000, quiet=True)
    assert again.agent_steps >= run.agent_steps + 1000
    before_s = state["training_s"]
    after_s = CheckpointStore(run_dir / "checkpoints", CheckpointConfig()).load_latest().state["training_s"]
    assert 0 < before_s < after_s
    limit_s = before_s + (after_s - before_s) / 2
    last = rollmill.train(run_dir=run_dir, resume=True, quiet=True, total_steps=10**9, max_seconds=limit_s)
    assert last.ended_by == "max_seconds"
    assert last.agent_steps == again.agent_steps


def test_a_signal_ends_a_run_that_is_still_building_its_first_environment(tmp_path: Path) -> None:
    def interrupt() -> None:
        time.sleep(3.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", **{"env.kwargs": {"fault": "slow constructor"}})
    assert time.monotonic() - begun < 13.0
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_directory_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        train(tmp_path)
    with pytest.raises(RunDirectoryError, match="is not a run"):
        rollmill.train(run_dir=tmp_path / "nothing", resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learner.batch_size": 100}, "96 or 104"),
        ({"num_envs": 7, "rollout.num_workers": 2}, "multiple of 4"),
        ({"envs_per_group": 3}, "does not divide"),
        ({"envs_per_group": 8, "rollout.num_workers": 2}, "more than the 1 groups"),
        ({"num_slots": 2}, "at least"),
        ({"inference.num_workers": 9}, "fewer policy workers"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        train(tmp_path / "run", **changes)
