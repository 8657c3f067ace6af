"""Complete runs with several policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.envs.agent_games import AGENTS, Crowd, Rounds

import rollmill
from rollmill.envs.registry import register_env
from rollmill.evaluation.snapshot import NoRunError
from rollmill.rollout.assignment import ASSIGNMENTS
from rollmill.runtime.events import ProcessFailed
from rollmill.settings.run_directory import RunDirectoryError
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
WITH_PAST: dict[str, Any] = {
    "population.snapshots": 3,
    "population.snapshot_every": 100,
    "population.past": 0.5,
}
RECURRENT_B: dict[str, Any] = {"policy.b.model.core": "gru", "policy.b.model.core_size": 8}


@pytest.fixture(autouse=True)
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    register_env("test/crowd", Crowd)
    register_env("test/rounds", Rounds)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("leaves_nothing")
def test_policies_with_networks_of_their_own_meet_each_other_and_their_past(tmp_path: Path) -> None:
    settings = {**SMALL, **WITH_PAST, **RECURRENT_B, "population.policies": "a,b,c", "debug_poison": True}
    settings |= {"policy.a.learner.learning_rate": 1e-30, "eval_every": 1000, "eval_episodes": 2}
    run = rollmill.train("test/rounds", run_dir=tmp_path / "run", quiet=True, total_steps=2500, **settings)
    assert run.ended_by == "total_steps"
    last = rows_of(run.dir)[-1]
    of_policies = {name: rows_of(run.dir / "policies" / name) for name in "abc"}
    assert sum(rows[-1]["agent_steps"] for rows in of_policies.values()) == last["agent_steps"] == run.agent_steps
    for name, rows in of_policies.items():
        assert rows[-1]["agent_steps"] == last[f"policy/{name}/agent_steps"] > 300
        assert rows[-1]["snapshots"] >= 3
        others = set("abc") - {name}
        assert all(0 <= rows[-1][f"win_rate/{other}"] <= 1 for other in others)
        assert (run.dir / "policies" / name / "evaluations.jsonl").exists()
    weights = {name: agent_weights(run.dir, name) for name in "abc"}
    initial = agent_weights(run.dir, "a", "initial.pt")
    parameters = [key for key in initial if "normaliser" not in key]
    learned = [key for key in parameters if not np.allclose(weights["a"][key], initial[key], rtol=0, atol=1e-12)]
    assert learned == [], "it has a learning rate of its own"
    assert any("core" in key for key in weights["b"])
    assert not all(np.array_equal(weights["a"][key], weights["c"][key]) for key in weights["a"])
    with pytest.raises(NoRunError, match="a run of 3 policies: name one of a, b, c"):
        rollmill.load(run.dir)
    with pytest.raises(NoRunError, match="no policy 'd': its policies are a, b, c"):
        rollmill.load(run.dir, policy="d")
    assert len(rollmill.tournament([run.dir, "random"], matches=1).players) == 4
    resumed = rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=3000)
    assert resumed.agent_steps >= 3000
    again = rows_of(run.dir / "policies" / "b")
    assert again[-1]["agent_steps"] > of_policies["b"][-1]["agent_steps"]
    with pytest.raises(RunDirectoryError, match=r"another population\.policies"):
        rollmill.train(run_dir=run.dir, resume=True, quiet=True, **{"population.policies": "a,b,d"})


def agent_weights(run_dir: Path, policy: str, checkpoint: str = "latest") -> dict[str, Any]:
    agent = rollmill.load(run_dir, policy=policy, checkpoint=checkpoint)
    return {name: value.numpy() for name, value in agent.snapshot.weights.items()}


@pytest.mark.slow
def test_roles_are_played_by_their_policies_alone(tmp_path: Path) -> None:
    settings = {**SMALL, "population.policies": "one,others", "policy.one.agents": "ann"}
    settings |= {"policy.others.agents": "bob,c*"}
    run = rollmill.train("test/crowd", run_dir=tmp_path / "run", quiet=True, total_steps=1500, **settings)
    steps = [rows_of(run.dir / "policies" / name)[-1]["agent_steps"] for name in ("one", "others")]
    assert steps[0] < steps[1]


class Survival(Crowd):
    """In each game two of three agents end one after another, and the last one two steps later."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed, options)
        self.agents, self.comes = list(AGENTS), 0
        self.leaves = dict(zip(AGENTS, (1, 2, 4), strict=True))
        self.ends = dict.fromkeys(AGENTS, "terminated")
        return self._seen(AGENTS), {agent: {} for agent in AGENTS}


@pytest.mark.slow
def test_games_count_whose_agents_end_one_after_another(tmp_path: Path) -> None:
    register_env("test/survival", Survival)
    # Slots are shorter than games, which take five steps with the reset.
    settings = {**SMALL, "rollout_length": 2, "population.policies": "a,b"}
    run = rollmill.train("test/survival", run_dir=tmp_path / "run", quiet=True, total_steps=1500, **settings)
    for name, other in ("ab", "ba"):
        of_rows = [row.get(f"win_rate/{other}") for row in rows_of(run.dir / "policies" / name)]
        assert any(share is not None and 0 <= share <= 1 for share in of_rows), "no match was counted"


# `make test` has the run of test_population.py with the same name, of several policies and their past selves.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("test/rounds", {"lag": 1, **WITH_PAST, **RECURRENT_B}),
        ("gym/CartPole-v1", {"lag": 0, "population.assignment": "random", "envs_per_group": 4}),
        ("test/crowd", {"lag": 2, "checkpoint.save_environments": False, **WITH_PAST}),
        ("gym/CartPole-v1", {"lag": 1, **RECURRENT_B}),
    ],
)
def test_populations_in_lockstep_are_reproducible_and_resumable(game: str, settings: dict[str, Any]) -> None:
    small = {key: value for key, value in SMALL.items() if key != "rollout.num_workers"}
    result = verify(game, updates=8, **{**small, "population.policies": "a,b,c", **settings})
    assert result.equal, result.describe()
    assert result.updates > result.resumed_from
    assert result.resumed_from > 0


def by_number(agent: str, env: int, episode: int) -> str:
    """The policies take turns, episode by episode."""
    return "abc"[episode % 3]


@pytest.mark.slow
def test_a_resumed_run_goes_on_counting_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ASSIGNMENTS, "factories", {})
    rollmill.register_assignment("by_number", by_number)
    small = {key: value for key, value in SMALL.items() if key != "rollout.num_workers"}
    settings = {**small, "population.policies": "a,b,c", "population.assignment": "by_number", "lag": 1}
    result = verify("gym/CartPole-v1", updates=8, **settings)
    assert result.equal, result.describe()
    assert result.resumed_from > 0


@pytest.mark.usefixtures("leaves_nothing")
def test_the_policy_that_diverges_is_named_and_all_are_saved(tmp_path: Path) -> None:
    settings = {**SMALL, "population.policies": "a,b", "policy.b.learner.learning_rate": 1e30}
    settings |= {"checkpoint.every_s": None}
    with pytest.raises(ProcessFailed, match="policy 'b'"):
        rollmill.train("test/rounds", run_dir=tmp_path / "run", quiet=True, total_steps=100_000, **settings)
    for name in "ab":  # The first checkpoint is that of the untrained network.
        assert list((tmp_path / "run" / "policies" / name / "checkpoints").glob("checkpoint_000002_*"))


@pytest.mark.slow
@pytest.mark.parametrize("assignment", ["fixed", "random"])
def test_single_agents_are_divided_among_the_policies(assignment: str, tmp_path: Path) -> None:
    settings = {**SMALL, "population.policies": 4, "population.assignment": assignment}
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, total_steps=4000, **settings)
    last = rows_of(run.dir)[-1]
    shares = [last[f"policy/{name}/agent_steps"] / run.agent_steps for name in range(4)]
    assert min(shares) > 0.1
    assert "rating" not in rows_of(run.dir / "policies" / "0")[-1]


def by_episode(agent: str, env: int, episode: int) -> str:
    """The first policy plays ann in odd episodes, the second one everything else."""
    return "a" if agent == "ann" and episode % 2 else "b"


def exploiters(agent: str, env: int, episode: int) -> str:
    """In each group of four environments another policy plays the first one, and "main" plays the others."""
    return "main" if env % 4 else f"x{env // 4}"


def misspelt(agent: str, env: int, episode: int) -> str:
    return "c"


@pytest.mark.slow
def test_policies_whose_rows_lie_in_all_slots_learn_from_incomplete_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ASSIGNMENTS, "factories", {})
    rollmill.register_assignment("exploiters", exploiters)
    settings: dict[str, Any] = {"population.policies": "main,x0,x1,x2,x3", "population.assignment": "exploiters"}
    # The four would need 8 slots each for a batch, and there are 20 for all policies.
    settings |= {"num_envs": 16, "envs_per_group": 4, "rollout_length": 8, "rollout.num_workers": 1}
    settings |= {"learner.batch_size": 64, "learner.minibatches": 1, "num_slots": "auto"}
    run = rollmill.train(
        "gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, total_steps=3000, max_seconds=60, **settings
    )
    assert run.agent_steps >= 3000
    last = rows_of(run.dir)[-1]
    assert min(last[f"policy/x{index}/agent_steps"] for index in range(4)) > 100


@pytest.mark.slow
def test_a_function_says_who_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ASSIGNMENTS, "factories", {})
    rollmill.register_assignment("by_episode", by_episode)
    rollmill.register_assignment("misspelt", misspelt)
    settings = {**SMALL, "population.policies": "a,b", "population.assignment": "by_episode"}
    run = rollmill.train("test/crowd", run_dir=tmp_path / "run", quiet=True, total_steps=1500, **settings)
    last = rows_of(run.dir)[-1]
    assert 0.05 < last["policy/a/agent_steps"] / last["agent_steps"] < 0.3
    for name, message in (("misspelt", "gave 'c' for agent 'ann': give one of 'a', 'b'"), ("unknown", "is not known")):
        settings["population.assignment"] = name
        with pytest.raises((ProcessFailed, ValueError), match=message):
            rollmill.train("test/crowd", run_dir=tmp_path / name, quiet=True, total_steps=1500, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy.0.agents": "ann"}, "fits none of the agents"),
        ({"policy.0.model.scale_actions": False}, "must be the same for all policies"),
        ({"num_slots": 5}, "one batch's for each policy"),
    ],
)
def test_policies_that_no_run_could_have_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    env = "gym/Pendulum-v1" if "policy.0.model.scale_actions" in settings else "gym/CartPole-v1"
    with pytest.raises(ValueError, match=message):
        rollmill.train(
            env, run_dir=tmp_path / "run", quiet=True, total_steps=3000, **{"population.policies": 2, **settings}
        )
