"""Evaluations while a run trains, with all its real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rollmill
from rollmill.storage.checkpoint_file import read_header
from rollmill.storage.evaluations import EvaluationQueue

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["async", "lockstep"])
def test_every_network_that_is_left_is_played(tmp_path: Path, regime: str) -> None:
    run = rollmill.train(
        "gym/CartPole-v1",
        run_dir=tmp_path / "run",
        total_steps=9000,
        quiet=True,
        regime=regime,
        eval_every=3000,
        eval_episodes=5,
    )
    queue = EvaluationQueue(run.dir)
    assert queue.pending() == []
    records = queue.records()
    steps = [record["agent_steps"] for record in records]
    assert steps[0] == 0
    assert steps[-1] == run.agent_steps
    assert {step // 3000 for step in steps} >= {0, 1, 2}
    for record in records:
        assert record["episodes"] == len(record["returns"]) == 5
        assert record["mean_return"] == pytest.approx(sum(record["returns"]) / 5)
        # CartPole's return is its length: whole episodes, undiscounted and not clipped.
        assert record["returns"] == record["lengths"]
    scalars = EventAccumulator(str(run.dir / "tensorboard")).Reload().Scalars("evaluation/mean_return")
    assert [(event.step, event.value) for event in scalars] == [
        (record["agent_steps"], pytest.approx(record["mean_return"])) for record in records
    ]
    best = max(records, key=lambda record: record["mean_return"])
    header = read_header(run.dir / "checkpoints" / "best.pt")
    assert header == (1, best["agent_steps"], best["mean_return"], "evaluation_return", "mean return")
    assert rollmill.load(run.dir, checkpoint="best").snapshot.agent_steps == best["agent_steps"]
    log = (run.dir / "run.log").read_text()
    assert log.count("evaluation at step ") == len(records)
    assert f"best.pt is of {best['agent_steps']:,} agent steps, by evaluation_return" in log
