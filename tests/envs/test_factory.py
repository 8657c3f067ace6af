from __future__ import annotations

import builtins
import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from tests.envs.agent_games import AGENTS, Crowd, Duck, Rounds

from rollmill.envs.config import AtariOptions, EnvConfig, VizdoomOptions
from rollmill.envs.errors import (
    EnvironmentFailure,
    InvalidActionMask,
    InvalidReward,
    MissingExtra,
    UnknownEnvironment,
    UnsupportedSpace,
)
from rollmill.envs.factory import make_group, probe
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.registry import register_env
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.envs.vector_group import VectorGroup
from rollmill.extras import install_command


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("atari/brekout", "'breakout'"),
        ("vizdoom/defend_center", "'defend_the_center'"),
        ("gym/CartPol-v1", "'CartPole-v1'"),
        ("mujoco/HalfCheetahh-v5", "'HalfCheetah-v5'"),
        ("minigrid/MiniGrid-MemoryS8-v0", "'MiniGrid-MemoryS"),
        ("minigrid/DoorKey", "'MiniGrid-DoorKey-5x5-v0'"),
        ("envpool/CartPole-v9", "'CartPole-v1'"),
    ],
)
def test_unknown_names_suggest_similar_ones(name, suggestion):
    with pytest.raises(UnknownEnvironment, match=f"did you mean .*{suggestion}"):
        probe(EnvConfig(name=name))


def test_names_that_are_not_similar_are_not_suggested() -> None:
    with pytest.raises(UnknownEnvironment, match="Gymnasium has no environment 'MyEnv-v0'") as raised:
        probe(EnvConfig(name="gym/MyEnv-v0"))
    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("atari/pong", "ale_py", "atari"),
        ("vizdoom/basic", "vizdoom", "vizdoom"),
        ("minigrid/MiniGrid-MemoryS7-v0", "minigrid", "minigrid"),
        ("envpool/CartPole-v1", "envpool", "envpool"),
        ("mujoco/HalfCheetah-v5", "mujoco", "mujoco"),
        ("gym/LunarLander-v3", "Box2D", "box2d"),
    ],
)
def test_a_missing_package_says_what_to_install(name, package, extra, monkeypatch):
    real_import = builtins.__import__

    def without(module, *arguments, **kwargs):
        if module.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real_import(module, *arguments, **kwargs)

    for loaded in [m for m in sys.modules if m.partition(".")[0] == package or m.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, loaded)
    for loaded in [m for m in sys.modules if m.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=re.escape(install_command(extra))):
        probe(EnvConfig(name=name))


@pytest.mark.parametrize(
    ("name", "vector", "kind"),
    [
        ("gym/CartPole-v1", "auto", PythonGroup),
        ("CartPole-v1", False, PythonGroup),
        ("gym/CartPole-v1", True, VectorGroup),
        ("envpool/CartPole-v1", "auto", VectorGroup),
        ("atari/pong", True, VectorGroup),
    ],
)
def test_kind_of_group(name, vector, kind):
    config = EnvConfig(name=name, vector=vector)
    group = make_group(config, 2, [1, 2])
    assert isinstance(group, kind)
    assert group.num_rows == 2
    group.close()
    assert probe(config).native_vector == (kind is VectorGroup)


@pytest.mark.parametrize(
    ("name", "vector", "message"),
    [("gym/Acrobot-v1", True, "has no native vector"), ("envpool/CartPole-v1", False, "only a native vector")],
)
def test_missing_kinds_of_group_raise(name, vector, message):
    with pytest.raises(UnknownEnvironment, match=message):
        make_group(EnvConfig(name=name, vector=vector), 1, [0])


def test_number_of_seeds():
    with pytest.raises(ValueError, match="1 seeds were given for 2 environments"):
        make_group(EnvConfig(name="gym/CartPole-v1"), 2, [0])


class BrokenConstructor:
    def __init__(self):
        raise OSError("no such simulator")


class BrokenReset:
    observation_space = action_space = None

    def __init__(self):
        from gymnasium import spaces

        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.closed = False

    def reset(self, *, seed=None, options=None):
        raise OSError("cannot start")

    def close(self):
        self.closed = True


@pytest.mark.parametrize(("broken", "where"), [(BrokenConstructor, "constructor"), (BrokenReset, "reset")])
def test_the_probe_shows_the_environments_error(broken, where):
    register_env(broken.__name__, broken)
    with pytest.raises(EnvironmentFailure, match=f"raised OSError in its {where}") as caught:
        probe(EnvConfig(name=broken.__name__))
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("where", ["reset", "step"])
def test_the_probe_builds_an_environment_that_raises_again_within_the_budget(where: str) -> None:
    built: list[gymnasium.Env] = []

    class Flaky(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        is_closed = False

        def __init__(self) -> None:
            built.append(self)

        def fail(self, at: str) -> None:
            if at == where and len(built) < 3:
                raise OSError("killed")

        def reset(self, *, seed=None, options=None):
            self.fail("reset")
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.fail("step")
            return np.zeros(1, np.float32), 0.0, False, False, {}

        def close(self):
            self.is_closed = True

    register_env("flaky", Flaky)
    assert probe(EnvConfig(name="flaky", on_failure="restart", restart_budget=2)).name == "flaky"
    assert [env.is_closed for env in built] == [True] * 3
    for config, number, advice in (
        (EnvConfig(name="flaky", on_failure="restart", restart_budget=1), 2, r"budget is spent \(1 of 1 rebuilds\)"),
        (EnvConfig(name="flaky", restart_budget=1), 1, "env.on_failure=restart rebuilds"),
    ):
        built.clear()
        with pytest.raises(EnvironmentFailure, match=f"raised OSError in its {where}.*{advice}"):
            probe(config)
        assert [env.is_closed for env in built] == [True] * number


def test_the_probe_calls_a_constructor_that_raises_once() -> None:
    calls: list[None] = []

    def make() -> None:
        calls.append(None)
        raise OSError("cannot start")

    register_env("unmade", make)
    with pytest.raises(EnvironmentFailure, match=r"raised OSError in its constructor: cannot start$"):
        probe(EnvConfig(name="unmade", on_failure="restart"))
    assert len(calls) == 1


class Paying(gymnasium.Env):
    """Returns given rewards."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, rewards):
        self.rewards = list(rewards)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert type(action) is int
        return np.zeros(1, np.float32), self.rewards.pop(0), False, False, {}


def test_a_reward_may_be_an_array_of_one_element(harness):
    group = PythonGroup(lambda: Paying([np.array([1.5]), 2, np.float32(3)]), num_envs=2, seeds=[0, 1])
    data = harness.run(group, observation_specs(Paying.observation_space), action_spec(Paying.action_space), 3)
    np.testing.assert_array_equal(data.reward, [[1.5, 1.5], [2, 2], [3, 3]])
    assert probe(EnvConfig(name=register(Paying), kwargs={"rewards": [np.array([1.5])]}))


@pytest.mark.parametrize("reward", [None, "much", np.zeros(2)])
def test_invalid_reward_error_names_the_environment(reward, harness):
    with pytest.raises(InvalidReward, match=r"one real number that float32"):
        probe(EnvConfig(name=register(Paying), kwargs={"rewards": [reward]}))
    group = PythonGroup(lambda: Paying([0.0, reward]), num_envs=2, seeds=[0, 1], name="paying", first_index=6)
    with pytest.raises(InvalidReward, match=r"environment 6 of paying gave the reward .* at group step 2"):
        harness.run(group, observation_specs(Paying.observation_space), action_spec(Paying.action_space), 3)


def register(factory):
    register_env(factory.__name__, factory)
    return factory.__name__


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EnvConfig(name=""), "env.name='': give a name such as"),
        (
            lambda: EnvConfig(name="x", frameskip=0),
            "env.frameskip=0: .* or None for the family's",
        ),
        (lambda: EnvConfig(name="x", max_episode_steps=-1), "env.max_episode_steps=-1: give an integer"),
        (lambda: EnvConfig(name="x", vector="yes"), "env.vector='yes': choose one of 'auto', True, False"),
        (lambda: EnvConfig(name="x", on_failure="retry"), "choose one of 'stop', 'restart'"),
        (lambda: EnvConfig(name="x", restart_budget=-1), "an integer of at least 0"),
        (lambda: AtariOptions(sticky_actions=1.0), r"in \[0, 1\) \(0: Mnih"),
        (lambda: AtariOptions(frame_stack=0), "at least 1"),
        (lambda: VizdoomOptions(width=0), r"env.vizdoom.width=0: give an integer of at least 1 \(pixels\)"),
    ],
)
def test_bad_configurations(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_imports_no_heavy_packages():
    code = (
        "import sys, rollmill.envs.config, rollmill.envs.registry\n"
        "heavy = {'torch', 'gymnasium', 'numpy', 'ale_py', 'vizdoom', 'envpool', 'minigrid'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from rollmill.envs.config import EnvConfig\n"
        "from rollmill.envs.factory import make_group\n"
        "make_group(EnvConfig(name='gym/CartPole-v1'), 2, [0, 1]).close()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_multi_agent_environment_without_the_interface_raises():
    class Parallel:
        """Has a part of the interface of PettingZoo's ParallelEnv."""

        possible_agents = ("left", "right")

        def observation_space(self, agent):
            return gymnasium.spaces.Box(-1, 1, (2,))

    register_env("parallel", Parallel)
    with pytest.raises(UnsupportedSpace, match=r"parallel has no action_space, .*pettingzoo.ParallelEnv"):
        probe(EnvConfig(name="parallel"))


@pytest.mark.parametrize("game", [Crowd, Rounds])
def test_an_environment_without_possible_agents_is_explained(game):
    class Nameless(game):
        def __init__(self, is_none):
            super().__init__()
            del self.possible_agents
            if is_none:
                self.possible_agents = None

    register_env("nameless", Nameless)
    with pytest.raises(UnsupportedSpace, match=r"nameless: observation_space is a method, .* set possible_agents"):
        probe(EnvConfig(name="nameless", kwargs={"is_none": False}))
    with pytest.raises(UnsupportedSpace, match="has possible_agents=None: set possible_agents in its constructor"):
        probe(EnvConfig(name="nameless", kwargs={"is_none": True}))


def test_a_time_limit_needs_what_agents_have_earned():
    register_env("duck", Duck)
    assert list(probe(EnvConfig(name="duck")).agents) == AGENTS
    with pytest.raises(UnsupportedSpace, match=r"no _cumulative_rewards, but env\.max_episode_steps .* leave env\.max"):
        probe(EnvConfig(name="duck", max_episode_steps=9))
    register_env("rounds", Rounds)
    assert probe(EnvConfig(name="rounds", max_episode_steps=9)).max_episode_steps == 9


def test_a_multi_agent_environment_in_which_nobody_acts_raises():
    class Empty:
        possible_agents = ("left", "right")
        agents = ()

        def observation_space(self, agent):
            return gymnasium.spaces.Box(-1, 1, (2,))

        def action_space(self, agent):
            return gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            return {}, {}

        def close(self):
            pass

    register_env("empty", Empty)
    with pytest.raises(UnsupportedSpace, match="no agent acts after a reset"):
        probe(EnvConfig(name="empty"))


def test_masks_for_a_part_of_the_agents_are_refused():
    class Partly(Crowd):
        def reset(self, seed=None, options=None):
            observations, infos = super().reset(seed, options)
            return observations, {**infos, "bob": {"action_mask": [1, 0, 1, 0]}}

    register_env("partly", Partly)
    with pytest.raises(InvalidActionMask, match="partly gives action masks to bob and none to ann"):
        probe(EnvConfig(name="partly"))


def test_probe_ignores_a_failing_close(harness):
    class Sticky(harness.CountingEnv):
        def close(self):
            raise RuntimeError("cannot close")

    register_env("sticky", Sticky)
    assert probe(EnvConfig(name="sticky")).name == "sticky"
