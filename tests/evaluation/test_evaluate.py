"""Evaluation: the right episodes, exactly as many as asked for, always the same."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from rollmill.envs import factory
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import EnvironmentFailure
from rollmill.envs.registry import register_env
from rollmill.evaluation import episode_length
from rollmill.evaluation.agent import load
from rollmill.evaluation.episode_length import EndlessEpisodeError
from rollmill.evaluation.evaluate import (
    InfiniteReturnError,
    _of_all_tasks,
    _over_tasks,
    evaluate,
    evaluate_snapshot,
    quotas,
    side_by_side,
)
from rollmill.evaluation.snapshot import read_snapshot
from rollmill.evaluation.stats import mean_interval
from rollmill.evaluation.video import VideoError
from rollmill.evaluation.watch import watch
from rollmill.models.config import ModelConfig
from rollmill.models.device import DeviceError
from rollmill.runtime.seeds import int_seed

from .conftest import MakeRun

evaluate_module = sys.modules[evaluate.__module__]


@pytest.mark.parametrize(
    ("episodes", "num_envs", "expected"), [(10, 4, (3, 3, 2, 2)), (8, 4, (2, 2, 2, 2)), (3, 8, (1, 1, 1)), (1, 1, (1,))]
)
def test_quotas_are_even_and_add_up(episodes: int, num_envs: int, expected: tuple[int, ...]) -> None:
    assert quotas(episodes, num_envs) == expected


@pytest.mark.parametrize(
    ("env", "agents", "number"),
    [
        ("test/team", 2, 8),
        ("vizdoom/basic", 0, 8),
        ("vizdoom/duel", 2, 8),
        ("vizdoom/deathmatch", 4, 4),
        ("vizdoom/deathmatch", 5, 3),
        ("vizdoom/deathmatch", 8, 2),
    ],
)
def test_engines_of_matches_are_limited(env: str, agents: int, number: int) -> None:
    assert side_by_side(env, agents, 8) == number


@pytest.mark.parametrize(("episodes", "num_envs"), [(0, 4), (4, 0)])
def test_quotas_refuse_nothing_to_do(episodes: int, num_envs: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        quotas(episodes, num_envs)


def test_episodes_that_do_not_end_are_given_up_or_cut(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run("test/endless")
    monkeypatch.setattr(episode_length, "_TAKEN_FOR_ENDLESS", 500)
    with pytest.raises(EndlessEpisodeError, match=r"'test/endless' has not ended after 500 .* 2 of 5 .*--max-episode"):
        evaluate(run_dir, episodes=5, num_envs=2)
    monkeypatch.setattr(episode_length, "_WARNED_OF_LENGTH", 300)
    with (
        pytest.warns(UserWarning, match=r"has not ended after 300 .*--max-episode"),
        pytest.raises(EndlessEpisodeError),
    ):
        evaluate(run_dir, episodes=5, num_envs=2)
    assert evaluate(run_dir, episodes=5, num_envs=2, max_episode_steps=700).lengths == (3, 700, 700, 3, 700)


def test_one_thread_plays_and_the_others_come_back(make_run: MakeRun) -> None:
    seen: set[int] = set()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        evaluate(make_run("test/lengths"), episodes=1, is_stop_wanted=lambda: bool(seen.add(torch.get_num_threads())))
        assert (seen, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def test_short_episodes_are_not_preferred(make_run: MakeRun) -> None:
    snapshot = read_snapshot(make_run("test/lengths"))
    result = evaluate_snapshot(snapshot, episodes=40, num_envs=8, seed=3)
    assert len(result.returns) == 40
    assert result.returns == tuple(float(length) for length in result.lengths)
    # Every environment has five episodes, all of its own length.
    by_env = np.reshape(result.lengths, (8, 5))
    assert (by_env == by_env[:, :1]).all()
    assert {2, 20} == set(by_env[:, 0]), "the seed of this test should give both lengths"
    assert result.mean == np.mean(by_env[:, 0])


def test_metrics_of_the_environment_are_those_of_the_evaluated_episodes(make_run: MakeRun) -> None:
    snapshot = read_snapshot(make_run("test/lengths"))
    result = evaluate_snapshot(snapshot, episodes=40, num_envs=8, seed=3)
    # Short environments step on while long ones play.
    assert result.metrics == {"steps": 1.0, "length": np.mean(result.lengths)}
    assert "metric  length  " in result.describe()


def test_an_evaluation_can_be_repeated(make_run: MakeRun) -> None:
    run_dir = make_run("gym/CartPole-v1", model=ModelConfig(core="gru", core_size=8))
    first = evaluate(run_dir, episodes=6, num_envs=3, seed=1)
    again = evaluate(run_dir, episodes=6, num_envs=3, seed=1)
    other = evaluate(run_dir, episodes=6, num_envs=3, seed=2)
    assert first.returns == again.returns
    assert first.interval == again.interval
    assert first.returns != other.returns


def test_returns_are_those_of_playing_by_hand(make_run: MakeRun) -> None:
    run_dir = make_run("gym/CartPole-v1", model=ModelConfig(core="gru", core_size=8))
    result = evaluate(run_dir, episodes=3, num_envs=1, seed=1, deterministic=True)
    agent = load(run_dir)
    env = gym.make("CartPole-v1")
    returns: list[float] = []
    for episode in range(3):
        observation, _ = env.reset(seed=int_seed(1, "evaluation environment", 0) if episode == 0 else None)
        agent.reset()
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(agent.act(observation, deterministic=True))
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    env.close()
    assert list(result.returns) == returns


def test_the_result_can_be_printed_and_saved(make_run: MakeRun) -> None:
    result = evaluate(make_run("test/lengths", frameskip=4), episodes=5, num_envs=2)
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["episodes"] == 5
    assert data["agent_steps"] == 123
    assert data["frames"] == 4 * sum(data["lengths"])
    assert data["interval_95"][0] <= data["mean_return"] <= data["interval_95"][1]
    text = result.describe()
    assert "test/lengths: 5 episodes after 123 agent steps" in text
    assert "sampled (exploring) actions" in text
    assert "video" not in text
    assert " 95 % interval " in text
    one = replace(result, returns=result.returns[:1], lengths=result.lengths[:1]).describe()
    assert "of one episode" in one
    assert "interval" not in one
    assert "video   x.mp4" in replace(result, video="x.mp4").describe()


@pytest.mark.parametrize("name", ["a.gif", "a", "folder.mp4"])
def test_a_video_that_cannot_be_written_is_refused_before_anything_is_played(
    name: str, make_run: MakeRun, tmp_path: Path
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    for play in (evaluate, watch):
        with pytest.raises(VideoError, match=r"ends in \.mp4|is a folder"):
            play(make_run("test/crashing"), episodes=1, video=tmp_path / name)


@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_there_is_told(device: str, make_run: MakeRun) -> None:
    with pytest.raises(DeviceError, match="device="):
        evaluate(make_run("test/lengths"), episodes=1, device=device)
    load(make_run("test/lengths"), device="auto")


def test_an_environment_that_cannot_be_built_stops_the_evaluation(make_run: MakeRun) -> None:
    snapshot = read_snapshot(make_run("test/striped", on_failure="restart"))
    result = evaluate_snapshot(snapshot, episodes=1)
    assert result.returns == (10.0,)
    unknown = snapshot._replace(env=replace(snapshot.env, kwargs={"unknown": 1}))
    with pytest.raises(EnvironmentFailure, match="test/striped"):
        evaluate_snapshot(unknown, episodes=1)


class Flaky(gym.Env[Any, Any]):
    """Episodes of three steps, the first few of which fail in their second step."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    failing = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 2 and Flaky.failing:
            Flaky.failing -= 1
            raise OSError("killed")
        return np.zeros(1, np.float32), 1.0, self.steps == 3, False, {}


def test_environments_that_fail_are_rebuilt_as_in_training(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    register_env("test/flaky", Flaky)
    run = make_run("test/flaky", on_failure="restart", restart_budget=2)
    monkeypatch.setattr(Flaky, "failing", 2)
    with pytest.warns(UserWarning, match=r"(?s)^2 failure\(s\) of environments: they were rebuilt, .*OSError: killed"):
        result = evaluate(run, episodes=3, num_envs=2)
    assert (result.returns, result.lengths) == ((3.0, 3.0, 3.0), (3, 3, 3))
    Flaky.failing = 3
    with pytest.raises(EnvironmentFailure, match=r"env.restart_budget is spent \(2 of 2 rebuilds\)"):
        evaluate(run, episodes=3, num_envs=2)
    Flaky.failing = 1
    with pytest.raises(EnvironmentFailure, match=r"env\.on_failure=restart rebuilds"):
        evaluate(make_run("test/flaky"), episodes=3, num_envs=2)


class Bottomless(Flaky):
    """The reward of each episode's last step is infinite."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, -np.inf if terminated else reward, terminated, truncated, info


def test_returns_without_a_mean_are_told(make_run: MakeRun) -> None:
    register_env("test/bottomless", Bottomless)
    with pytest.raises(InfiniteReturnError, match=r"3 of 3 episode\(s\) of test/bottomless .*env.check_finite=true"):
        evaluate(make_run("test/bottomless", check_finite=False), episodes=3)


def test_a_renderer_that_fails_costs_the_video_only(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no video was written: test/crashing cannot be drawn: a library for drawing"):
        result = evaluate(make_run("test/crashing"), episodes=3, video=tmp_path / "a.mp4")
    assert len(result.returns) == 3
    assert result.video is None


@pytest.mark.parametrize("episodes", [0, 2.5, "3", float("nan"), True])
def test_episodes_that_cannot_be_counted_are_refused(episodes: Any) -> None:
    with pytest.raises(ValueError, match=r"episodes=.*: give an integer of at least 1"):
        quotas(episodes, 8)
    with pytest.raises(ValueError, match=r"episodes=.*: give an integer of at least 1, or None"):
        watch("nowhere", episodes=episodes, video="seen.mp4")


def test_a_numpy_integer_counts_episodes() -> None:
    episodes: Any = np.int64(3)  # A type checker does not accept it as an int.
    num_envs: Any = np.int64(2)
    assert quotas(episodes, num_envs) == (2, 1)


class Team(ParallelEnv[str, Any, int]):
    """Two agents get the same reward in one step; in every second episode the second one is absent."""

    metadata: ClassVar[dict[str, Any]] = {"name": "team"}
    possible_agents: ClassVar[list[str]] = ["ann", "bob"]
    shy = False

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.random = np.random.default_rng(0)
        self.episode = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.episode += 1
        self.agents = self.possible_agents[: 1 if self.shy and self.episode % 2 else 2]
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        gone, self.agents, reward = self.agents, [], float(self.random.normal())
        of_all = [dict.fromkeys(gone, value) for value in (np.zeros(1, np.float32), reward, True, False, {})]
        return tuple(of_all)


class ShyTeam(Team):
    """The second agent comes to every second episode."""

    shy = True


def test_episodes_rather_than_their_agents_are_resampled(make_run: MakeRun) -> None:
    register_env("test/team", Team)
    result = evaluate(make_run("test/team"), episodes=12, num_envs=3)
    first = np.reshape(result.returns, (3, 2, 4))[:, 0]
    assert result.mean == pytest.approx(first.mean())
    assert result.interval == pytest.approx(mean_interval(first)[1:])


def test_an_agents_absence_does_not_shift_its_returns_to_other_episodes(make_run: MakeRun) -> None:
    register_env("test/shy_team", ShyTeam)
    result = evaluate(make_run("test/shy_team"), episodes=12, num_envs=3)
    by_env = [result.returns[first : first + 6] for first in (0, 6, 12)]
    for returns in by_env:
        assert returns[4:] == (returns[1], returns[3])
    expected = mean_interval([returns[:4] for returns in by_env], weights=[[1, 2, 1, 2]] * 3)
    assert (result.mean, *result.interval) == pytest.approx(expected)


class FailingTeam(Team):
    """The first agent ends after one step, the second one after two; the first episodes fail between them."""

    failing = 0

    def step(self, actions: Any) -> Any:
        if len(self.agents) == 2:
            self.agents = ["bob"]
            values: list[Any] = [np.zeros(1, np.float32), 1.0, True, False, {}]
            of_all = [dict.fromkeys(self.possible_agents, value) for value in values]
            of_all[2]["bob"] = False
            return tuple(of_all)
        if FailingTeam.failing:
            FailingTeam.failing -= 1
            raise OSError("killed")
        return super().step(actions)


def test_an_agent_whose_episode_failed_was_not_absent(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    register_env("test/failing_team", FailingTeam)
    run = make_run("test/failing_team", on_failure="restart")
    monkeypatch.setattr(FailingTeam, "failing", 2)
    with pytest.warns(UserWarning, match=r"^2 failure\(s\)"):
        result = evaluate(run, episodes=4, num_envs=2)
    assert len(result.returns) == 8


@pytest.mark.parametrize(("given", "built"), [({}, 2), ({"num_envs": 3}, 3)])
def test_fewer_matches_are_the_default_alone(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, given: dict[str, int], built: int
) -> None:
    register_env("vizdoom/team", Team)
    run = make_run("vizdoom/team")
    monkeypatch.setattr(evaluate_module, "_MOST_ENGINES_AT_ONCE", 5)
    sizes: list[int] = []

    def make_group(config: EnvConfig, num_envs: int, *arguments: Any, **options: Any) -> Any:
        sizes.append(num_envs)
        return factory.make_group(config, num_envs, *arguments, **options)

    monkeypatch.setattr(evaluate_module, "make_group", make_group)
    assert len(evaluate(run, episodes=12, **given).returns) == 24
    assert sizes == [built]


def test_tasks_count_alike_however_many_episodes_a_player_had_of_them(make_run: MakeRun) -> None:
    snapshot = read_snapshot(make_run("gym/CartPole-v1"))
    one, other = (evaluate_snapshot(snapshot, episodes=episodes, num_envs=1) for episodes in (1, 3))
    both = _of_all_tasks(snapshot, [replace(one, env="a"), replace(other, env="b")])
    assert both.mean == pytest.approx((one.mean + other.mean) / 2)
    assert both.tasks == {"a": (one.mean, *one.interval), "b": (other.mean, *other.interval)}
    assert len(both.returns) == 4


def test_means_over_tasks_are_of_the_policies_that_have_played_all() -> None:
    found = _over_tasks([{"a": (1.0, 0.0, 3.0), "b": (0.0, 0.0, 0.0)}, {"a": (5.0, 4.0, 6.0)}])
    assert found == {"a": (3.0, pytest.approx(3 - 2**0.5 / 2), pytest.approx(3 + 5**0.5 / 2))}
