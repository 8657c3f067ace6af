"""Complete runs of the replay regime with several agents that share one policy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.envs.agent_games import AGENTS, Crowd, Dials, Rounds
from tests.regimes.nim import Nim

import rollmill
from rollmill.envs.registry import register_env
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.value_checks import ConfigError

pytestmark = pytest.mark.usefixtures("leaves_nothing")

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 16,
    "rollout.num_workers": 2,
    "learner.batch_size": 16,
    "model.mlp_sizes": (16,),
    "replay.capacity": 1000,
    "replay.min_size": 200,
    "replay.update_interval": 2,
    "debug_poison": True,
}


class Breaks(Rounds):
    """Raises in some episodes, in the turn of any agent."""

    def step(self, action: int | None) -> None:
        if self.episode % 5 == 3 and self.time == 2:
            raise RuntimeError("it fell over")
        super().step(action)


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    for game in (Crowd, Rounds, Dials, Breaks, Nim):
        register_env(f"test/{game.__name__.lower()}", game)


def train(game: str, run_dir: Path, **changes: Any) -> tuple[rollmill.Run, dict[str, Any]]:
    settings = {**SMALL, "algo": "dqn", "total_steps": 1200, **changes}
    run = rollmill.train(f"test/{game}", run_dir=run_dir, quiet=True, **settings)
    return run, read_metrics(run_dir)[-1]


def counted(run: rollmill.Run, kind: str) -> int:
    """Sum of the last but one column of the ledger: agent steps of rollout workers, rows of policy workers."""
    found = re.findall(rf"^{kind} \d+ .* ([\d,]+) +[\d,]+$", (run.dir / "ledger.txt").read_text(), re.M)
    return sum(int(number.replace(",", "")) for number in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "changes"),
    [
        ("rounds", {"replay.priorities": "proportional", "off_policy.double": True}),
        ("crowd", {"replay.storage": "file"}),
        ("rounds", {"algo": "sac", "replay.storage": "file"}),
        ("dials", {"algo": "sac"}),
        ("dials", {"algo": "td3", "off_policy.noise_kind": "ou"}),
        ("crowd", {"learner.num_learners": 2, "replay.remover": "uniform"}),
        ("rounds", {"inference.num_workers": 2, "replay.n_step": 5}),
    ],
)
def test_agents_that_come_wait_and_die_learn_from_a_replay(game: str, changes: dict[str, Any], tmp_path: Path) -> None:
    run, last = train(game, tmp_path / "run", **changes)
    rows = SMALL["num_envs"] * len(AGENTS)
    assert run.ended_by == "total_steps"
    assert 1200 <= run.agent_steps < 1200 + rows
    assert last["episodes"] > 50
    # One SGD step for two turns, from 200 on.
    assert 500 <= last["batches"] <= 500 + rows
    # Steps at which an agent waits take places of the replay, but are no agent steps of it.
    assert 300 < last["replay/size"] <= 1200
    # A row has the episodes since the one before it; the last one may come right after another.
    named = set().union(*read_metrics(run.dir))
    assert {f"agent/{agent}/episode_return" for agent in AGENTS} <= named
    assert np.isfinite([value for name, value in last.items() if name.startswith("loss/") and value is not None]).all()
    assert counted(run, "rollout worker") == run.agent_steps
    # Besides turns, only final observations are shown to the policy.
    assert run.agent_steps <= counted(run, "policy worker") <= run.agent_steps + last["episodes"] + rows
    if "replay.storage" in changes:
        resumed = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=1800)
        assert 1800 <= resumed.agent_steps < 1800 + rows
        assert read_metrics(run.dir)[-1]["batches"] == pytest.approx(800, abs=rows)
        assert "is recreated" not in (run.dir / "run.log").read_text()
    else:
        result = rollmill.evaluate(run.dir, episodes=4, num_envs=2)
        assert result.deterministic
        # An agent may be absent from an episode.
        assert 2 * len(AGENTS) <= len(result.returns) <= 4 * len(AGENTS)


@pytest.mark.slow
def test_an_environment_that_is_rebuilt_costs_turns_alone(tmp_path: Path) -> None:
    run, last = train("breaks", tmp_path / "run", **{"env.on_failure": "restart", "env.restart_budget": 1000})
    assert run.ended_by == "total_steps"
    assert "it fell over" in (run.dir / "run.log").read_text()
    assert last["batches"] >= 500


@pytest.mark.slow
def test_evaluations_meet_fixed_opponents(tmp_path: Path) -> None:
    run, _ = train("nim", tmp_path / "run", eval_every=500, eval_episodes=3, eval_against="random")
    found = [json.loads(line) for line in (run.dir / "evaluations.jsonl").read_text().splitlines()]
    assert len(found) >= 2
    assert all(0 <= record["against"]["random"] <= 1 for record in found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model.core": "gru", "replay.sequence_length": 4, "replay.n_step": 1},
            r"replay\.sequence_length=4, but test/rounds has 3 agent\(s\), which do not act at every step",
        ),
    ],
)
def test_what_a_replay_of_several_agents_lacks_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        train("rounds", tmp_path / "run", **settings)


@pytest.mark.slow
def test_a_policy_that_sees_its_opponents_move_learns_to_win(tmp_path: Path) -> None:
    """Nim of seven matches: the first player wins by leaving a multiple of four."""
    learning: dict[str, Any] = {
        "total_steps": 4000,
        "learner.batch_size": 64,
        "learner.learning_rate": 1e-3,
        "model.mlp_sizes": (64,),
        "replay.n_step": 1,
        "replay.min_size": 500,
        "off_policy.target_update_every": 100,
    }
    run, _ = train("nim", tmp_path / "run", **learning)
    result = rollmill.tournament([run.dir, "random"], matches=100, deterministic=True)
    assert result.scores[0, 1, 0].share > 0.95, result.describe()
