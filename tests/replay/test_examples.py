"""The examples train, and the naive replay that they are compared with is one."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def module(path):
    spec = spec_from_file_location(path.stem, path)
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_cleanrl_example_trains_on_either_replay(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    example = module(ROOT / "examples" / "replay_in_cleanrl.py")
    naive = module(ROOT / "benchmarks" / "replay_plugged.py").NaiveReplay
    for make_replay in (example.PrioritizedReplay, naive):
        result = example.train(total_steps=1400, make_replay=make_replay)
        assert len(result["returns"]) > 20
        assert all(value >= 8 for value in result["returns"])


def test_the_stable_baselines3_example_trains():
    pytest.importorskip("stable_baselines3")
    example = module(ROOT / "examples" / "replay_in_stable_baselines3.py")
    agent = example.make_agent(
        "CartPole-v1",
        0,
        replay_buffer_class=example.PrioritizedReplayBuffer,
        replay_buffer_kwargs={"n_step": 3, "discount": 0.99},
    )
    agent.learn(1600)
    assert agent.replay_buffer.size() > 1500


def test_the_naive_replay_gives_what_was_added(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    naive = module(ROOT / "benchmarks" / "replay_plugged.py").NaiveReplay
    replay = naive(8, {"obs": ((), "int64"), "reward": ((), "float32")}, discount=0.5)
    for t in range(6):
        arrays = {"obs": np.array([t, -t]), "reward": np.array([t, t]), "next_obs": np.array([t + 1, 99])}
        replay.add(**arrays, terminated=np.array([t == 3, False]), valid=np.array([True, False]))
    batch = replay.sample(64)
    np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)
    np.testing.assert_array_equal(batch["discount"], np.where(batch["obs"] == 3, 0.0, 0.5))
    assert len(replay) == 6
    assert set(batch.weights) == {1.0}
