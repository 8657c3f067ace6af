"""Environments in wrappers of Gymnasium's and of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import rollmill
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import EnvironmentFailure, UnknownEnvironment
from rollmill.envs.factory import make_env, make_group, probe
from rollmill.envs.registry import register_env
from rollmill.envs.trust import named_code
from rollmill.envs.views import own_views
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.value_checks import ConfigError


class Doubled(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper of the user's."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def observation(self, observation: Any) -> Any:
        return (observation * self.factor).astype(np.float32)


def config(wrappers: str, name: str = "gym/CartPole-v1", **more: Any) -> EnvConfig:
    return EnvConfig(name=name, wrappers=wrappers, **more)


def test_the_first_wrapper_is_the_innermost() -> None:
    env = make_env(config("ClipReward(-0.5, 0.5), TimeAwareObservation"))
    observation, _ = env.reset(seed=0)
    assert observation.shape == (5,)
    assert env.step(0)[1] == 0.5
    assert str(env).index("TimeAwareObservation") < str(env).index("ClipReward")


def test_groups_and_the_spec_have_the_wrapped_spaces() -> None:
    given = config("FrameStackObservation(stack_size=3), FlattenObservation")
    (spec,) = probe(given).observation.values()
    assert spec.shape == (12,)
    group = make_group(given, 2, seeds=[0, 1])
    into, _ = own_views(probe(given), 2)
    group.reset(into)
    (array,) = into.observation.values()
    assert array.shape == (2, 12)
    assert array.any()
    group.close()


def test_a_wrapper_of_the_user_s_is_named_with_its_module() -> None:
    plain, doubled = (make_env(config(text)) for text in ("", f"{__name__}.Doubled(factor=3.0)"))
    assert np.allclose(doubled.reset(seed=4)[0], 3 * plain.reset(seed=4)[0])


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        ("TimeAwareObservaton", "there is no wrapper TimeAwareObservaton; did you mean TimeAwareObservation"),
        ("NormalizeObservation", r"use model\.normalise_observations=true, or off-policy a wrapper of your own"),
        ("NormalizeReward", r"use model\.normalise_returns"),
        ("Autoreset", "resets environments itself"),
        ("TimeLimit(10)", r"env\.max_episode_steps"),
        ("gymnasium.wrappers.NormalizeObservation", r"use model\.normalise_observations"),
        ("json.NoSuch", r"there is no wrapper json\.NoSuch"),
    ],
)
def test_wrappers_that_no_run_can_have(wrappers: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        probe(config(wrappers))


def test_wrong_arguments_are_the_environment_s_failure() -> None:
    with pytest.raises(Exception, match="stack_sizes"):
        probe(config("FrameStackObservation(stack_sizes=3)"))


def test_missing_arguments_are_told_as_those_of_the_wrapper() -> None:
    with pytest.raises(EnvironmentFailure, match=r"RecordVideo raised TypeError around .*given as RecordVideo\(NAME"):
        probe(config("RecordVideo"))


def test_a_wrapper_that_does_not_fit_is_named() -> None:
    with pytest.raises(EnvironmentFailure, match=r"env\.wrappers: ClipReward raised InvalidBound around gym/CartPole"):
        make_env(config("ClipReward"))


def test_a_wrapper_sees_the_time_limit_of_an_environment_of_one_s_own() -> None:
    register_env("test/pole", CartPoleEnv)
    env = make_env(config("TimeAwareObservation", "test/pole", max_episode_steps=3))
    env.reset(seed=0)
    assert [env.step(step % 2)[3] for step in range(3)] == [False, False, True]


def test_a_wrapper_may_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'array_api_compat'")

    monkeypatch.setattr(gymnasium.wrappers, "__getattr__", missing)
    with pytest.raises(ConfigError, match=r"LoadedLater needs a package that is missing .*array_api_compat"):
        probe(config("LoadedLater"))


def test_native_vector_environments_are_made_in_python_or_refused() -> None:
    vector = config("ClipReward(-1, 1)", "gym/CartPole-v1", vector=True)
    with pytest.raises(UnknownEnvironment, match=r"is a native vector environment: leave env\.vector out"):
        probe(vector)
    assert not probe(config("ClipReward(-1, 1)")).native_vector
    for name in ("atari/pong", "envpool/CartPole-v1"):
        with pytest.raises(UnknownEnvironment, match="which has no such form"):
            probe(config("ClipReward(-1, 1)", name))


def test_several_agents_are_not_wrapped() -> None:
    with pytest.raises(UnknownEnvironment, match="several agents"):
        probe(config("ClipReward(-1, 1)", "mpe/simple_spread_v3"))


def test_code_and_files_that_wrappers_name_need_trust() -> None:
    assert not named_code(config("ClipReward(-1, 1), FlattenObservation"))
    assert "my_module.B" in named_code(config("my_module.B"))
    assert "RecordVideo" in named_code(config("RecordVideo('/tmp/x')"))
    assert "RecordVideo" in named_code(config("RecordVideo(b'/tmp/x')"))
    assert "RescaleObservation" in named_code(config("RescaleObservation((0, 'x'), {'a': 1})"))
    assert not named_code(config("RescaleObservation((0, 1), [2, None])"))


def test_a_run_trains_and_is_evaluated_with_them(tmp_path: Path) -> None:
    settings = {"num_envs": 4, "rollout_length": 8, "learner.batch_size": 64, "learner.minibatches": 1}
    run = rollmill.train(
        "gym/CartPole-v1",
        run_dir=tmp_path,
        quiet=True,
        total_steps=256,
        **{**settings, "env.wrappers": "TimeAwareObservation, ClipReward(0, 0.5)", "rollout.num_workers": 1},
    )
    assert read_metrics(run.dir)[-1]["agent_steps"] >= 256
    result = rollmill.evaluate(run.dir, episodes=2)
    assert all(value == length / 2 for value, length in zip(result.returns, result.lengths, strict=True))
    assert rollmill.load(run.dir).act(np.zeros(5, np.float32)) in (0, 1)
