from __future__ import annotations

import importlib.util
import re
import warnings

import pytest

from rollmill.api import make_config
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.registry import register_env
from rollmill.extras import install_command
from rollmill.settings.presets import families, list_presets, resolve


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch):
    monkeypatch.setattr("rollmill.envs.registry._registered", {})


EXAMPLES = {
    "atari/pong": families.ATARI,
    "vizdoom/defend_the_center": families.VIZDOOM,
    "gym/CartPole-v1": families.CARTPOLE,
    "gym/FrozenLake-v1": families.GENERIC,
    "gym/Acrobot-v1": families.GENERIC,
    "gym/MountainCarContinuous-v0": families.GENERIC,
    "gym/HalfCheetah-v5": families.MUJOCO,
    "mujoco/HalfCheetah-v5": families.MUJOCO,
    "minigrid/MiniGrid-Empty-5x5-v0": families.MINIGRID,
    "minigrid/MiniGrid-MemoryS7-v0": families.MINIGRID_MEMORY,
    "envpool/CartPole-v1": families.CARTPOLE_POOL,
    "envpool/Acrobot-v1": families.GENERIC,
    "envpool/Pong-v5": families.ATARI,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_resolve(name):
    preset = resolve(name)
    assert preset.name == preset.env.name == name
    assert preset.overrides == EXAMPLES[name]
    assert preset.env.vizdoom.measurements == name.startswith("vizdoom/")


def test_bare_gymnasium_ids():
    assert resolve("CartPole-v1").name == "gym/CartPole-v1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert resolve("ALE/Pong-v5").env.name == "gym/ALE/Pong-v5"


def test_vizdoom_rewards_are_scaled_as_sample_factory_does():
    assert resolve("vizdoom/basic").overrides["learner.reward_scale"] == 0.01
    assert "learner.reward_scale" not in resolve("vizdoom/defend_the_line").overrides


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pong", "did you mean 'atari/pong'"),
        ("vizdom/basic", "did you mean 'vizdoom/basic'"),
        ("atari/pongg", "did you mean 'pong'"),
        ("cartpole", "did you mean 'gym/CartPole-v1'"),
        ("gym/CartPole-v7", "CartPole"),
        ("minigrid/MiniGrid-Memory-v0", "did you mean"),
        ("envpool/Pong", "did you mean 'Pong-v5'"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(UnknownEnvironment, match=message):
        resolve(name)


def test_registered_environments_have_a_preset():
    register_env("mine", dict)
    assert resolve("mine").overrides == families.GENERIC
    assert list_presets()[0] == "mine"


def test_every_listed_preset_resolves_and_families_stay_together():
    names = list_presets()
    assert len(names) == len(set(names))
    order = [name.partition("/")[0] for name in names]
    assert [f for i, f in enumerate(order) if i == 0 or order[i - 1] != f] == [
        "atari",
        "vizdoom",
        "gym",
        "mujoco",
        "minigrid",
        "envpool",
    ]
    for name in names[:: max(1, len(names) // 60)]:
        assert resolve(name).name == name


@pytest.mark.parametrize("name", EXAMPLES)
def test_keys_exist_in_the_configurations(name):
    overrides = resolve(name).overrides
    sections = {key.rpartition(".")[0] for key in overrides}
    assert sections <= {"learner", "model", "placement", ""}
    assert {key for key in overrides if "." not in key} <= {"num_envs", "rollout_length", "total_steps"}
    from rollmill.settings.config import Config
    from rollmill.settings.options import apply

    algorithm = apply(Config(env=resolve(name).env), dict(overrides)).on_policy
    assert algorithm.batch_size % (overrides["rollout_length"] * algorithm.minibatches) == 0


def test_a_preset_without_its_package_says_what_to_install(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("Box2D", "mujoco") else find_spec(name)
    )
    for name, extra in (("gym/LunarLander-v3", "box2d"), ("gym/HalfCheetah-v5", "mujoco"), ("mujoco/Ant-v5", "mujoco")):
        with pytest.raises(MissingExtra, match=re.escape(install_command(extra))):
            resolve(name)
    names = list_presets()
    assert "gym/CartPole-v1" in names
    assert "gym/LunarLander-v3" not in names


def test_what_mujoco_does_not_simulate_is_no_preset_of_its():
    with pytest.raises(UnknownEnvironment, match="use 'gym/CartPole-v1'"):
        resolve("mujoco/CartPole-v1")


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


def test_ppo_and_impala_have_cleanbas_sizes_in_atari_alone():
    for name in ("atari/pong", "envpool/Pong-v5"):
        assert make_config(name, algo="ppo").on_policy.batch_size == 16_384
        assert make_config(name, algo="impala").on_policy.batch_size == 2_560
    own = make_config("gym/Acrobot-v1")
    assert make_config("gym/Acrobot-v1", algo="ppo") == own
    assert make_config("gym/HalfCheetah-v5", algo="ppo").on_policy.clip_kind == "symmetric"
    impala = make_config("gym/Acrobot-v1", algo="impala")
    assert (impala.on_policy.batch_size, impala.num_envs, impala.on_policy.advantage) == (640, 32, "vtrace")


@pytest.mark.parametrize(
    ("name", "random_steps"), [("gym/MountainCarContinuous-v0", 1_000), ("mujoco/Hopper-v5", 10_000)]
)
def test_short_tasks_do_not_spend_half_of_their_run_on_random_actions(name, random_steps):
    for algo in ("ddpg", "td3", "sac"):
        config = make_config(name, algo=algo)
        assert config.replay.min_size == config.off_policy.random_steps == random_steps
