"""Complete runs of the replay regime with several policies, guests and past selves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.envs.agent_games import Crowd, Dials, Rounds
from tests.regimes.nim import Nim

import rollmill
from rollmill.envs.registry import register_env
from rollmill.evaluation.players import PLAYERS
from rollmill.reporting.metric_table import metric_names
from rollmill.reporting.metrics import read_metrics
from rollmill.rollout.assignment import ASSIGNMENTS
from rollmill.runtime.events import ProcessFailed
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

pytestmark = pytest.mark.usefixtures("leaves_nothing")
slow = pytest.mark.slow

SMALL: dict[str, Any] = {
    "algo": "dqn",
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 16,
    "rollout.num_workers": 2,
    "learner.batch_size": 16,
    "model.mlp_sizes": (16,),
    "replay.capacity": 1000,
    "replay.min_size": 100,
    "replay.update_interval": 2,
    "off_policy.random_steps": 50,
    "report_every_s": 0.2,
    "debug_poison": True,
}
ROLES: dict[str, Any] = {
    "population.policies": "one,others",
    "policy.one.agents": "ann",
    "policy.others.agents": "bob,c*",
}
WITH_PAST: dict[str, Any] = {"population.snapshots": 3, "population.snapshot_every": 100, "population.past": 0.5}
RECURRENT: dict[str, Any] = {
    "model.core": "gru",
    "model.core_size": 16,
    "replay.sequence_length": 8,
    "replay.burn_in": 2,
}
MOST_AHEAD = 4 * 3 + 2  # steps by which a policy's learner may be ahead or behind: all rows, and an interval


def make_first() -> Any:
    """Takes the first allowed action."""
    return lambda observation, mask: int(np.argmax(mask))


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    monkeypatch.setattr(PLAYERS, "factories", {})
    monkeypatch.setattr(ASSIGNMENTS, "factories", {})
    for game in (Crowd, Rounds, Dials, Nim):
        register_env(f"test/{game.__name__.lower()}", game)
    rollmill.register_player("first", make_first)


def train(game: str, run_dir: Path, **changes: Any) -> tuple[rollmill.Run, dict[str, Any]]:
    run = rollmill.train(game, run_dir=run_dir, quiet=True, **{**SMALL, "total_steps": 1500, **changes})
    return run, read_metrics(run_dir)[-1]


def rows_of(run: rollmill.Run, policy: str) -> list[dict[str, Any]]:
    return read_metrics(run.dir / "policies" / policy)


def state_of(folder: Path, *, newest: bool = True) -> dict[str, Any]:
    store = CheckpointStore(folder / "checkpoints", CheckpointConfig())
    if newest:
        return store.load_latest().state
    return dict(torch.load(folder / "checkpoints" / "initial.pt", weights_only=True))


def assert_each_learned_in_its_ratio(run: rollmill.Run, names: str | tuple[str, ...], least: int = 100) -> None:
    """One SGD step for two of a policy's own agent steps, from its min_size on."""
    for name in names:
        last = rows_of(run, name)[-1]
        due = (last["agent_steps"] - least) / 2
        assert due - 1 <= last["batches"] <= due + MOST_AHEAD / 2 + 1, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "changes"),
    [
        ("test/rounds", {"replay.priorities": "proportional", "population.policies": "a,b,c"}),
        ("test/crowd", {"population.policies": "a,b,c", "replay.n_step": 2}),
        ("gym/CartPole-v1", {"population.policies": "a,b,c", "policy.b.model.mlp_sizes": (8,)}),
        ("test/rounds", {"population.policies": "a,b,c", "policy.b.off_policy.algorithm": "sac"}),
        ("test/dials", {"population.policies": "a,b,c", "algo": "sac"}),
        ("test/dials", {"population.policies": "a,b,c", "algo": "td3", "policy.b.off_policy.noise_kind": "ou"}),
        ("gym/Pendulum-v1", {"population.policies": "a,b,c", "algo": "ddpg", "inference.num_workers": 2}),
    ],
)
def test_each_policy_learns_from_its_own_steps_in_the_ratio_that_was_asked_for(
    game: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    run, last = train(game, tmp_path / "run", **changes)
    assert run.ended_by == "total_steps"
    assert 1500 <= run.agent_steps < 1500 + MOST_AHEAD
    assert sum(rows_of(run, name)[-1]["agent_steps"] for name in "abc") == run.agent_steps
    assert_each_learned_in_its_ratio(run, "abc")
    assert last["batches"] == sum(rows_of(run, name)[-1]["batches"] for name in "abc")
    # Slots are evicted between the last row of a policy and the run's, so the sum is not exact.
    sizes = [rows_of(run, name)[-1]["replay/size"] for name in "abc"]
    assert min(sizes) > 0, "whose steps are held depends on who played last"
    assert 300 < last["replay/size"] <= 1500
    assert last["replay/batches_skipped"] == 0
    written = {key for row in read_metrics(run.dir) for key in row}
    assert {name for name in metric_names() if name.startswith("replay/")} <= written
    losses = [row[key] for row in rows_of(run, "c") for key in row if key.startswith("loss/") and row[key] is not None]
    assert losses
    assert np.isfinite(losses).all()
    weights = [state_of(run.dir / "policies" / name)["model"] for name in "ac"]
    assert not all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    if game == "test/rounds":
        for name in "abc":
            assert 0 <= rows_of(run, name)[-1]["win_rate/" + ("b" if name == "a" else "a")] <= 1
    result = rollmill.evaluate(run.dir, episodes=2, policy="b", num_envs=2)
    assert len(result.returns) >= 2


@slow
def test_policies_with_learning_rates_of_their_own_each_learn(tmp_path: Path) -> None:
    """On CartPole; one whose weights do not change stays as it was."""
    settings: dict[str, Any] = {
        "population.policies": "slow,fast,still",
        "policy.slow.learner.learning_rate": 1e-3,
        "policy.fast.learner.learning_rate": 2.3e-3,
        "policy.still.learner.learning_rate": 1e-30,
        "num_envs": 6,
        "total_steps": 24_000,
        "learner.batch_size": 64,
        "model.mlp_sizes": (64, 64),
        "replay.capacity": 30_000,
        "replay.min_size": 500,
        "replay.update_interval": 1,
        "off_policy.epsilon_fraction": 0.3,
        "off_policy.target_update_every": 200,
        "debug_poison": False,
    }
    run, last_row = train("gym/CartPole-v1", tmp_path / "run", **settings)
    returns = {name: last_row[f"policy/{name}/episode_return"] for name in ("slow", "fast", "still")}
    assert min(returns["slow"], returns["fast"]) > 45 > 30 > returns["still"], returns
    first, last = (state_of(run.dir / "policies" / "still", newest=newest)["model"] for newest in (False, True))
    assert all(torch.allclose(first[key], last[key], rtol=0, atol=1e-12) for key in first)


@pytest.mark.parametrize(
    ("algo", "continuous"),
    [("dqn", False), pytest.param("sac", True, marks=slow), pytest.param("td3", True, marks=slow)],
)
def test_roles_of_a_chase_are_played_by_their_policies_alone(algo: str, continuous: bool, tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    roles = {
        "population.policies": "hunter,prey",
        "policy.hunter.agents": "adversary_*",
        "policy.prey.agents": "agent_*",
        "policy.hunter.model.mlp_sizes": (32,),
        "env.kwargs.continuous_actions": continuous,
    }
    run, _ = train("mpe/simple_tag_v3", tmp_path / "run", algo=algo, **roles)
    hunter, prey = (rows_of(run, name)[-1] for name in ("hunter", "prey"))
    assert hunter["agent_steps"] == 3 * prey["agent_steps"]
    assert_each_learned_in_its_ratio(run, ("hunter", "prey"))
    shapes = [
        {tuple(t.shape) for t in state_of(run.dir / "policies" / n)["model"].values()} for n in ("hunter", "prey")
    ]
    assert shapes[0] != shapes[1]


@slow
def test_guests_are_met_and_weights_are_taken_over(tmp_path: Path) -> None:
    first, _ = train("test/rounds", tmp_path / "first", total_steps=400)
    on_policy = {key: value for key, value in SMALL.items() if not key.startswith(("replay", "off_policy", "algo"))}
    ppo = rollmill.train(
        "test/rounds",
        run_dir=tmp_path / "ppo",
        quiet=True,
        **{**on_policy, "learner.batch_size": 64, "total_steps": 200},
    )
    guests = {
        "population.guests": f"first,random,old={first.dir},ppo={ppo.dir}",
        "population.guest_share": 0.8,
        "policy.0.load": str(first.dir),
        "learner.learning_rate": 1e-30,
        **WITH_PAST,
    }
    run, last = train("test/rounds", tmp_path / "run", **guests)
    for name in ("first", "random", "old", "ppo"):
        assert 0 <= last[f"win_rate/{name}"] <= 1, "none of the matches against it was counted"
    assert last["snapshots"] > 2
    before, after = (state_of(of.dir)["model"] for of in (first, run))
    online = [key for key in before if not key.startswith("target")]
    assert all(torch.allclose(before[key].float(), after[key].float(), atol=1e-6) for key in online)
    # An off-policy run is a guest of an on-policy one, too.
    other = {**on_policy, "learner.batch_size": 64, "total_steps": 600, "population.guests": f"old={first.dir}"}
    met = rollmill.train("test/rounds", run_dir=tmp_path / "other", quiet=True, **other)
    assert read_metrics(met.dir)[-1]["win_rate/old"] is not None


@slow
def test_steps_of_guests_with_agents_of_their_own_are_not_learned_from(tmp_path: Path) -> None:
    guests = {"population.guests": "first,random", "policy.first.agents": "ann", "policy.random.agents": "bob"}
    run, last = train("test/crowd", tmp_path / "run", total_steps=600, **guests)
    assert 600 <= run.agent_steps < 700
    assert last["replay/size"] <= last["agent_steps"]
    assert last["win_rate/first"] is not None


@pytest.mark.slow
def test_a_resumed_run_keeps_bank_ratings_and_the_replay_of_each_policy(tmp_path: Path) -> None:
    settings = {
        "population.policies": "a,b",
        "replay.storage": "file",
        "replay.priorities": "proportional",
        **WITH_PAST,
    }
    run, _ = train("test/rounds", tmp_path / "run", **settings)
    before = {name: (rows_of(run, name)[-1], state_of(run.dir / "policies" / name)["league"]) for name in "ab"}
    for name, (row, league) in before.items():
        assert row["snapshots"] >= 3, name
        assert len([member for member in league["members"] if member is not None]) == 3
    resumed = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=2500)
    log = (run.dir / "run.log").read_text()
    assert f"resumes with the replay in {run.dir}" in log
    assert "is recreated" not in log
    assert 2500 <= resumed.agent_steps < 2500 + MOST_AHEAD
    assert_each_learned_in_its_ratio(resumed, "ab")
    for name, (row, league) in before.items():
        rows = rows_of(run, name)
        assert rows[-1]["snapshots"] > row["snapshots"]
        assert rows[-1]["episodes"] > row["episodes"]
        following = [r for r in rows if r["agent_steps"] > row["agent_steps"]]
        assert abs(following[0]["rating"] - row["rating"]) < 150
        assert state_of(run.dir / "policies" / name)["league"]["generation"] > league["generation"]
    # Without the file it is filled again.
    again = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=3200, **{"replay.storage": "memory"})
    assert 3200 <= again.agent_steps < 3200 + MOST_AHEAD
    assert "is removed (replay.storage=memory)" in (run.dir / "run.log").read_text()


@pytest.mark.slow
def test_single_agents_have_sequences_of_their_policy(tmp_path: Path) -> None:
    recurrent = {**RECURRENT, "population.policies": "a,b", "policy.b.model.core_size": 8}
    run, last = train("gym/CartPole-v1", tmp_path / "run", **recurrent)
    assert run.ended_by == "total_steps"
    assert last["batches"] > 500


def only_sometimes(agent: str, env: int, episode: int) -> str:
    """Policy b plays one episode in fifty, and c none."""
    return "b" if episode % 50 == 7 and env == 0 else "a"


@slow
def test_policies_that_hardly_play_do_not_stop_the_run(tmp_path: Path) -> None:
    rollmill.register_assignment("only_sometimes", only_sometimes)
    settings = {"population.policies": "a,b,c", "population.assignment": "only_sometimes", "replay.capacity": 300}
    run, last = train("test/rounds", tmp_path / "run", **settings)
    assert run.ended_by == "total_steps"
    assert last["policy/c/agent_steps"] == 0 == rows_of(run, "c")[-1]["batches"]
    assert last["policy/b/agent_steps"] < 200
    assert rows_of(run, "a")[-1]["batches"] > 500


@pytest.mark.slow
def test_the_policy_that_diverges_is_named_and_all_are_saved(tmp_path: Path) -> None:
    settings = {"population.policies": "a,b", "policy.b.learner.learning_rate": 1e38, "checkpoint.every_s": None}
    settings |= {"policy.b.learner.max_grad_norm": None, "total_steps": 50_000}
    with pytest.raises(ProcessFailed, match="policy 'b'"):
        train("test/rounds", tmp_path / "run", **settings)
    for name in "ab":  # The first checkpoint is that of the untrained network.
        assert len(list((tmp_path / "run" / "policies" / name / "checkpoints").glob("checkpoint_*"))) >= 2


@pytest.mark.slow
def test_other_players_and_callbacks_work_as_in_other_regimes(tmp_path: Path) -> None:
    settings = {**ROLES, "eval_every": 600, "eval_episodes": 2}
    run, last = train("test/crowd", tmp_path / "run", **settings)
    assert last["policy/one/agent_steps"] < last["policy/others/agent_steps"]
    for name in ("one", "others"):
        found = [
            json.loads(line) for line in (run.dir / "policies" / name / "evaluations.jsonl").read_text().splitlines()
        ]
        assert len(found) >= 2
    assert len(rollmill.tournament([run.dir, "random"], matches=1).players) == 3


@pytest.mark.parametrize(
    ("game", "settings", "message"),
    [
        (
            "test/rounds",
            {"population.policies": 2, "learner.num_learners": 2},
            r"learner\.num_learners=2 with 2 policies, 0 guests and population\.snapshots=0: several learners share",
        ),
        (
            "test/rounds",
            {"population.snapshots": 2, "learner.num_learners": 2},
            r"learner\.num_learners=2 with 1 policies, 0 guests and population\.snapshots=2",
        ),
        ("test/rounds", {"population.policies": 20}, r"is more than replay\.capacity=1000, which they share"),
        (
            "test/rounds",
            {"population.policies": 2, "replay.min_size": 400, "total_steps": 800},
            r"replay\.min_size=400, of each of 2 policies, leaves nothing to learn in a run of total_steps=800",
        ),
        (
            "gym/CartPole-v1",
            {**RECURRENT, "population.policies": 2, "population.assignment": "random"},
            "a sequence reaches across episodes, which must be of one policy",
        ),
        ("gym/CartPole-v1", {"population.snapshots": 2}, r"population\.snapshots=2, but gym/CartPole-v1 has one agent"),
        ("gym/CartPole-v1", {"population.guests": "random"}, "has one agent: guests play against policies"),
        ("test/rounds", {"population.guests": "nobody"}, "player 'nobody' is not known"),
        (
            "test/rounds",
            {"population.policies": 2, "policy.0.learner.algorithm": "ppo"},
            r"policy\.0: learner\.algorithm belongs to regime=async or lockstep; this run has regime=replay",
        ),
        (
            "test/rounds",
            {"population.policies": 2, "policy.0.replay.n_step": 2},
            r"policy\.0: replay\.n_step: a policy has its own network",
        ),
    ],
)
def test_players_that_no_replay_could_have_are_refused(
    game: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        train(game, tmp_path / "run", **settings)


def test_a_recurrent_guest_is_refused(tmp_path: Path) -> None:
    settings = {"model.core": "gru", "model.core_size": 8, "model.shared": True, "learner.batch_size": 64}
    settings |= {"num_envs": 4, "envs_per_group": 2, "rollout_length": 16, "learner.minibatches": 2}
    ppo = rollmill.train("test/rounds", run_dir=tmp_path / "ppo", quiet=True, total_steps=100, **settings)
    with pytest.raises(ValueError, match="one has a recurrent core, whose state a replay does not keep"):
        train("test/rounds", tmp_path / "run", **{"population.guests": f"old={ppo.dir}"})
