"""Complete runs with population-based training."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.envs.agent_games import Rounds

import rollmill
from rollmill.envs.registry import register_env
from rollmill.pbt.history import PbtEvent, read_history
from rollmill.pbt.objectives import OBJECTIVES, register_objective
from rollmill.settings.run_config import load_config
from rollmill.verification import verify

SMALL: dict[str, Any] = {
    "num_envs": 9,
    "envs_per_group": 3,
    "rollout_length": 16,
    "learner.batch_size": 144,
    "learner.epochs": 1,
    "learner.minibatches": 2,
    "model.mlp_sizes": (16,),
    "population.policies": 3,
    "population.pbt": True,
    "pbt.window": 2,
    "pbt.mutation_rate": 1.0,
}


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    register_env("test/rounds", Rounds)


def train(tmp_path: Path, preset: str = "gym/CartPole-v1", **settings: Any) -> rollmill.Run:
    return rollmill.train(preset, run_dir=tmp_path / "run", quiet=True, **{**SMALL, **settings})


def last_row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return row


def check_history(history: list[PbtEvent], names: str = "012") -> None:
    """Check what holds for the history of every run."""
    assert [event.kind for event in history[: len(names)]] == ["start"] * len(names)
    for name in names:
        own = [event for event in history if event.policy == name]
        assert len(own) > 2
        for before, after in itertools.pairwise(own):
            assert after.agent_steps > before.agent_steps
            assert after.generation == before.generation + (after.kind == "replaced")
            assert after.numbers == before.numbers or after.kind != "kept"
            assert (after.source is None) == (after.kind != "replaced")
            if after.source is not None:
                assert after.scores[after.source] > after.scores[name]


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_a_population_of_single_agents_resumes_with_its_history(tmp_path: Path) -> None:
    settings = {"total_steps": 9000, "learner.schedule": "constant"}
    run = train(tmp_path, **settings)
    config = load_config(run.dir)
    assert (config.pbt.every, config.pbt.start, config.pbt.objective) == (150, 150, "return")
    history = read_history(run.dir)
    check_history(history)
    assert "replaced" in {event.kind for event in history}
    for name in "012":
        row = last_row(run.dir / "policies" / name)
        # The last event may come after the last row.
        of_events = {(event.generation, event.numbers["learning_rate"]) for event in history if event.policy == name}
        assert (row["pbt/generation"], row["pbt/learning_rate"]) in of_events
        assert row["learning_rate"] == row["pbt/learning_rate"]
    resumed = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=12_000)
    assert resumed.agent_steps >= 12_000
    longer = read_history(run.dir)
    assert longer[: len(history)] == history
    check_history(longer)
    assert len(longer) > len(history)
    rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=14_000, **{"population.pbt": False})
    rows = [last_row(run.dir / "policies" / name) for name in "012"]
    assert {row["learning_rate"] for row in rows} == {config.optimiser.learning_rate}, "numbers go with who set them"
    assert sum(row["agent_steps"] for row in rows) > 12_500
    for steps in (17_000, 20_000):  # The second time from checkpoints of the population again.
        rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=steps, **{"population.pbt": True})
        again = read_history(run.dir)
        assert again[: len(longer)] == longer
        assert len(again) > len(longer)
        longer = again
    assert [event.kind for event in longer].count("start") == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("gym/CartPole-v1", {"lag": 1, "pbt.every": 100}),
        (
            "test/rounds",
            {
                "lag": 0,
                "pbt.every": 150,
                "pbt.objective": "win_rate",
                "population.snapshots": 2,
                "population.snapshot_every": 100,
                "pbt.mutate": "learning_rate,discount,clip_range",
            },
        ),
        ("gym/CartPole-v1", {"lag": 2, "pbt.every": 100, "model.core": "gru", "learner.minibatches": 3}),
    ],
)
def test_populations_in_lockstep_are_reproducible_and_resumable(game: str, settings: dict[str, Any]) -> None:
    result = verify(game, updates=14, **{**SMALL, **settings})
    assert result.equal, result.describe()
    assert result.updates > result.resumed_from > 0


@pytest.mark.slow
def test_a_population_learns_from_a_replay(tmp_path: Path) -> None:
    settings = {key: value for key, value in SMALL.items() if not key.startswith("learner.")}
    small = {"replay.min_size": 600, "replay.capacity": 3000, "total_steps": 4500, "pbt.every": 200}
    run = rollmill.train(
        "gym/CartPole-v1", algo="dqn", run_dir=tmp_path / "run", quiet=True, **settings, **small, eval_every=None
    )
    history = read_history(run.dir)
    check_history(history)
    assert set(history[-1].numbers) == {"learning_rate", "adam_beta1"}


def test_an_objective_of_one_s_own_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OBJECTIVES, "factories", dict(OBJECTIVES.factories))
    register_objective("short", lambda results: -float(results.episodes[-1].episode_length))
    run = train(tmp_path, total_steps=5000, **{"pbt.objective": "short", "pbt.every": 200})
    history = read_history(run.dir)
    assert all(value < 0 for event in history for value in event.scores.values())
    check_history(history)


def test_an_unknown_objective_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pbt\.objective='shrt': this objective is not known"):
        train(tmp_path, total_steps=5000, **{"pbt.objective": "shrt"})


def test_matches_are_needed_where_they_are_compared(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pbt\.objective='win_rate' compares results of matches, but"):
        train(tmp_path, total_steps=5000, **{"pbt.objective": "win_rate"})


def test_several_ranks_are_refused() -> None:
    config = rollmill.make_config(
        "gym/CartPole-v1", {**SMALL, "regime": "lockstep", "num_envs": 18, "learner.batch_size": 288}
    )
    with pytest.raises(ValueError, match="several policies"):
        config.resolved(world_size=2)
