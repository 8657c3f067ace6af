"""Gymnasium's registry: ids and kinds, what wrappers are removed, and what a maker builds."""

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rollmill.envs import gym
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import make_env, probe
from rollmill.extras import install_command


class Own(gymnasium.Env):
    """Of the user's; its action space must keep its own answer."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, missing=None, frameskip=1):
        self.action_space = gymnasium.spaces.Discrete(2)
        if missing is not None:
            raise missing

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.fixture(autouse=True)
def _ids_of_tests_are_removed():
    yield
    for id in [id for id in gymnasium.registry if id.startswith("Test")]:
        del gymnasium.registry[id]


@pytest.mark.parametrize(
    ("id", "kind"),
    [
        ("CartPole-v1", "classic_control"),
        ("HalfCheetah-v5", "mujoco"),
        ("LunarLander-v3", "box2d"),
        ("FrozenLake-v1", "toy_text"),
        ("TestOwn-v0", ""),
    ],
)
def test_gymnasiums_own_environments_have_a_kind(id, kind):
    gymnasium.register("TestOwn-v0", f"{__name__}:Own")
    assert gym.kind(id) == kind


def test_unknown_ids_suggest_similar_ones():
    assert gym.is_registered("CartPole-v1")
    assert not gym.is_registered("CartPol-v1")
    for find in (gym.find_spec, gym.kind, lambda id: gym.maker(EnvConfig(name=f"gym/{id}"))):
        with pytest.raises(UnknownEnvironment, match=r"^Gymnasium has no environment 'CartPol-v1' \(.*'CartPole-v1'"):
            find("CartPol-v1")
    with pytest.raises(UnknownEnvironment, match="there is no module 'nowhere' in"):
        gym.find_spec("nowhere:CartPole-v1")


def test_a_module_before_the_id_is_imported(tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('TestElsewhere-v0', CartPoleEnv, max_episode_steps=7)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert probe(EnvConfig(name="gym/elsewhere:TestElsewhere-v0")).max_episode_steps == 7
    assert gym.find_spec("elsewhere:TestElsewhere-v0").id == "TestElsewhere-v0"
    with pytest.raises(UnknownEnvironment, match=r"there is no module .nowhere. in .* or put its folder on PYTHONPATH"):
        probe(EnvConfig(name="gym/nowhere:TestElsewhere-v0"))


def test_only_packages_beside_gymnasium_and_its_simulators_register_by_import():
    gymnasium.register("TestText-v0", "my.package:Own")
    gymnasium.register("TestClass-v0", Own)
    gymnasium.register("TestArcade-v0", "ale_py.env:AtariEnv")
    gymnasium.register("TestVector-v0", vector_entry_point="my.package:Own")
    for name, expected in (
        ("TestText-v0", True),
        ("TestClass-v0", True),
        ("TestArcade-v0", False),
        ("TestVector-v0", False),
        ("CartPole-v1", False),
        ("Nothing-v0", False),
    ):
        assert gym.is_registered_by_import(f"gym/{name}") is expected, name


def test_listed_ids_are_the_newest_versions_of_each_kind():
    listed = gym.ids()
    assert listed == sorted(listed)
    assert {"CartPole-v1", "FrozenLake-v1"} <= set(listed)
    assert "CartPole-v0" not in listed
    assert {gym.kind(id) for id in listed} <= {"classic_control", "box2d", "toy_text"}
    of_mujoco = gym.mujoco_ids()
    assert "HalfCheetah-v5" in of_mujoco
    assert "HalfCheetah-v4" not in of_mujoco
    assert {gym.kind(id) for id in of_mujoco} == {"mujoco"}


def test_installed_packages_pass_the_check():
    for kind in ("mujoco", "classic_control", ""):
        gym.check_installed(kind)


def test_a_package_that_an_environment_lacks_is_told():
    # The error is that of an environment whose package is missing; its text decides the advice.
    for missing, advice in (
        (ModuleNotFoundError("No module named 'Box2D'", name="Box2D"), install_command("box2d")),
        (gymnasium.error.DependencyNotInstalled("pip install ale_py"), install_command("atari")),
        (ModuleNotFoundError("No module named 'own_simulator'", name="own_simulator"), "install what it names"),
    ):
        gymnasium.register("TestMissing-v0", Own, kwargs={"missing": missing})
        made = gym.maker(EnvConfig(name="gym/TestMissing-v0"))
        assert made.env is not None
        with pytest.raises(MissingExtra) as caught:
            made.env()
        assert str(caught.value) == f"TestMissing-v0 needs a package that is not installed ({missing}): {advice}"
        del gymnasium.registry["TestMissing-v0"]


# ---------------------------------------------------------------------------------------------------------- wrappers


def test_the_wrappers_that_make_adds_are_removed():
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    assert type(env) is TimeLimit
    inner = gym.bare(env)
    assert type(inner) is CartPoleEnv
    assert inner.action_space.contains(99)  # The data plane keeps actions in range.
    assert not gymnasium.spaces.Discrete(2).contains(99)
    assert type(gym.bare(OrderEnforcing(CartPoleEnv()))) is CartPoleEnv


def test_wrappers_of_others_and_their_spaces_stay():
    own = gym.bare(OrderEnforcing(Own()))
    assert type(own) is Own
    assert not own.action_space.contains(99)
    for outer in (PassiveEnvChecker(OrderEnforcing(Own())), TimeLimit(PassiveEnvChecker(Own()), 3)):
        assert gym.bare(outer) is outer


class Sub(TimeLimit):
    """A user's own limit, which does something else."""


def test_a_subclass_of_a_wrapper_stays():
    env = Sub(OrderEnforcing(CartPoleEnv()), 3)
    assert gym.bare(env) is env


# ------------------------------------------------------------------------------------------------------------ makers


@pytest.mark.parametrize("name", ["gym/CartPole-v1", "CartPole-v1"])
def test_a_maker_builds_with_and_without_wrappers(name):
    made = gym.maker(EnvConfig(name=name))
    assert made.env is not None
    assert made.bare_env is not None
    assert type(made.env()) is TimeLimit
    assert type(made.bare_env()) is CartPoleEnv
    assert made.vector is not None
    assert (made.max_episode_steps, made.time_limit, made.frameskip) == (500, 500, 1)
    assert not made.keeps_group_size
    pool = made.vector(3, 1, [0, 1, 2])
    assert pool.num_envs == 3
    pool.close()


def test_a_time_limit_replaces_that_of_the_id():
    made = gym.maker(EnvConfig(name="gym/CartPole-v1", max_episode_steps=7))
    assert (made.max_episode_steps, made.time_limit) == (7, 7)
    assert made.env is not None
    assert made.env()._max_episode_steps == 7
    assert made.vector is not None
    pool = made.vector(2, 1, [0, 1])
    pool.reset(seed=0)
    assert [pool.step(np.array([step % 2] * 2))[3].tolist() for step in range(7)][-1] == [True, True]
    pool.close()


def test_an_id_of_a_vector_alone_is_the_users_and_keeps_its_group_size():
    gymnasium.register("TestVector-v0", vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv")
    made = gym.maker(EnvConfig(name="gym/TestVector-v0"))
    assert made.env is None
    assert made.prefer_vector
    assert made.keeps_group_size
    gymnasium.register("TestOwn-v0", Own)
    assert gym.maker(EnvConfig(name="gym/TestOwn-v0")).keeps_group_size


@pytest.mark.parametrize(("argument", "frames"), [(5, 5), ((2, 5), 1), (0, 1), ("4", 1)])
def test_frames_that_an_argument_skips_are_counted_if_their_number_is_fixed(argument, frames):
    gymnasium.register("TestSkipping-v0", Own, kwargs={"frameskip": argument})
    assert gym.maker(EnvConfig(name="gym/TestSkipping-v0")).frameskip == frames
    assert gym.maker(EnvConfig(name="gym/TestSkipping-v0", frameskip=6)).frameskip == 6


@pytest.mark.parametrize(
    ("kwargs", "frameskip", "frames"),
    [({}, None, 4), ({"frameskip": 2}, None, 2), ({}, 6, 6), ({"frameskip": 1}, None, 1)],
)
def test_frames_skipped_by_an_id_are_counted(kwargs, frameskip, frames):
    assert probe(EnvConfig(name="gym/ALE/Pong-v5", kwargs=kwargs, frameskip=frameskip)).frameskip == frames


def test_games_declare_the_steps_of_a_second():
    for frameskip in (4, 2):
        env = gym.maker(EnvConfig(name="gym/ALE/Pong-v5", kwargs={"frameskip": frameskip})).env()
        assert env.metadata["render_fps"] == 60 / frameskip
        env.close()


def test_mujoco_warnings_are_logged_once_and_not_printed(tmp_path, monkeypatch, capfd, caplog):
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    mujoco.set_mju_user_warning(None)  # as in a new process
    for _ in range(2):
        make_env(EnvConfig(name="mujoco/HalfCheetah-v5")).close()
    for time in (0.002, 0.4, 1.0):
        mujoco.get_mju_user_warning()(
            f"Nan, Inf or huge value in QACC at DOF 0. The simulation is unstable. Time = {time}"
        )
    assert caplog.text.count("unstable") == 1
    assert "WARNING" not in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
