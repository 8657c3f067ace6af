"""Settings of off-policy algorithms: every key exists, and which task gets what."""

from __future__ import annotations

import pytest

from rollmill.api import make_config
from rollmill.settings.options import apply
from rollmill.settings.presets import resolve
from rollmill.settings.presets.off_policy import off_policy_overrides

CHOICES = ["gym/CartPole-v1", "gym/LunarLander-v3", "gym/Acrobot-v1", "atari/pong", "atari/breakout", "vizdoom/basic"]
NUMBERS = ["gym/Pendulum-v1", "gym/LunarLanderContinuous-v3", "mujoco/Ant-v5", "gym/MountainCarContinuous-v0"]
PAIRS = [
    *(("dqn", name) for name in CHOICES),
    *(("sac", name) for name in CHOICES),
    *((algorithm, name) for algorithm in ("ddpg", "td3", "sac") for name in NUMBERS),
]


@pytest.mark.parametrize(("algorithm", "name"), PAIRS)
def test_they_fit_any_preset_and_reset_what_only_on_policy_algorithms_use(algorithm, name):
    base = "gym/LunarLander-v3" if "LunarLander" in name else name
    before = make_config(base)
    config = apply(before, dict(off_policy_overrides(algorithm, name)))
    assert config.algorithm_name == algorithm
    assert config.in_replay
    assert config.model.core == "none"
    assert not config.model.normalise_observations
    assert not config.model.normalise_returns
    assert config.replay.min_size <= config.replay.most_steps
    assert config.off_policy.random_steps <= config.replay.min_size
    assert config.model.encoder == before.model.encoder


@pytest.mark.parametrize(
    ("algorithm", "name", "expected"),
    [
        ("dqn", "gym/CartPole-v1", {"total_steps": 50_000, "learner.batch_size": 128, "replay.n_step": 3}),
        ("dqn", "envpool/CartPole-v1", {"total_steps": 50_000}),
        ("dqn", "envpool/ConnectFour-v1", {"replay.update_interval": 16.0, "learner.batch_size": 128}),
        ("dqn", "pettingzoo/classic/tictactoe_v3", {"replay.update_interval": 16.0, "num_envs": 32}),
        ("dqn", "gym/LunarLander-v3", {"learner.learning_rate": 6.3e-4, "replay.capacity": 50_000}),
        ("dqn", "atari/pong", {"total_steps": 2_000_000, "off_policy.double": True, "replay.capacity": 100_000}),
        ("dqn", "atari/breakout", {"total_steps": 10_000_000, "replay.min_size": 50_000, "replay.capacity": 100_000}),
        (
            "sac",
            "gym/Pendulum-v1",
            {"total_steps": 20_000, "off_policy.noise_kind": "gaussian"},
        ),
        ("td3", "gym/Pendulum-v1", {"learner.batch_size": 256, "learner.discount": 0.98}),
        ("td3", "gym/LunarLander-v3", {"replay.n_step": 5, "replay.capacity": 30_000, "off_policy.tau": 0.02}),
        ("ddpg", "gym/LunarLander-v3", {"total_steps": 300_000, "replay.capacity": 200_000}),
        ("sac", "gym/LunarLander-v3", {"model.mlp_sizes": (128, 128), "learner.schedule": "linear"}),
        ("sac", "mujoco/HalfCheetah-v5", {"replay.min_size": 10_000, "off_policy.noise_kind": "gaussian"}),
        ("sac", "gym/HalfCheetah-v5", {"off_policy.random_steps": 10_000}),
        ("sac", "gym/MountainCarContinuous-v0", {"off_policy.noise_kind": "pink", "replay.capacity": "auto"}),
        ("sac", "robots/pendulum_swing", {"total_steps": 1_000_000, "replay.min_size": 1_000}),
        ("sac", "gym/Antenna-v0", {"replay.min_size": 1_000}),
        ("sac", "gym/Ant-v5", {"replay.min_size": 10_000}),
        ("ddpg", "gym/MountainCarContinuous-v0", {"model.mlp_sizes": (400, 300), "learner.batch_size": 100}),
    ],
)
def test_a_task_gets_its_own_settings(algorithm, name, expected):
    found = off_policy_overrides(algorithm, name)
    assert {key: found[key] for key in expected} == expected
    assert found["off_policy.algorithm"] == algorithm


def test_a_registered_algorithm_gets_dqns_settings():
    for name in ("gym/CartPole-v1", "atari/pong", "gym/Acrobot-v1"):
        own, dqn = off_policy_overrides("mine", name), off_policy_overrides("dqn", name)
        assert own == {**dqn, "off_policy.algorithm": "mine"}


def test_replays_of_pictures_are_small():
    for name in ("atari/alien", "vizdoom/basic"):
        for algorithm in ("dqn", "sac"):
            assert off_policy_overrides(algorithm, name)["replay.capacity"] == 100_000


def test_levels_of_deepmind_lab_are_learned_from_as_other_pictures_are():
    for algorithm in ("dqn", "sac"):
        mine, others = (off_policy_overrides(algorithm, name) for name in ("dmlab/rooms_watermaze", "vizdoom/basic"))
        assert mine == others


def test_presets_are_not_changed():
    before = dict(resolve("gym/CartPole-v1").overrides)
    off_policy_overrides("dqn", "gym/CartPole-v1")
    assert dict(resolve("gym/CartPole-v1").overrides) == before


@pytest.mark.parametrize(
    ("name", "batch_size", "n_step"),
    [
        ("gym/Acrobot-v1", 128, 3),
        ("minigrid/MiniGrid-Empty-5x5-v0", 128, 3),
        ("envpool/Acrobot-v1", 128, 3),
        ("atari/breakout", 32, 1),
        ("envpool/Breakout-v5", 32, 1),
        ("vizdoom/basic", 32, 1),
    ],
)
def test_dqn_makes_fewer_sgd_steps_where_pictures_are_learned_from(name, batch_size, n_step):
    config = make_config(name, algo="dqn")
    assert (config.off_policy.batch_size, config.replay.n_step) == (batch_size, n_step)


@pytest.mark.parametrize(
    ("name", "random_steps"), [("gym/MountainCarContinuous-v0", 1_000), ("mujoco/Hopper-v5", 10_000)]
)
def test_short_tasks_do_not_spend_half_of_their_run_on_random_actions(name, random_steps):
    for algo in ("ddpg", "td3", "sac"):
        config = make_config(name, algo=algo)
        assert config.replay.min_size == config.off_policy.random_steps == random_steps
