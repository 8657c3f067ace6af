"""Agents and evaluations of runs that have learned several tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rollmill
from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import make_group, probe
from rollmill.envs.registry import register_env
from rollmill.envs.task_group import TaskGroup
from rollmill.envs.task_spaces import with_task_entry
from rollmill.evaluation.agent import Agent, AgentError, load
from rollmill.evaluation.evaluate import evaluate
from rollmill.evaluation.evaluation_result import EvaluationResult
from rollmill.evaluation.saved_spaces import SPACES_FILE, write_spaces
from rollmill.evaluation.snapshot import read_snapshot
from rollmill.evaluation.tasks import UnknownTaskError, shown_as_task, spec_of, task_index
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.runtime.seeds import int_seed
from rollmill.runtime.signed_files import signed
from rollmill.scores import SCORES, human_normalised
from rollmill.settings.options import to_json
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

from .conftest import MakeRun

MakeTasks = Callable[..., Path]

CARTPOLE, ACROBOT, PENDULUM = CLASSIC = ("gym/CartPole-v1", "gym/Acrobot-v1", "gym/Pendulum-v1")
TOLD = ModelConfig(mlp_sizes=(16,), observe_task=True)
GRU = ModelConfig(core="gru", core_size=8, observe_task=True)


class Masked(gym.Env[Any, Any]):
    """Two heads, whose masks in ``info`` allow one choice only, which goes around; choices count from 0."""

    observation_space = spaces.Box(-1, 1, (5,), np.float32)
    action_space = spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(5, np.float32), {"action_mask": self.mask()}

    def mask(self) -> tuple[Any, Any]:
        return np.arange(3) == self.steps % 3, np.arange(2) == self.steps % 2

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert list(action) == [self.steps % 3, self.steps % 2], "the mask was not obeyed"
        self.steps += 1
        return np.zeros(5, np.float32), 1.0, self.steps == 7, False, {"action_mask": self.mask()}


class Counted(gym.Env[Any, Any]):
    """Choices start at 10; a return of 3 in each episode, of three steps."""

    observation_space = spaces.Dict(where=spaces.Discrete(3, start=1), speed=spaces.Box(-1, 1, (2,), np.float32))
    action_space: spaces.Space[Any] = spaces.Discrete(4, start=10)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self) -> dict[str, Any]:
        return {"where": np.int64(1 + self.steps % 3), "speed": np.zeros(2, np.float32)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.steps += 1
        return self.look(), 1.0, self.steps == 3, False, {}


class Wide(Counted):
    """Has more choices and more numbers than the others."""

    action_space = spaces.Tuple([spaces.Box(-3, 3, (3,), np.float32), spaces.MultiDiscrete([2, 2, 4])])


@pytest.fixture(scope="module", autouse=True)
def _own_environments() -> None:
    register_env("own/masked", Masked)
    register_env("own/counted", Counted, frameskip=5)
    register_env("own/wide", Wide)


@pytest.fixture
def make_tasks(tmp_path: Path) -> MakeTasks:
    """Runs of several tasks that hold a network as it was initialised; see ``make_run``."""

    def make(*tasks: str, model: ModelConfig = TOLD, **env: Any) -> Path:
        run_dir = tmp_path / "tasks"
        run_dir.mkdir()
        config = EnvConfig(name=",".join(tasks), tasks=tasks, **env)
        (run_dir / "config.json").write_text(json.dumps(signed({**to_json(config), **to_json(model)})))
        spec = probe(config)
        spec = with_task_entry(spec) if model.uses_task else spec
        assert spec.spaces is not None
        write_spaces(run_dir, spec.spaces)
        torch.manual_seed(0)
        network = make_model(spec.observation, spec.action, model)
        # The last layers begin with weights so small that inputs hardly matter.
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.3 * torch.randn_like(weight))
        store = CheckpointStore(run_dir / "checkpoints", CheckpointConfig())
        store.save({"model": network.state_dict(), "counters": {"agent_steps": 9}}, agent_steps=9, metric=0.0)
        return run_dir

    return make


def probabilities_of(run_dir: Path, observation: dict[str, Any]) -> Any:
    """The network's own outputs for shared observations."""
    snapshot = read_snapshot(run_dir)
    spec = spec_of([snapshot], snapshot.env)
    network = make_model(spec.observation, spec.action, snapshot.model)
    network.load_state_dict(snapshot.weights)
    with torch.no_grad():
        return network({name: torch.as_tensor(array) for name, array in observation.items()}).params.numpy()


def test_a_task_is_found_by_its_whole_name_or_its_last_part() -> None:
    env = EnvConfig(name="all", tasks=("atari/pong", "gym/CartPole-v1", "gym/ALE/Qbert-v5", "bare"))
    assert [task_index(env, task) for task in env.tasks] == [0, 1, 2, 3]
    assert [task_index(env, task) for task in ("pong", "CartPole-v1", "Qbert-v5")] == [0, 1, 2]
    # A whole name comes before the last part of another one.
    assert task_index(EnvConfig(name="all", tasks=("gym/x", "x")), "x") == 1


@pytest.mark.parametrize("task", ["pon", "atari", "ALE/Qbert-v5", "", "PONG"])
def test_no_other_name_is_a_task(task: str) -> None:
    tasks = ("atari/pong", "gym/ALE/Qbert-v5", "one/twice", "two/twice")
    with pytest.raises(UnknownTaskError, match=f"no task '{task}'; choose one of {', '.join(tasks)}"):
        task_index(EnvConfig(name="all", tasks=tasks), task)


def test_a_last_part_that_two_tasks_have_is_no_name() -> None:
    env = EnvConfig(name="all", tasks=("one/twice", "two/twice"))
    with pytest.raises(UnknownTaskError, match="'twice' may be one/twice or two/twice: give the whole name"):
        task_index(env, "twice")


def test_a_run_with_one_environment_has_no_task(make_run: MakeRun) -> None:
    run_dir = make_run(CARTPOLE)
    for use in (load, evaluate):
        with pytest.raises(UnknownTaskError, match=r"task 'CartPole-v1': .* gym/CartPole-v1; omit the task"):
            use(run_dir, task="CartPole-v1")  # type: ignore[operator]  # two functions of different types


def test_an_unknown_task_is_refused_before_anything_is_played(make_tasks: MakeTasks) -> None:
    run_dir = make_tasks(CARTPOLE, ACROBOT)
    for use in (load, evaluate):
        with pytest.raises(UnknownTaskError, match=f"no task 'Pong'; choose one of {CARTPOLE}, {ACROBOT}"):
            use(run_dir, task="Pong")  # type: ignore[operator]  # as above


@pytest.mark.parametrize("told", [True, False])
def test_the_spec_has_the_entry_of_the_task_where_the_network_was_given_it(told: bool, make_tasks: MakeTasks) -> None:
    snapshot = read_snapshot(make_tasks(CARTPOLE, ACROBOT, model=replace(TOLD, observe_task=told)))
    spec = spec_of([snapshot], replace(snapshot.env, max_episode_steps=3))
    assert {name: item.shape for name, item in spec.observation.items()} == (
        {"obs": (6,), "task_of_run": (2,)} if told else {"obs": (6,)}
    )
    assert spec.max_episode_steps == 3
    assert len(spec.tasks) == 2
    group = make_group(snapshot.env.of_task(1), 2, [0, 1])
    assert isinstance(shown_as_task(group, spec, 1), TaskGroup)
    group.close()


def test_one_environment_is_shown_as_it_is(make_run: MakeRun) -> None:
    snapshot = read_snapshot(make_run(CARTPOLE))
    spec = spec_of([snapshot], snapshot.env)
    assert spec == probe(snapshot.env)
    group = make_group(snapshot.env, 2, [0, 1])
    assert shown_as_task(group, spec, 0) is group
    group.close()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("task", "numbers", "choices"), [("CartPole-v1", 4, 2), (ACROBOT, 6, 3)])
def test_an_agent_acts_on_the_observations_of_its_task(
    task: str, numbers: int, choices: int, told: bool, make_tasks: MakeTasks
) -> None:
    run_dir = make_tasks(CARTPOLE, ACROBOT, model=replace(TOLD, observe_task=told))
    own = np.random.default_rng(0).uniform(-1, 1, (200, numbers)).astype(np.float32)
    shared = {"obs": np.zeros((200, 6), np.float32)}
    shared["obs"][:, :numbers] = own
    if told:
        shared["task_of_run"] = np.tile(np.eye(2, dtype=np.float32)[int(choices == 3)], (200, 1))
    expected = probabilities_of(run_dir, shared)[:, :choices].argmax(axis=1)
    agent = load(run_dir, task=task)
    found = agent.act(own, deterministic=True)
    assert found.tolist() == expected.tolist()
    assert set(expected.tolist()) == set(range(choices)), "the seed of this test should give all of them"
    assert [agent.act(row, deterministic=True) for row in own[:20]] == expected[:20].tolist()
    sampled = agent.act(own)
    assert set(sampled.tolist()) == set(range(choices))


def test_agents_of_two_tasks_differ_for_the_same_observation(make_tasks: MakeTasks) -> None:
    run_dir = make_tasks(CARTPOLE, "gym/CartPole-v0")
    batch = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    first, second = (load(run_dir, task=task).act(batch, deterministic=True) for task in ("CartPole-v1", "CartPole-v0"))
    assert first.tolist() != second.tolist()


def test_observations_of_another_task_are_refused(make_tasks: MakeTasks) -> None:
    agent = load(make_tasks(CARTPOLE, ACROBOT), task="CartPole-v1")
    with pytest.raises(AgentError, match=r"is neither one observation|does not fit the environment"):
        agent.act(np.zeros(6, np.float32))


def test_an_agent_without_a_task_takes_the_observations_that_all_tasks_share(make_tasks: MakeTasks) -> None:
    run_dir = make_tasks(CARTPOLE, ACROBOT)
    shared, own = load(run_dir), load(run_dir, task=CARTPOLE)
    batch = np.random.default_rng(0).uniform(-1, 1, (50, 4)).astype(np.float32)
    padded = np.pad(batch, ((0, 0), (0, 2)))
    mask = np.tile([True, True, False], (50, 1))
    observation = {"obs": padded, rollmill.specs.TASK: np.zeros(50, np.int64)}
    found = shared.act(observation, deterministic=True, action_mask=mask)
    assert found.tolist() == own.act(batch, deterministic=True).tolist()
    with pytest.raises(AgentError, match="no action mask was given"):
        shared.act(observation)
    with pytest.raises(AgentError, match="'task_of_run'"):
        shared.act({"obs": padded}, action_mask=mask)


def test_choices_have_the_start_of_the_task(make_tasks: MakeTasks) -> None:
    agent = load(make_tasks("own/counted", "own/masked"), task="counted")
    assert isinstance(agent, Agent)
    batch = {"where": np.array([1, 2, 3] * 20), "speed": np.random.default_rng(0).uniform(-1, 1, (60, 2)).astype("f")}
    found = agent.act(batch)
    assert found.shape == (60,)
    assert set(found.tolist()) == {10, 11, 12, 13}
    single = agent.act({"where": np.int64(2), "speed": batch["speed"][1]})
    assert Counted.action_space.contains(single)


def test_the_mask_of_a_task_is_needed_and_obeyed(make_tasks: MakeTasks) -> None:
    run_dir = make_tasks("own/counted", "own/masked", CARTPOLE)
    agent = load(run_dir, task="masked")
    rows = 30
    random = np.random.default_rng(0)
    masks = np.concatenate([np.eye(3)[random.integers(0, 3, rows)], np.eye(2)[random.integers(0, 2, rows)]], axis=1)
    batch = random.uniform(-1, 1, (rows, 5)).astype(np.float32)
    found = agent.act(batch, action_mask=masks)
    assert found.shape == (rows, 2)
    np.testing.assert_array_equal(found[:, 0], masks[:, :3].argmax(axis=1))
    np.testing.assert_array_equal(found[:, 1], masks[:, 3:].argmax(axis=1))
    for row in range(5):
        single = agent.act(batch[row], action_mask=(masks[row, :3], masks[row, 3:]))
        assert Masked.action_space.contains(single)
        assert single.tolist() == found[row].tolist()
    with pytest.raises(AgentError, match="no action mask was given"):
        agent.act(batch)
    with pytest.raises(AgentError, match=r"the action mask has 6 entries a row; 5 are needed"):
        agent.act(batch, action_mask=np.ones((rows, 6)))
    # The other tasks have no masks.
    assert load(run_dir, task="CartPole-v1").act(np.zeros((4, 4), np.float32)).shape == (4,)


def test_real_actions_have_the_bounds_and_the_shape_of_the_task(make_tasks: MakeTasks) -> None:
    run_dir = make_tasks(PENDULUM, "gym/MountainCarContinuous-v0", CARTPOLE)
    for task, size, most in ((PENDULUM, 3, 2.0), ("MountainCarContinuous-v0", 2, 1.0)):
        agent = load(run_dir, task=task)
        found = agent.act(np.random.default_rng(0).uniform(-1, 1, (300, size)).astype(np.float32))
        assert found.shape == (300, 1)
        assert np.abs(found).max() <= most
        assert np.abs(found).max() > 0.9 * most
        assert agent.act(np.zeros(size, np.float32)).shape == (1,)
    assert load(run_dir, task=CARTPOLE).act(np.zeros(4, np.float32)) in (0, 1)


def test_an_action_has_no_more_parts_than_the_task(make_tasks: MakeTasks) -> None:
    run_dir = make_tasks("own/wide", "own/masked", "own/counted", PENDULUM)
    allowed = np.ones((4, 5))
    assert load(run_dir, task="masked").act(np.zeros((4, 5), np.float32), action_mask=allowed).shape == (4, 2)
    assert load(run_dir, task="masked").act(np.zeros(5, np.float32), action_mask=allowed[0]).shape == (2,)
    assert load(run_dir, task="Pendulum-v1").act(np.zeros((4, 3), np.float32)).shape == (4, 1)
    assert load(run_dir, task="Pendulum-v1").act(np.zeros(3, np.float32)).shape == (1,)
    own = {"where": np.array([1, 2, 3, 1]), "speed": np.zeros((4, 2), np.float32)}
    assert load(run_dir, task="counted").act(own).shape == (4,)
    wide = load(run_dir, task="wide")
    assert [part.shape for part in wide.act(own)] == [(4, 3), (4, 3)]
    assert Wide.action_space.contains(wide.act({name: array[0] for name, array in own.items()}))
    assert evaluate(run_dir, episodes=2, num_envs=2, task="wide").returns == (3.0, 3.0)


def test_tasks_without_choices_need_no_mask(make_tasks: MakeTasks) -> None:
    run_dir = make_tasks(PENDULUM, "gym/MountainCarContinuous-v0")
    own = np.random.default_rng(0).uniform(-1, 1, (20, 2)).astype(np.float32)
    found = load(run_dir, task="MountainCarContinuous-v0").act(own, deterministic=True)
    shared = {"obs": np.pad(own, ((0, 0), (0, 1))), rollmill.specs.TASK: np.ones(20, np.int64)}
    np.testing.assert_allclose(found, np.clip(load(run_dir).act(shared, deterministic=True), -1, 1))


def test_a_recurrent_agent_of_a_task_remembers(make_tasks: MakeTasks) -> None:
    agent = load(make_tasks(CARTPOLE, ACROBOT, model=GRU), task=ACROBOT)
    first, second = np.random.default_rng(0).uniform(-1, 1, (2, 6)).astype(np.float32)
    agent.act(second)
    assert agent._state is not None
    fresh = agent._state.clone()
    agent.act(second)
    assert not torch.allclose(agent._state, fresh)
    agent.reset()
    agent.act(first)
    agent.reset()
    agent.act(second)
    torch.testing.assert_close(agent._state, fresh)


@pytest.mark.parametrize(
    "model", [TOLD, replace(TOLD, observe_task=False), replace(TOLD, normalise_returns="popart"), GRU]
)
def test_the_returns_of_a_task_are_those_of_playing_it_by_hand(model: ModelConfig, make_tasks: MakeTasks) -> None:
    run_dir = make_tasks(CARTPOLE, ACROBOT, model=model, max_episode_steps=60)
    result = evaluate(run_dir, episodes=3, num_envs=1, seed=1, deterministic=True, task="CartPole-v1")
    agent = load(run_dir, task=CARTPOLE)
    env = gym.make("CartPole-v1", max_episode_steps=60)
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
    assert (result.env, result.tasks) == (CARTPOLE, {})


def test_all_tasks_are_played_as_each_alone(make_tasks: MakeTasks) -> None:
    names = (CARTPOLE, "own/counted", PENDULUM, "own/masked")
    run_dir = make_tasks(*names, max_episode_steps=20)
    together = evaluate(run_dir, episodes=4, num_envs=2, seed=3)
    alone = [evaluate(run_dir, episodes=4, num_envs=2, seed=3, task=name) for name in names]
    assert [result.env for result in alone] == list(names)
    assert together.env == ",".join(names)
    assert together.returns == tuple(value for result in alone for value in result.returns)
    assert together.lengths == tuple(length for result in alone for length in result.lengths)
    assert together.mean == pytest.approx(np.mean(together.returns))
    assert together.interval[0] <= together.mean <= together.interval[1]
    assert list(together.tasks) == list(names)
    for name, result in zip(names, alone, strict=True):
        assert together.tasks[name] == (result.mean, *result.interval)
    # Two tasks always have the same return: nothing of their difference is chance.
    reach = [np.hypot(*(r.mean - r.interval[0] for r in (alone[0], alone[2]))) / 4]
    reach += [np.hypot(*(r.interval[1] - r.mean for r in (alone[0], alone[2]))) / 4]
    assert together.interval == pytest.approx((together.mean - reach[0], together.mean + reach[1]))
    assert together.tasks["own/counted"] == (3.0, 3.0, 3.0)
    assert together.tasks["own/masked"] == (7.0, 7.0, 7.0)
    assert (together.agent_steps, together.seed) == (9, 3)
    # Frames of a task have the number that it skips.
    assert alone[1].frames == 5 * sum(alone[1].lengths)
    assert together.frames == sum(result.frames for result in alone)
    assert alone[2].frames == sum(alone[2].lengths) == 80
    data = json.loads(json.dumps(together.to_dict(), allow_nan=False))
    assert data["tasks"]["own/counted"]["mean_return"] == 3.0
    assert "own/counted" in together.describe()


def result_of(tasks: dict[str, float], env: str = "suite/some", mean: float = 0.0) -> EvaluationResult:
    return EvaluationResult(
        env=env,
        checkpoint="x",
        agent_steps=1,
        returns=(mean,),
        lengths=(1,),
        mean=mean,
        interval=(mean, mean),
        frames=1,
        seconds=1.0,
        deterministic=True,
        seed=0,
        tasks={name: (value, value, value) for name, value in tasks.items()},
    )


def test_scores_are_in_units_of_a_human_s() -> None:
    human = {name: SCORES[name].human for name in ("atari/pong", "atari/boxing", "atari/qbert")}
    found = result_of({**human, "atari/boxing": SCORES["atari/boxing"].random}).scores
    assert found == pytest.approx(
        {"atari/pong": 1.0, "atari/qbert": 1.0, "atari/boxing": 0.0, "mean": 2 / 3, "median": 1.0, "mean_capped": 2 / 3}
    )
    better = human["atari/pong"] + 2 * (human["atari/pong"] - SCORES["atari/pong"].random)
    # Without a score of each task there is none of all.
    assert result_of({**human, "gym/CartPole-v1": 500.0}).scores == pytest.approx(dict.fromkeys(human, 1.0))
    found = result_of({**human, "atari/pong": better}).scores
    assert (found["mean"], found["median"], found["mean_capped"]) == pytest.approx((5 / 3, 1.0, 1.0))


def test_scores_of_few_tasks() -> None:
    assert result_of({"gym/CartPole-v1": 500.0}).scores == {}
    assert result_of({}, "gym/CartPole-v1").scores == {}
    # One has no mean beside itself.
    assert result_of({}, "atari/pong", -3.0).scores == {"atari/pong": human_normalised("atari/pong", -3.0)}
    assert result_of({"atari/pong": -3.0, "gym/A": 1.0}).scores == {"atari/pong": human_normalised("atari/pong", -3.0)}


def test_the_spaces_of_tasks_can_be_read_from_new_environments(make_tasks: MakeTasks) -> None:
    # As the message about a damaged file advises.
    run_dir = make_tasks(CARTPOLE, ACROBOT)
    batch = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)
    expected = load(run_dir, task=CARTPOLE).act(batch, deterministic=True)
    (run_dir / SPACES_FILE).unlink()
    assert load(run_dir, task=CARTPOLE).act(batch, deterministic=True).tolist() == expected.tolist()


@pytest.mark.slow
def test_the_tasks_of_a_trained_run(tmp_path: Path) -> None:
    names = ("gym/CartPole-v1", "gym/Acrobot-v1")
    settings: dict[str, Any] = {
        "num_envs": 4,
        "rollout_length": 8,
        "learner.batch_size": 64,
        "learner.minibatches": 1,
        "rollout.num_workers": 1,
        "env.max_episode_steps": 30,
    }
    run = rollmill.train(",".join(names), run_dir=tmp_path / "run", total_steps=256, quiet=True, **settings)
    result = evaluate(run.dir, episodes=3, num_envs=3)
    assert list(result.tasks) == list(names)
    assert len(result.returns) == 6
    assert all(value == -30.0 for value in result.returns[3:]), "Acrobot does not swing up within 30 steps"
    for name in names:
        agent = load(run.dir, task=name.partition("/")[2])
        env = gym.make(name.partition("/")[2])
        observation, _ = env.reset(seed=0)
        for _ in range(5):
            action = agent.act(observation)
            assert env.action_space.contains(action)
            observation, *_ = env.step(action)
        env.close()
