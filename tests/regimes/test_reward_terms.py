"""Complete runs of an environment that gives parts of its reward as terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import rollmill
from rollmill.envs.registry import register_env
from rollmill.pbt.history import read_history
from rollmill.runtime.events import ProcessFailed
from rollmill.verification import verify

SMALL: dict[str, Any] = {
    "num_envs": 8,
    "envs_per_group": 2,
    "rollout_length": 16,
    "total_steps": 128 * 12,
    "learner.batch_size": 128,
    "learner.minibatches": 2,
    "learner.epochs": 2,
    "model.mlp_sizes": (16,),
}
LOCKSTEP = {**SMALL, "regime": "lockstep", "learner.precision": "fp64"}


class Told(CartPoleEnv):
    """CartPole whose reward is in its terms: 1 while the pole is up, and the angle, which is worth nothing."""

    def __init__(self, *, pays: bool = False) -> None:
        super().__init__()
        self.pays = pays
        self.steps = 0

    def reset(self, **arguments: Any) -> Any:
        self.steps = 0
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        truncated = self.steps >= 40
        info = {**info, "reward_terms": {"up": float(reward), "angle": float(observation[2])}}
        if terminated or truncated:
            info["true_objective"] = self.steps / 40
        return observation, float(reward) if self.pays else 0.0, terminated, truncated, info


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.envs.registry._registered", {})
    register_env("test/told", Told)


def train(run_dir: Path, *callbacks: rollmill.Callback, **settings: Any) -> rollmill.Run:
    return rollmill.train("test/told", run_dir=run_dir, quiet=True, callbacks=callbacks, **settings)


def weights(run: rollmill.Run) -> dict[str, torch.Tensor]:
    return dict(rollmill.load(run.dir).snapshot.weights)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_weighed_terms_teach_what_the_same_rewards_teach(tmp_path: Path) -> None:
    paid = train(tmp_path / "paid", **LOCKSTEP, **{"env.kwargs.pays": True, "learner.reward_scale": 0.5})
    terms = {"learner.reward_weights.up": 0.5, "learner.reward_weights.angle": 0.0}
    told = train(tmp_path / "told", **LOCKSTEP, **terms)
    assert_same(weights(paid), weights(told))
    assert told.episode_return == 0.0, "returns are those of the environment's own rewards"


class Weighing(rollmill.Callback):
    def on_start(self, run: rollmill.LiveRun) -> None:
        run.set(**{"reward_weight.up": 0.5, "reward_weight.angle": -2.0})


@pytest.mark.slow
def test_weights_that_are_set_act_as_the_settings_do(tmp_path: Path) -> None:
    given = train(tmp_path / "one", **LOCKSTEP, **{"learner.reward_weights": {"up": 0.5, "angle": -2.0}})
    zero = {"learner.reward_weights": {"up": 0.0, "angle": 0.0}}
    assert_same(weights(given), weights(train(tmp_path / "other", Weighing(), **LOCKSTEP, **zero)))


@pytest.mark.slow
def test_each_policy_weighs_for_itself_and_a_population_finds_weights(tmp_path: Path) -> None:
    settings = {
        "population.policies": 2,
        "population.pbt": True,
        "pbt.window": 2,
        "pbt.every": 100,
        "pbt.objective": "true_objective",
        "pbt.mutation_rate": 1.0,
        "pbt.vary": False,
        "learner.reward_weights.up": 1.0,
        "learner.reward_weights.angle": -1.0,
        "policy.1.learner.reward_weights.angle": -4.0,
    }
    run = train(tmp_path / "run", **{**SMALL, "total_steps": 4000}, **settings)
    history = read_history(run.dir)
    first, second = history[0].numbers, history[1].numbers
    assert (first["reward_weight.angle"], second["reward_weight.angle"]) == (-1.0, -4.0)
    assert first["reward_weight.up"] == second["reward_weight.up"] == 1.0
    assert all(event.numbers["reward_weight.angle"] < 0 < event.numbers["reward_weight.up"] for event in history)
    assert all(0 < value <= 1 for event in history for value in event.scores.values())
    assert any(event.kind == "replaced" for event in history)


@pytest.mark.slow
def test_reward_terms_are_reproducible_and_resumable() -> None:
    small = {key: value for key, value in SMALL.items() if key != "total_steps"}
    terms = {"learner.reward_weights.up": 1.0, "learner.reward_weights.angle": -1.0}
    population = {"population.policies": 2, "population.pbt": True, "pbt.window": 2, "pbt.every": 100}
    result = verify("test/told", updates=10, **{**small, **terms, **population, "pbt.objective": "true_objective"})
    assert result.equal, result.describe()


@pytest.mark.usefixtures("leaves_nothing")
def test_a_weight_for_an_unknown_term_ends_the_run_with_its_name(tmp_path: Path) -> None:
    message = r"gives no reward term 'upp', which learner.reward_weights has a weight for; it gives 'up', 'angle'"
    with pytest.raises(ProcessFailed, match=message):
        train(tmp_path / "run", **SMALL, **{"learner.reward_weights.upp": 1.0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learner.reward_weights.up": "much"}, r"learner\.reward_weights"),
        (
            {"population.policies": 2, "policy.1.learner.reward_weights.up": 1.0},
            r"policy\.1: it has weights for the reward terms up, the run for none",
        ),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "run", **SMALL, **settings)


@pytest.mark.slow
def test_an_objective_that_is_not_given_is_explained(tmp_path: Path) -> None:
    register_env("test/silent", lambda: gymnasium.make("CartPole-v1"))
    settings = {"population.policies": 2, "population.pbt": True, "pbt.window": 2, "pbt.every": 100}
    with pytest.raises(ProcessFailed, match=r"ended an episode without info\['true_objective'\]"):
        rollmill.train(
            "test/silent",
            run_dir=tmp_path / "run",
            quiet=True,
            **SMALL,
            **settings,
            **{"pbt.objective": "true_objective"},
        )
