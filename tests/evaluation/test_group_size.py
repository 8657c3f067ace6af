"""What the factory of a user's vector environment is called with: the run's ``envs_per_group``, everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

import rollmill
from rollmill.benchmarking.simulation import pure_simulation
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.factory import make_group, probe, rows_of_group
from rollmill.envs.registry import register_env
from rollmill.evaluation.agent import load
from rollmill.evaluation.evaluate import evaluate
from rollmill.evaluation.lineup import lineup_of_agent
from rollmill.evaluation.video import play_episode
from rollmill.tuning.model import Workload
from rollmill.tuning.settings import allocation_of, space_of
from rollmill.verification import verify

GAMES = {"num_envs": 12, "envs_per_group": 6, "rollout_length": 8, "learner.batch_size": 96, "learner.minibatches": 1}


class Duels(VectorEnv[Any, Any, Any]):
    """Games of three players, a row for each; a game is over after five steps."""

    single_observation_space = spaces.Box(0, 1, (2,), np.float32)
    single_action_space = spaces.Discrete(2)
    metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, calls: str = "", render_mode: str | None = None) -> None:
        if calls:
            with open(calls, "a") as file:
                file.write(f"{num_envs}\n")
        if num_envs % 3:
            raise ValueError(f"games of three players do not fit into {num_envs} rows")
        self.num_envs = num_envs
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.clock = 0

    def _seen(self) -> Any:
        return np.zeros(self.observation_space.shape, np.float32)

    def render(self) -> tuple[Any, ...]:
        return (np.zeros((12, 12, 3), np.uint8),) * self.num_envs

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.clock = 0
        return self._seen(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self.clock == 5:
            self.clock = 0
            return self._seen(), np.zeros(self.num_envs), *np.zeros((2, self.num_envs), bool), {}
        self.clock += 1
        ended = np.full(self.num_envs, self.clock == 5)
        return self._seen(), np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool), {}


class Wrong(Duels):
    """Makes another number of rows than it is asked for."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(3)


register_env("test/duels", Duels, vector=True)
register_env("test/wrong", Wrong, vector=True)


def test_only_vector_environments_of_the_users_are_called_with_the_groups_size() -> None:
    assert rows_of_group(EnvConfig(name="test/duels"), 1, 6) == 6
    assert rows_of_group(EnvConfig(name="test/duels"), 1, None) == 1
    assert rows_of_group(EnvConfig(name="gym/CartPole-v1"), 8, 6) == 8
    assert rows_of_group(EnvConfig(name="gym/CartPole-v1", vector=True), 8, 6) == 8
    assert probe(EnvConfig(name="test/duels"), group_size=6).keeps_group_size


def test_another_number_of_rows_is_named() -> None:
    with pytest.raises(UnsupportedSpace, match=r"test/wrong was called with num_envs=6 and returned .* of 3"):
        make_group(EnvConfig(name="test/wrong"), 6, range(6))


def test_tune_keeps_the_groups_size() -> None:
    config = rollmill.make_config("test/duels", {"num_envs": 12}).resolved()
    workload = Workload(regime="async", update_interval=256)
    space = space_of(config, workload, {}, 4, keeps_group_size=True)
    assert space.envs_per_group == (allocation_of(config).envs_per_group,)


def calls_of(path: Path) -> set[int]:
    return {int(line) for line in path.read_text().split()}


@pytest.mark.slow
def test_a_run_and_all_that_is_made_of_it_calls_with_the_groups_size(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    kwargs = {"env.kwargs": {"calls": str(calls)}}
    run = rollmill.train("test/duels", run_dir=tmp_path / "run", total_steps=192, quiet=True, **GAMES, **kwargs)
    assert calls_of(calls) == {6}
    for episodes in (2, 7):
        result = evaluate(run.dir, episodes=episodes, num_envs=4)
        assert result.returns == (5.0,) * episodes
    agent = load(run.dir)
    assert agent.act(np.zeros(2, np.float32)) in (0, 1)
    frames = list(play_episode(lineup_of_agent(agent), agent.snapshot.env, 1))
    assert [frame.reward_sum for frame in frames] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert calls_of(calls) == {6}


@pytest.mark.slow
def test_a_size_that_was_left_to_the_machine_is_kept_in_the_run(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    settings = {**GAMES, "envs_per_group": "auto", "rollout.num_workers": 1, "env.kwargs": {"calls": str(calls)}}
    run = rollmill.train("test/duels", run_dir=tmp_path / "run", total_steps=96, quiet=True, **settings)
    (size,) = calls_of(calls)
    assert json.loads((run.dir / "config.json").read_text())["envs_per_group"] == size


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bench_and_verify_call_with_the_groups_size(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    settings = {**GAMES, "env.kwargs": {"calls": str(calls)}}
    assert pure_simulation(rollmill.make_config("test/duels", settings).resolved(), seconds=0.5) > 0
    assert verify("test/duels", updates=2, **settings).equal
    assert calls_of(calls) == {6}
