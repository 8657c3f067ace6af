"""What a run says of its batches: of their size, of a long time to fill one, and of having learned nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import rollmill
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.learning.report import LearnerReport, PolicyLag
from rollmill.regimes import running
from rollmill.regimes.first_batch import long_wait, nothing_learned
from rollmill.settings.config import Config
from rollmill.specs import EnvSpec

SPEC = EnvSpec(
    name="test/walk",
    observation=observation_specs(spaces.Box(-1, 1, (3,), np.float32)),
    action=action_spec(spaces.Discrete(2)),
)


def config(algo: str | None = None, **changes: Any) -> Config:
    return rollmill.make_config("gym/CartPole-v1", {"num_envs": 8, **changes}, algo=algo).resolved()


def report(sgd_steps: int = 0, stale_samples: int = 0) -> LearnerReport:
    return LearnerReport(agent_steps=0, sgd_steps=sgd_steps, lag=PolicyLag(stale_samples=stale_samples))


def test_a_batch_that_takes_long_to_fill_is_announced() -> None:
    (line,) = long_wait(config(**{"learner.batch_size": 1_024_000, "total_steps": 4_000_000}), SPEC)
    assert "1,024,000 agent steps" in line
    assert "128,000 steps of each of the 8 rows" in line
    assert "26% of the 4,000,000" in line
    endless = config(**{"learner.batch_size": 1_024_000, "total_steps": 10**12})
    assert len(long_wait(endless, SPEC)) == 1
    usual = config(**{"learner.batch_size": 1024, "total_steps": 100_000})
    assert long_wait(usual, SPEC) == []
    assert len(long_wait(usual, SPEC, steps_done=95_000)) == 1
    assert long_wait(usual, SPEC, steps_done=100_000) == []


def test_batches_of_all_policies_are_counted() -> None:
    settings = {"population.policies": "a,b,c", "num_envs": 48, "total_steps": 3000}
    of_policies = rollmill.make_config("gym/CartPole-v1", {**settings, "policy.c.learner.batch_size": 2048})
    (line,) = long_wait(of_policies, SPEC)
    assert "a batch for each of 3 policies takes 4,096 agent steps" in line
    assert "86 steps of each of the 48 rows and 137% of the 3,000 remaining" in line


def test_a_replay_that_takes_long_to_fill_is_announced() -> None:
    (line,) = long_wait(config("dqn", **{"replay.min_size": 9_000, "total_steps": 10_000}), SPEC)
    assert "after 9,000 agent steps (replay.min_size), 90% of the 10,000" in line
    few = {"replay.min_size": 300, "total_steps": 10_000}
    assert long_wait(config("dqn", **few), SPEC) == []
    (line,) = long_wait(config("dqn", **few, **{"population.policies": 4}), SPEC)
    assert "after 1,200 agent steps (replay.min_size, of each of 4 policies), 12% of the 10,000" in line


def test_the_reason_for_having_learned_nothing_is_given() -> None:
    def lines(settings: Config, before: int = 0, **changes: Any) -> list[str]:
        return nothing_learned(settings, report(**changes), {}, sgd_steps_before=before, why="max_seconds")

    on_policy, replay = config(**{"learner.batch_size": 10_240}), config("dqn")
    assert lines(on_policy, sgd_steps=3) == []
    assert "a batch takes learner.batch_size=10,240" in lines(on_policy)[0]
    assert "7 samples were older than learner.max_policy_lag=" in lines(on_policy, stale_samples=7)[0]
    assert "learning begins at replay.min_size=" in lines(replay, before=5, sgd_steps=5)[0]


def test_a_run_whose_time_was_over_when_it_was_resumed_says_so() -> None:
    settings = config(max_seconds=18)
    (line,) = nothing_learned(settings, report(), {}, sgd_steps_before=0, why="max_seconds", seconds_before=18.4)
    assert "earlier sessions of this run trained for 18 s, and max_seconds=18 counts all sessions" in line
    assert "give a larger max_seconds" in line
    (line,) = nothing_learned(settings, report(), {}, sgd_steps_before=0, why="max_seconds", seconds_before=9.0)
    assert "before its first SGD step" in line


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_that_learns_nothing_says_so(tmp_path: Path) -> None:
    from faulty_envs import TINY

    settings = {**TINY, "learner.batch_size": 1_000_000, "max_seconds": 1.0}
    outcome = running.run(rollmill.make_config("test/walk", settings).resolved(), tmp_path, quiet=True)
    log = (tmp_path / "run.log").read_text()
    assert outcome.ended_by == "max_seconds"
    assert "a batch takes 1,000,000 agent steps (learner.batch_size)" in log
    assert "nothing was learned: the run ended (max_seconds) before its first SGD step" in outcome.summary
    assert "nothing was learned" in log


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_says_at_its_start_what_batch_size_has_set(tmp_path: Path) -> None:
    given: dict[str, Any] = {"num_envs": 2, "batch_size": 64}
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", total_steps=64, quiet=True, **given)
    assert "learner.batch_size=64 is the whole batch, in 4 minibatches of 16" in (run.dir / "run.log").read_text()
