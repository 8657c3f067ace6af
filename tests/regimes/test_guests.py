"""Players that do not learn, and policies that begin with the weights of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.envs.agent_games import Crowd, Rounds

import rollmill
from rollmill.envs.registry import register_env
from rollmill.evaluation.players import PLAYERS
from rollmill.regimes.guests import random_guest
from rollmill.specs import ActionSpec, CategoricalHead
from rollmill.verification import verify

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


def make_first() -> Any:
    """Takes the first allowed action."""
    return lambda observation, mask: int(np.argmax(mask))


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    monkeypatch.setattr(PLAYERS, "factories", {})
    register_env("test/crowd", Crowd)
    register_env("test/rounds", Rounds)
    rollmill.register_player("first", make_first)


def last_row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return row


@pytest.mark.slow
@pytest.mark.usefixtures("leaves_nothing")
def test_guests_are_met_and_weights_are_taken_over(tmp_path: Path) -> None:
    recurrent = {"model.shared": True, "model.core": "gru", "model.core_size": 8}
    first = rollmill.train(
        "test/rounds", run_dir=tmp_path / "first", quiet=True, total_steps=800, **{**SMALL, **recurrent}
    )
    guests = {"population.guests": f"first,random,old={first.dir}", "population.guest_share": 0.8}
    settings = {**SMALL, **guests, "debug_poison": True, "population.snapshots": 3, "population.snapshot_every": 200}
    run = rollmill.train("test/rounds", run_dir=tmp_path / "run", quiet=True, total_steps=1500, **settings)
    row = last_row(run.dir)
    for name in ("first", "random", "old"):
        assert 0 <= row[f"win_rate/{name}"] <= 1, "none of the matches against it was counted"
    assert row["snapshots"] > 2
    loaded = {**SMALL, **recurrent, "policy.0.load": str(first.dir), "learner.learning_rate": 1e-30}
    again = rollmill.train("test/rounds", run_dir=tmp_path / "again", quiet=True, total_steps=300, **loaded)
    before, after = (rollmill.load(of.dir).snapshot.weights for of in (first, again))
    assert [
        key for key in before if "normaliser" not in key and not np.allclose(before[key], after[key], atol=1e-6)
    ] == []
    resumed = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=1800)
    assert resumed.agent_steps >= 1800


def test_guests_with_agents_of_their_own_play_no_others(tmp_path: Path) -> None:
    guests = {"population.guests": "first,random", "policy.first.agents": "ann", "policy.random.agents": "bob"}
    run = rollmill.train("test/crowd", run_dir=tmp_path / "run", quiet=True, total_steps=600, **{**SMALL, **guests})
    row = last_row(run.dir)
    # Of three agents one learns.
    assert row["agent_steps"] < 1000
    assert row["win_rate/first"] is not None


@pytest.mark.slow
def test_runs_with_guests_in_lockstep_are_reproducible() -> None:
    small = {key: value for key, value in SMALL.items() if key != "rollout.num_workers"}
    guests = {"population.guests": "random", "population.guest_share": 0.5, "population.policies": 2}
    result = verify("test/rounds", updates=6, lag=1, **{**small, **guests})
    assert result.equal, result.describe()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population.guests": "nobody"}, "player 'nobody' is not known"),
        ({"policy.0.load": "no/such/run"}, "no/such/run is not a run"),
        ({"policy.0.load": 3}, r"policy\.0\.load=3: give a run directory"),
        ({"population.guests": "0=random"}, "must differ"),
        ({"population.guests": "random", "policy.random.learner.epochs": 2}, "random is a guest, which does not learn"),
        ({"population.guests": "random", "policy.random.agents": "ann,bob,cid"}, "policy 0 plays no agent"),
    ],
)
def test_guests_that_no_run_could_have_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        rollmill.train("test/rounds", run_dir=tmp_path / "run", quiet=True, total_steps=1000, **settings)


def test_a_guest_needs_other_agents(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has one agent: guests play against policies"):
        rollmill.train(
            "gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, total_steps=3000, **{"population.guests": "random"}
        )


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    first = rollmill.train("test/rounds", run_dir=tmp_path / "first", quiet=True, total_steps=200, **SMALL)
    wider = {**SMALL, "model.mlp_sizes": (32,), "policy.0.load": str(first.dir)}
    with pytest.raises(ValueError, match="do not fit this environment and network"):
        rollmill.train("test/rounds", run_dir=tmp_path / "run", quiet=True, total_steps=200, **wider)


def test_random_choices_depend_on_the_batch_and_the_step_alone() -> None:
    guest = random_guest(ActionSpec(heads=(CategoricalHead(n=50),), structure="discrete"), "clip", 3)
    one, again, later = (guest.choose({}, None, 8, when)[0] for when in ((0, 1, 2), (0, 1, 2), (0, 1, 3)))
    assert one is not None
    assert again is not None
    np.testing.assert_array_equal(one, again)
    assert (one != later).any()
    other = random_guest(ActionSpec(heads=(CategoricalHead(n=50),), structure="discrete"), "clip", 3, 1)
    assert (one != other.choose({}, None, 8, (0, 1, 2))[0]).any(), "two guests would do the same"
