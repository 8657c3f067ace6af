"""The reference settings of each family: every key exists, values fit each other, and sources are kept."""

from __future__ import annotations

import pytest

from rollmill.envs.config import EnvConfig
from rollmill.settings.config import Config
from rollmill.settings.options import apply
from rollmill.settings.presets import families

FAMILIES = {
    name: value
    for name, value in vars(families).items()
    if name.isupper() and isinstance(value, dict) and name != "VIZDOOM_REWARD_SCALE"
}


def test_there_are_fourteen_reference_settings():
    assert len(FAMILIES) == 14


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_exist_and_values_are_allowed_and_fit_each_other(name):
    overrides = FAMILIES[name]
    assert {key.rpartition(".")[0] for key in overrides} <= {"learner", "model", "placement", "population", ""}
    config = apply(Config(env=EnvConfig(name="gym/CartPole-v1")), dict(overrides))
    algorithm = config.on_policy
    trajectories, rest = divmod(algorithm.batch_size, config.rollout_length)
    assert rest == 0
    assert trajectories % algorithm.minibatches == 0, "minibatches of a recurrent network are whole trajectories"
    assert config.total_steps % 1000 == 0
    assert config.regime.name == "async"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_reference_sets_what_decides_about_learning(name):
    decides = {"learner.learning_rate", "learner.discount", "learner.epochs", "learner.entropy_coef", "model.encoder"}
    assert decides <= FAMILIES[name].keys()


def test_what_is_kept_of_the_papers_table_a5():
    table = {
        "learner.discount": 0.99,
        "learner.adam_eps": 1e-6,
        "learner.max_grad_norm": 4.0,
        "rollout_length": 32,
        "learner.batch_size": 2048,
        "learner.epochs": 1,
        "model.encoder": "sf_simplified",
        "model.core": "gru",
        "model.core_size": 512,
    }
    assert table.items() <= dict(families.VIZDOOM).items()


def test_what_is_kept_of_the_paper_for_deepmind_lab():
    # Table A.5, section A.2 (IMPALA's network), and Sample Factory's reward wrapper.
    table = {
        "learner.learning_rate": 1e-4,
        "learner.discount": 0.99,
        "learner.optimiser": "adam",
        "learner.adam_eps": 1e-6,
        "learner.max_grad_norm": 4.0,
        "rollout_length": 32,
        "learner.batch_size": 2048,
        "learner.epochs": 1,
        "learner.minibatches": 1,
        "learner.advantage": "vtrace",
        "learner.vtrace_rho": 1.0,
        "learner.vtrace_c": 1.0,
        "learner.clip_kind": "reciprocal",
        "learner.clip_range": 0.1,
        "learner.entropy_coef": 0.003,
        "learner.value_coef": 0.5,
        "learner.reward_weights": {"clip": 1.0},
        "model.encoder": "impala",
        "model.core": "lstm",
        "model.core_size": 256,
    }
    assert table.items() <= dict(families.DMLAB).items()


def test_derived_references_change_only_what_they_say():
    changed = {key for key in families.CARTPOLE if families.CARTPOLE_POOL[key] != families.CARTPOLE[key]}
    assert changed == {
        "num_envs",
        "rollout_length",
        "total_steps",
        "learner.batch_size",
        "learner.epochs",
        "learner.minibatches",
    }
    assert families.CARTPOLE_POOL.keys() == families.CARTPOLE.keys()
    changed = {key for key in families.MINIGRID if families.MINIGRID_MEMORY[key] != families.MINIGRID[key]}
    assert changed == {"learner.batch_size", "learner.learning_rate", "learner.entropy_coef", "model.core"}


def test_rewards_are_scaled_of_scenarios_that_vizdoom_ships():
    scenarios = pytest.importorskip("rollmill.envs.vizdoom").scenarios()
    assert set(families.VIZDOOM_REWARD_SCALE) <= set(scenarios)
    assert set(families.VIZDOOM_REWARD_SCALE.values()) == {0.01}
