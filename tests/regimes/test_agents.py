"""Complete runs with several agents, and with past selves as opponents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.envs.agent_games import AGENTS, Crowd, Rounds

import rollmill
from rollmill.envs.registry import register_env
from rollmill.evaluation.players import PLAYERS
from rollmill.runtime.events import ProcessFailed
from rollmill.settings.value_checks import ConfigError
from rollmill.verification import verify

GAMES = {"test/crowd": Crowd, "test/rounds": Rounds}
SMALL: dict[str, Any] = {
    "num_envs": 8,
    "envs_per_group": 2,
    "rollout_length": 16,
    "rollout.num_workers": 2,
    "learner.batch_size": 128,
    "learner.epochs": 1,
    "learner.minibatches": 2,
    "model.mlp_sizes": (16,),
}
WITH_PAST: dict[str, Any] = {
    "population.snapshots": 3,
    "population.snapshot_every": 150,
    "population.past": 0.5,
    "population.matchmaking": "pfsp",
}


class Breaks(Rounds):
    """Raises in the turn of bob."""

    def step(self, action: int | None) -> None:
        if self.episode == 3 and self.agent_selection == "bob":
            raise RuntimeError("bob fell over")
        super().step(action)


def make_first() -> Any:
    """Takes the first allowed action."""
    return lambda observation, mask: int(np.argmax(mask))


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    for name, game in {**GAMES, "test/breaks": Breaks}.items():
        register_env(name, game)


def rows_of(run: rollmill.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("test/crowd", {}),
        pytest.param("test/rounds", {"model.core": "gru", "model.core_size": 8}, marks=pytest.mark.slow),
        pytest.param("test/rounds", {}, marks=pytest.mark.slow),
        pytest.param("test/crowd", {"model.core": "gru", "model.core_size": 8}, marks=pytest.mark.slow),
        pytest.param("test/rounds", {"algo": "impala"}, marks=pytest.mark.slow),
        pytest.param("test/crowd", {"algo": "impala"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("leaves_nothing")
def test_agents_that_come_wait_and_die_are_trained_and_evaluated(
    game: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    options = {**SMALL, **WITH_PAST, "debug_poison": True, **settings}
    run = rollmill.train(game, run_dir=tmp_path / "run", quiet=True, total_steps=1500, **options)
    assert run.ended_by == "total_steps"
    rows = rows_of(run)
    last = rows[-1]
    assert last["episodes"] > 50
    assert last["snapshots"] >= 5
    # A short interval may have no match.
    rates = [row["past_win_rate"] for row in rows if row["past_win_rate"] is not None]
    assert rates
    assert all(0 <= rate <= 1 for rate in rates)
    resumed = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=2200)
    assert rows_of(resumed)[-1]["snapshots"] > last["snapshots"]
    result = rollmill.evaluate(run.dir, episodes=4, num_envs=2)
    # An agent may be absent from an episode.
    assert 2 * len(AGENTS) <= len(result.returns) <= 4 * len(AGENTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("test/crowd", {"lag": 1, "model.central_value": True, "population.snapshots": 0}),
        ("test/rounds", {"lag": 0, "population.rating": "openskill", "population.snapshot_win_rate": 0.1}),
        ("test/rounds", {"lag": 1, "model.core": "gru", "model.core_size": 8}),
        ("test/crowd", {"lag": 2, "checkpoint.save_environments": False}),
        ("test/crowd", {"lag": 1, "algo": "impala"}),
    ],
)
def test_self_play_in_lockstep_is_reproducible_and_resumable(game: str, settings: dict[str, Any]) -> None:
    small = {key: value for key, value in SMALL.items() if key != "rollout.num_workers"}
    result = verify(game, updates=14, **{**small, **WITH_PAST, "population.snapshot_every": 60, **settings})
    assert result.equal, result.describe()
    assert result.updates == 14, "also where agents act at the same time and share an update's samples"
    assert result.workers_a != result.workers_b
    assert result.resumed_from > 0


@pytest.mark.slow
def test_a_central_value_is_learned_and_the_agent_acts_without_it(tmp_path: Path) -> None:
    settings = {**SMALL, "model.central_value": True, "model.normalise_observations": True, "debug_poison": True}
    settings |= {"population.policies": 2, "policy.1.model.central_value": False, "eval_every": 500}
    run = rollmill.train("test/crowd", run_dir=tmp_path / "run", quiet=True, total_steps=1500, **settings)
    agent = rollmill.load(run.dir, policy="0")
    assert agent.act(np.zeros(3, np.float32)) in range(4)
    assert (run.dir / "policies/0/evaluations.jsonl").read_text()
    assert len(rollmill.evaluate(run.dir, episodes=2).policies) == 2
    guests = {**SMALL, "population.guests": f"central={run.dir / 'policies/0'}", "policy.central.agents": "cid"}
    later = rollmill.train("test/crowd", run_dir=tmp_path / "later", quiet=True, total_steps=500, **guests)
    assert later.ended_by == "total_steps"
    with pytest.raises(ValueError, match="has one agent: a central value is for several"):
        rollmill.train(
            "gym/CartPole-v1", run_dir=tmp_path / "one", quiet=True, total_steps=500, **{"model.central_value": True}
        )


@pytest.mark.slow
def test_evaluations_meet_fixed_opponents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLAYERS, "factories", {})
    rollmill.register_player("first", make_first)
    opponents = {"eval_every": 400, "eval_episodes": 3, "eval_against": "random,first"}
    run = rollmill.train("test/rounds", run_dir=tmp_path / "run", quiet=True, total_steps=900, **{**SMALL, **opponents})
    found = [json.loads(line) for line in (run.dir / "evaluations.jsonl").read_text().splitlines()]
    assert len(found) >= 3
    for record in found:
        assert set(record["against"]) == {"random", "first"}
        assert all(0 <= share <= 1 for share in record["against"].values())
    assert "share of the points" in (run.dir / "run.log").read_text()


@pytest.mark.parametrize(
    ("game", "message"),
    [("test/rounds", "eval_against='frist': this player is not known"), ("gym/CartPole-v1", "one agent")],
)
def test_unknown_opponents_are_refused_before_training(game: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        rollmill.train(game, run_dir=tmp_path / "run", quiet=True, eval_every=900, eval_against="frist")


@pytest.mark.usefixtures("leaves_nothing")
def test_an_agent_that_raises_ends_the_run_with_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="bob fell over") as failure:
        rollmill.train("test/breaks", run_dir=tmp_path / "run", quiet=True, total_steps=100_000, **SMALL)
    assert "of test/breaks raised RuntimeError in its step" in str(failure.value)


@pytest.mark.slow
def test_an_environment_that_is_rebuilt_costs_its_turns_alone(tmp_path: Path) -> None:
    options = {**SMALL, **WITH_PAST, "env.on_failure": "restart", "env.restart_budget": 1000}
    run = rollmill.train("test/breaks", run_dir=tmp_path / "run", quiet=True, total_steps=1000, **options)
    assert run.ended_by == "total_steps"
    assert "bob fell over" in (run.dir / "run.log").read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population.snapshots": -1}, r"population\.snapshots=-1"),
        ({"population.past": 1.5}, r"population\.past=1\.5"),
    ],
)
def test_settings_that_no_run_could_follow_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        rollmill.train("test/rounds", run_dir=tmp_path / "run", quiet=True, total_steps=10_000, **settings)


def test_past_selves_need_several_agents(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"population\.snapshots=2, but gym/CartPole-v1 has one agent"):
        rollmill.train(
            "gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, total_steps=100, **{"population.snapshots": 2}
        )


@pytest.mark.slow
def test_a_policy_that_sees_its_opponents_move_learns_to_win(tmp_path: Path) -> None:
    """Nim of seven matches: the first player wins by leaving a multiple of four."""
    from tests.regimes.nim import Nim

    register_env("test/nim", Nim)
    run = rollmill.train(
        "test/nim",
        run_dir=tmp_path / "run",
        quiet=True,
        total_steps=40_000,
        **{"num_envs": 32, "learner.batch_size": 1024, "learner.minibatches": 8, "learner.epochs": 4},
        **{"learner.learning_rate": 1e-3, "population.snapshots": 4, "population.snapshot_every": 5_000},
    )
    result = rollmill.tournament([run.dir, "random"], matches=100, deterministic=True)
    first = result.scores[0, 1, 0]
    assert first.share > 0.95, result.describe()
    assert np.isfinite(result.ratings).all()
    # Both players get better, which the mean over agents cannot show.
    returns = [row["agent/first/episode_return"] for row in rows_of(run) if "agent/first/episode_return" in row]
    assert max(value for value in returns if value is not None) > 0
