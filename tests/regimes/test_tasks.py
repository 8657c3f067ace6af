"""Several tasks in one run: shares, returns and networks of real runs, in all regimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rollmill
from rollmill.envs.user_code import import_user_code
from rollmill.pbt.history import read_history
from rollmill.reporting.metrics import read_metrics
from rollmill.runtime.events import ProcessFailed
from rollmill.verification import verify

CARTPOLE, ACROBOT, CAR = "gym/CartPole-v1", "gym/Acrobot-v1", "gym/MountainCar-v0"
TASKS = [CARTPOLE, ACROBOT, CAR]
SMALL: dict[str, Any] = {
    "num_envs": 12,
    "rollout_length": 16,
    "learner.batch_size": 384,
    "learner.epochs": 2,
    "learner.minibatches": 4,
    "learner.precision": "fp32",
    "inference.precision": "fp32",
    "model.mlp_sizes": (32,),
    "rollout.num_workers": 2,
    "report_every_s": 0.2,
    "quiet": True,
}


def last_row(run: rollmill.Run) -> dict[str, Any]:
    return read_metrics(run.dir)[-1]


@pytest.mark.slow
def test_each_task_gets_as_many_samples_and_its_returns_are_told_apart(tmp_path: Path) -> None:
    run = rollmill.train(TASKS, run_dir=tmp_path / "run", total_steps=8_000, **SMALL)
    row = last_row(run)
    shares = [row[f"task/{name}/samples"] for name in TASKS]
    assert shares == pytest.approx([1 / 3] * 3, rel=0.02)
    assert sum(row[f"task/{name}/compute"] for name in TASKS) == pytest.approx(1.0)
    assert row[f"task/{CAR}/episode_return"] == -200.0, "random play never reaches the top"
    assert 9 < row[f"task/{CARTPOLE}/episode_return"] <= 500
    assert -500 <= row[f"task/{ACROBOT}/episode_return"] < 0
    # Of CartPole, fewer of the newest episodes count here.
    assert row["episode_return"] == pytest.approx(
        np.mean([row[f"task/{name}/episode_return"] for name in TASKS]), abs=9
    )
    assert run.episode_return == row["episode_return"]
    with Image.open(run.dir / "tasks.png") as picture:
        assert picture.size[0] > 500
    config = json.loads((run.dir / "config.json").read_text())
    assert config["env"]["tasks"] == TASKS
    found = rollmill.evaluate(run.dir, episodes=2)
    assert list(found.tasks) == TASKS
    assert found.tasks[CAR][0] == -200.0
    assert rollmill.evaluate(run.dir, episodes=2, task="MountainCar-v0").mean == -200.0


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_counts(tmp_path: Path) -> None:
    run = rollmill.train(TASKS[:2], run_dir=tmp_path / "run", total_steps=3_000, **SMALL)
    before = last_row(run)
    resumed = rollmill.train(run_dir=run.dir, resume=True, total_steps=6_000, quiet=True)
    after = last_row(resumed)
    assert after["agent_steps"] >= 6_000
    assert after[f"task/{CARTPOLE}/episode_return"] is not None
    rows = read_metrics(run.dir)
    at_resume = next(row for row in rows if row["agent_steps"] >= before["agent_steps"])
    assert at_resume[f"task/{CARTPOLE}/episode_return"] is not None, "the newest returns are kept"


@pytest.mark.slow
def test_each_task_has_workers_of_its_own_with_equal_compute(tmp_path: Path) -> None:
    settings = {**SMALL, "rollout.num_workers": "auto"}
    run = rollmill.train(TASKS[:2], run_dir=tmp_path / "run", total_steps=6_000, task_share="compute", **settings)
    row = last_row(run)
    assert sum(row[f"task/{name}/samples"] for name in TASKS[:2]) == pytest.approx(1.0)
    # Every process of a worker steps one task, so that its account is the task's.
    ledger = (run.dir / "ledger.txt").read_text()
    assert "rollout worker 1" in ledger


@pytest.mark.slow
def test_off_policy_algorithms_learn_tasks_from_one_replay(tmp_path: Path) -> None:
    run = rollmill.train(
        TASKS[:2],
        algo="dqn",
        run_dir=tmp_path / "run",
        total_steps=3_000,
        quiet=True,
        **{"replay.min_size": 500, "replay.capacity": 4_000, "model.mlp_sizes": (16,)},
    )
    assert set(rollmill.evaluate(run.dir, episodes=1).tasks) == set(TASKS[:2])
    agent = rollmill.load(run.dir, task="CartPole-v1")
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.slow
def test_policies_of_a_population_play_all_tasks(tmp_path: Path) -> None:
    run = rollmill.train(
        [CARTPOLE, CAR],
        run_dir=tmp_path / "run",
        total_steps=24_000,
        policies=2,
        pbt=True,
        **{**SMALL, "num_envs": 16, "pbt.every": 1_500, "pbt.window": 4},
    )
    for policy in ("0", "1"):
        row = read_metrics(run.dir / "policies" / policy)[-1]
        # A replacement leaves out what the replaced weights have sampled, of one task perhaps more than of the other,
        # and with an event after every 1,500 steps that is much of the few thousand samples of the last rows.
        assert row[f"task/{CARTPOLE}/samples"] == pytest.approx(0.5, rel=0.15)
    assert read_history(run.dir), "policies with enough episodes of each task are compared"
    both = [read_metrics(run.dir / "policies" / policy)[-1][f"task/{CARTPOLE}/samples"] for policy in ("0", "1")]
    assert last_row(run)[f"task/{CARTPOLE}/samples"] == pytest.approx(np.mean(both), abs=0.02)


@pytest.mark.slow
def test_lockstep_is_reproducible_with_tasks() -> None:
    result = verify(",".join(TASKS), updates=4, num_envs=12, rollout_length=16)
    assert result.equal


def test_a_task_that_fails_is_named(tmp_path: Path) -> None:
    module = str(Path(__file__).parent / "broken_task.py")
    import_user_code(module)
    with pytest.raises(ProcessFailed, match="test/broken_task"):
        rollmill.train(
            [CARTPOLE, "test/broken_task"],
            run_dir=tmp_path / "run",
            imports=(module,),
            **SMALL,
        )
