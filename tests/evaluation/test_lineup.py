"""Who plays in evaluations and videos of a run with several policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.envs.agent_games import AGENTS, Crowd

import rollmill
from rollmill.envs.config import EnvConfig
from rollmill.envs.registry import register_env
from rollmill.evaluation.evaluate import evaluate
from rollmill.evaluation.in_training import Evaluations, play_pending
from rollmill.evaluation.lineup import Lineup, lineup_of_run
from rollmill.evaluation.players import PLAYERS
from rollmill.evaluation.snapshot import NoRunError
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore
from rollmill.storage.evaluations import EvaluationQueue

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "envs_per_group": 2,
    "rollout_length": 16,
    "rollout.num_workers": 1,
    "learner.batch_size": 64,
    "learner.epochs": 1,
    "learner.minibatches": 2,
    "model.mlp_sizes": (8,),
}


class Measured(Crowd):
    """Each agent measures which one it is."""

    def step(self, actions: dict[str, int]) -> Any:
        *front, infos = super().step(actions)
        return (*front, {agent: {"metrics": {"agent": AGENTS.index(agent)}} for agent in infos})


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    monkeypatch.setattr(PLAYERS, "factories", {})
    register_env("test/crowd", Crowd)
    rollmill.register_player("last", lambda: lambda observation, mask: 3)


@pytest.fixture
def run_dir(games: None, tmp_path: Path) -> Path:
    """Policy b plays ann and bob together with a, and the guest plays cid."""
    roles = {"policy.b.agents": "ann,bob", "policy.a.agents": "bob", "policy.last.agents": "cid"}
    settings = {**SMALL, **roles, "population.policies": "b,a", "population.guests": "last"}
    return rollmill.train("test/crowd", run_dir=tmp_path / "run", quiet=True, total_steps=500, **settings).dir


def test_policies_and_guests_play_their_roles(run_dir: Path) -> None:
    lineup = lineup_of_run(run_dir)
    names = [player.name for player in lineup.players]
    assert names == ["b", "a", "last"]
    who = [names[index] for index in lineup.who(4 * len(AGENTS)).tolist()]
    assert who == ["b", "a", "last", "b", "b", "last"] * 2, "those that may play an agent take turns"
    assert len(lineup.agents) == 2
    result = evaluate(run_dir, episodes=8, num_envs=4)
    assert set(result.policies) == {"b", "a", "last"}
    assert len(result.returns) == 8 * len(AGENTS)
    # Of 12 rows, 6 are played by b, 2 by a and 4 by the guest; all play two episodes.
    means = {name: mean for name, (mean, _, _) in result.policies.items()}
    total = 12 * means["b"] + 4 * means["a"] + 8 * means["last"]
    assert total == pytest.approx(sum(result.returns), rel=1e-5)
    assert "b     " in result.describe()
    alone = evaluate(run_dir, episodes=2, policy="a")
    assert alone.policies == {}
    assert alone.to_dict()["policies"] == {}


def test_a_guest_plays_its_role_beside_one_policy(games: None, tmp_path: Path) -> None:
    settings = {**SMALL, "population.guests": "last", "policy.last.agents": "cid"}
    run = rollmill.train("test/crowd", run_dir=tmp_path / "run", quiet=True, total_steps=300, **settings)
    lineup = lineup_of_run(run.dir, checkpoint=next((run.dir / "checkpoints").glob("checkpoint_*")))
    assert [player.name for player in lineup.players] == ["0", "last"]
    assert lineup.who(2 * len(AGENTS)).tolist() == [0, 0, 1] * 2
    assert set(evaluate(run.dir, episodes=2).policies) == {"0", "last"}


def test_a_policy_is_evaluated_during_training_in_its_own_agents(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_dir / "policies" / "a"
    queue = EvaluationQueue(folder, every_steps=1)
    checkpoints = CheckpointStore(folder / "checkpoints", CheckpointConfig())
    queue.leave(checkpoints.load_latest().state["model"], 10_000)
    seats = []
    monkeypatch.setattr(
        "rollmill.evaluation.in_training.points_against",
        lambda *_, **given: seats.append((given["seats"], given["trust"])) or {"random": 0.5},
    )
    register_env("test/measured", Measured)
    how = Evaluations(EnvConfig(name="test/measured"), 4, ("random",), trust=True)
    play_pending(folder, how, checkpoints=checkpoints)
    (record,) = queue.records()
    # Of four environments, a plays bob in two; b and the guest play everything else.
    assert len(record["returns"]) == record["episodes"] == 2
    assert record["mean_return"] == pytest.approx(record["policies"]["a"]["mean_return"])
    assert set(record["policies"]) == {"a", "b", "last"}
    assert record["metrics"]["agent"] == AGENTS.index("bob"), "of its own agents alone"
    assert seats == [((AGENTS.index("bob"),), True)]


class WithoutBob(Crowd):
    """One agent never joins in."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed, options)
        self.comes, self.agents = 0, ["ann", "cid"]
        return self._seen(self.agents), {agent: {} for agent in self.agents}


def test_a_policy_that_did_not_play_stops_no_other_evaluation(run_dir: Path) -> None:
    register_env("test/without_bob", WithoutBob)
    folder = run_dir / "policies" / "a"
    queue = EvaluationQueue(folder, every_steps=1)
    checkpoints = CheckpointStore(folder / "checkpoints", CheckpointConfig())
    for steps in (10_000, 20_000):
        queue.leave(checkpoints.load_latest().state["model"], steps)
    with pytest.warns(UserWarning, match=r"no evaluation at .0,000 agent steps: policy 'a' played in none"):
        play_pending(folder, Evaluations(EnvConfig(name="test/without_bob"), 2), checkpoints=checkpoints)
    assert (queue.pending(), queue.records()) == ([], [])


def test_a_single_episode_is_played_by_the_policy_that_is_evaluated(run_dir: Path) -> None:
    for name in ("a", "b"):  # They take turns in playing bob.
        folder = run_dir / "policies" / name
        queue = EvaluationQueue(folder, every_steps=1)
        checkpoints = CheckpointStore(folder / "checkpoints", CheckpointConfig())
        queue.leave(checkpoints.load_latest().state["model"], 10_000)
        play_pending(folder, Evaluations(EnvConfig(name="test/crowd"), 1), checkpoints=checkpoints)
        assert len(queue.records()) == 1


def test_networks_wait_until_all_policies_of_their_run_have_one(run_dir: Path) -> None:
    folder = run_dir / "policies" / "a"
    checkpoints = CheckpointStore(folder / "checkpoints", CheckpointConfig())
    queue = EvaluationQueue(folder, every_steps=1)
    queue.leave(checkpoints.load_latest().state["model"], 10_000)
    (run_dir / "policies" / "b" / "checkpoints").rename(run_dir / "not yet")
    play_pending(folder, Evaluations(EnvConfig(name="test/crowd"), 1), checkpoints=checkpoints)
    assert len(queue.pending()) == 1


def test_every_policy_plays_however_many_there_are(tmp_path: Path) -> None:
    settings = {**SMALL, "num_envs": 12, "population.policies": 3}
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, total_steps=300, **settings)
    assert set(evaluate(run.dir, episodes=3, num_envs=1).policies) == {"0", "1", "2"}
    with pytest.warns(UserWarning, match=r"2 episode\(s\) are too few for all of 3 policies: 2 did not play"):
        assert set(evaluate(run.dir, episodes=2).policies) == {"0", "1"}


def test_only_a_later_policy_needs_to_be_told_the_task(tmp_path: Path) -> None:
    settings = {**SMALL, "num_envs": 8, "population.policies": "plain,told", "policy.told.model.observe_task": True}
    tasks = "gym/CartPole-v1,gym/Acrobot-v1"
    run = rollmill.train(tasks, run_dir=tmp_path / "run", quiet=True, total_steps=600, **settings)
    result = evaluate(run.dir, episodes=2, num_envs=2, max_episode_steps=20)
    assert set(result.policies) == {"plain", "told"}


def test_what_cannot_play_is_refused(run_dir: Path) -> None:
    with pytest.raises(NoRunError, match=r"checkpoint x is that of one policy, but .* has several"):
        lineup_of_run(run_dir, checkpoint="x")
    with pytest.raises(NoRunError, match="no policy 'c'"):
        lineup_of_run(run_dir, policy="c")


def test_one_player_plays_everything() -> None:
    lineup = Lineup(players=[], agents=[], box="clip", group_size=None)
    np.testing.assert_array_equal(lineup.who(3), [0, 0, 0])


class Guestbook(Crowd):
    """cid, who may act by its possible_agents, never does, and bob only in every second episode."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed, options)
        self.comes = -1
        self.agents = AGENTS[: 1 + self.episode % 2]
        return self._seen(self.agents), {agent: {} for agent in self.agents}


@pytest.mark.parametrize("limit", [None, 50])
def test_agents_that_do_not_act_in_an_episode_are_not_waited_for(limit: int | None, tmp_path: Path) -> None:
    register_env("test/guestbook", Guestbook)
    run = rollmill.train("test/guestbook", run_dir=tmp_path / "run", quiet=True, total_steps=200, **SMALL)
    calls = iter(range(1_000))
    result = evaluate(
        run.dir, episodes=9, num_envs=2, max_episode_steps=limit, is_stop_wanted=lambda: next(calls) > 900
    )
    # Environments have five episodes and four, of which bob plays the second and the fourth one.
    assert len(result.returns) == 9 + 4
    assert result.to_dict()["episodes"] == 13
