"""Replays that begin with recorded episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollmill
from rollmill.envs.space_data import encode_spaces
from rollmill.envs.spaces import action_spec, observation_specs
from rollmill.evaluation.demonstrations import read_dataset
from rollmill.regimes import preloading
from rollmill.regimes.preloading import Stream, read_stream
from rollmill.reporting.metrics import read_metrics
from rollmill.settings.value_checks import ConfigError
from rollmill.specs import EnvSpec

minari = pytest.importorskip("minari")
EpisodeBuffer = pytest.importorskip("minari.data_collector").EpisodeBuffer

pytestmark = pytest.mark.usefixtures("leaves_nothing", "_dataset")

DQN: dict[str, Any] = {
    "algo": "dqn",
    "num_envs": 2,
    "envs_per_group": 2,
    "rollout_length": 8,
    "learner.batch_size": 16,
    "replay.capacity": 2000,
    "replay.min_size": 200,
    "replay.update_interval": 4,
    "rollout.num_workers": 1,
    "model.mlp_sizes": "8",
    "total_steps": 300,
}


@pytest.fixture(scope="module")
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A dataset of twelve episodes of CartPole by random actions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
        env = gymnasium.make("CartPole-v1")
        env.action_space.seed(0)
        episodes = []
        for number in range(12):
            observations, actions, rewards = [env.reset(seed=number)[0]], [], []
            is_over = False
            while not is_over:
                actions.append(env.action_space.sample())
                observation, reward, is_over, _, _ = env.step(actions[-1])
                observations.append(observation)
                rewards.append(float(reward))
            ends = [False] * (len(rewards) - 1) + [True]
            episodes.append(
                EpisodeBuffer(
                    id=number,
                    observations=observations,
                    actions=actions,
                    rewards=rewards,
                    terminations=ends,
                    truncations=[False] * len(ends),
                )
            )
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        patch.setattr("warnings.warn", lambda *arguments, **names: None)  # of what the dataset does not name
        minari.create_dataset_from_buffers("cartpole/test-v0", buffer=episodes, **spaces)
        yield


def test_a_run_learns_from_recorded_steps_from_its_beginning(tmp_path: Path) -> None:
    settings = {**DQN, "replay.preload": "cartpole/test-v0", "replay.min_size": 250}
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, **settings)
    log = (run.dir / "run.log").read_text()
    steps = int(log.split("the replay begins with ")[1].split(" ")[0].replace(",", ""))
    assert 0 < read_dataset("cartpole/test-v0").total_steps - steps < 2 * 8 + 12
    last = read_metrics(run.dir)[-1]
    assert last["agent_steps"] == pytest.approx(300, abs=4), "recorded steps are not agent steps of the run"
    assert last["replay/size"] == pytest.approx(300 + steps, abs=8)
    # Without them, min_size would be missed.
    assert last["sgd_steps"] == pytest.approx((300 - max(0, 250 - steps)) / 4, abs=2)


@pytest.mark.slow
def test_a_resumed_run_keeps_recorded_and_collected_steps(tmp_path: Path) -> None:
    settings = {**DQN, "replay.preload": "cartpole/test-v0", "replay.storage": "file"}
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, **settings)
    before = read_metrics(run.dir)[-1]
    assert before["replay/size"] > before["agent_steps"]
    rollmill.train(run_dir=run.dir, resume=True, quiet=True, total_steps=600)
    log = (run.dir / "run.log").read_text()
    assert "resumes with the replay" in log
    assert "is recreated" not in log
    assert log.count("the replay begins with") == 1
    after = read_metrics(run.dir)[-1]
    collected = after["agent_steps"] - before["agent_steps"]
    assert after["replay/size"] == pytest.approx(before["replay/size"] + collected, abs=8)


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("gym/CartPole-v1", {"replay.preload": "no/such-v0"}, "no dataset 'no/such-v0'.*cartpole/test-v0"),
        ("gym/Acrobot-v1", {"replay.preload": "cartpole/test-v0"}, "its observations are of Box"),
        ("gym/CartPole-v1", {"replay.preload": "cartpole/test-v0", "rollout_length": 1024}, "fewer than the 2048"),
        (
            "gym/CartPole-v1",
            {"replay.preload": "cartpole/test-v0", "population.policies": 2, "num_envs": 4, "total_steps": 2000},
            "not for several policies",
        ),
    ],
)
def test_datasets_that_a_run_cannot_use(tmp_path: Path, env: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollmill.train(env, run_dir=tmp_path, quiet=True, **{**DQN, **settings})


BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTION = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def _read(
    monkeypatch: pytest.MonkeyPatch, action: gymnasium.Space[Any] = ACTION, *, check_finite: bool = True, **changed: Any
) -> Stream:
    """Read a dataset of two episodes of three steps, the second of which has other values than it should."""
    actions: Any = np.ones(3, np.int64) if isinstance(action, gymnasium.spaces.Discrete) else np.zeros((3, 2))
    plain = {
        "observations": np.zeros((4, 2)),
        "actions": actions,
        "rewards": np.zeros(3),
        "terminations": [False, False, True],
        "truncations": [False] * 3,
    }
    # What is read of Minari's dataset, because writing one to the disk for each case would take seconds.
    episodes = [SimpleNamespace(id=7, **plain), SimpleNamespace(id=8, **{**plain, **changed})]
    dataset = SimpleNamespace(observation_space=BOX, action_space=action, iterate_episodes=lambda: iter(episodes))
    monkeypatch.setattr(preloading, "read_dataset", lambda name: dataset)
    spec = EnvSpec(
        name="made", observation=observation_specs(BOX), action=action_spec(action), spaces=encode_spaces(BOX, action)
    )
    config = rollmill.make_config("gym/Pendulum-v1", {"env.check_finite": check_finite}, algo="sac")
    return read_stream("made/test-v0", config, spec)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observations": np.full((4, 2), np.nan)}, "an observation 'obs' of it is NaN or infinite"),
        ({"rewards": [0.0, np.inf, 0.0]}, "a reward of it is NaN or infinite: .*env.check_finite=false"),
        ({"actions": np.full((3, 2), -np.inf)}, "an action of it is NaN or infinite: leave the episode out$"),
    ],
)
def test_episodes_with_numbers_that_are_not_finite_are_named(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"replay.preload=made/test-v0: episode 8 cannot be .*{message}"):
        _read(monkeypatch, **changed)
    if "actions" not in changed:
        assert _read(monkeypatch, check_finite=False, **changed).steps == 8


def test_choices_outside_of_the_action_space_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = gymnasium.spaces.Discrete(2, start=1)
    for action in (0, 3):
        with pytest.raises(ConfigError, match="episode 8 cannot be learned from, because an action is not in"):
            _read(monkeypatch, choice, actions=[1, action, 1])
    assert _read(monkeypatch, choice, actions=[1, 2, 1]).fields["action_discrete"].ravel().tolist()[4:7] == [0, 1, 0]


def test_numbers_outside_of_the_action_space_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _read(monkeypatch, actions=[[10.0, 0.5], [-10.0, 2.0], [1.0, -1.0]])
    stored = stream.fields["action_continuous"][4:7]
    np.testing.assert_allclose(stored, [[1.0, 0.0], [-1.0, 1.0], [0.5, -1.0]], atol=1e-6)
