from __future__ import annotations

import importlib.util
import re
import sys
import warnings

import pytest

from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.registry import register_env
from rollmill.extras import install_command
from rollmill.settings.presets import families, list_presets, missing_families, resolve


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
        ("Courier", "your own environment is 'module:Class', or a name that a module given with --import registers"),
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
        "pettingzoo",
        "mpe",
        "suite",
    ]
    for name in names[:: max(1, len(names) // 60)]:
        assert resolve(name).name == name


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
    assert not any(name.startswith("mujoco/") for name in names)
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    missing = missing_families()
    assert missing.keys() == {"mujoco", "dmlab"}
    assert missing["mujoco"] == f"MuJoCo is not installed: {install_command('mujoco')}"


def test_what_mujoco_does_not_simulate_is_no_preset_of_its():
    with pytest.raises(UnknownEnvironment, match="use 'gym/CartPole-v1'"):
        resolve("mujoco/CartPole-v1")
