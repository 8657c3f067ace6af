"""The examples train, and the naive replay that they are compared with is one."""

import sys
from importlib import import_module
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


def test_the_stable_baselines3_example_knows_that_learning_begins_with_a_reset():
    pytest.importorskip("stable_baselines3")
    example = module(ROOT / "examples" / "replay_in_stable_baselines3.py")
    agent = example.make_agent(
        "CartPole-v1",
        0,
        replay_buffer_class=example.PrioritizedReplayBuffer,
        replay_buffer_kwargs={"uniform": True},
    )
    buffer, follows = agent.replay_buffer, {}
    add = buffer.add

    def note(obs, next_obs, *others):
        follows[obs[0].tobytes()] = next_obs[0].copy()
        add(obs, next_obs, *others)

    buffer.add = note
    for _ in range(3):
        agent.learn(205, reset_num_timesteps=False)
    batch = buffer.replay.sample(20_000)
    for obs, next_obs in zip(batch["obs"], batch["next_obs"], strict=True):
        np.testing.assert_array_equal(next_obs, follows[obs.tobytes()])


@pytest.fixture
def rllib_example(monkeypatch):
    pytest.importorskip("ray.rllib")
    monkeypatch.syspath_prepend(ROOT / "examples")
    return import_module("replay_in_rllib")  # by its name: RLlib finds the buffer by that


@pytest.mark.filterwarnings("ignore")  # RLlib's own
def test_the_rllib_example_gives_the_learner_what_episodes_say(rllib_example):
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    discount, n_step, lengths = 0.5, 3, {"terminated": 7, "truncated": 8, "continues": 9}
    buffer = rllib_example.RollmillEpisodeReplayBuffer(100, n_step=n_step, discount=discount, weights="global")
    for begin in range(0, 9, 2):  # two steps of each, in turns
        for number, (name, length) in enumerate(lengths.items()):
            end = min(begin + 2, length)
            if begin < end:
                piece = SingleAgentEpisode(
                    id_=name,
                    observations=[np.array([100.0 * number + t], np.float32) for t in range(begin, end + 1)],
                    actions=[np.int64(t % 2) for t in range(begin, end)],
                    rewards=[float(t) for t in range(begin, end)],
                    terminated=name == "terminated" and end == length,
                    truncated=name == "truncated" and end == length,
                    len_lookback_buffer=0,
                )
                buffer.add([piece.to_numpy()])
    assert len(buffer) == 7 + 8 + (9 - n_step)
    assert list(buffer.streams) == ["continues"]

    (drawn,) = buffer.sample(1000, n_step=n_step, gamma=discount, beta=0.4)
    columns = {name: array.tolist() for name, array in drawn.columns.items()}
    seen = set()
    for i, (obs,) in enumerate(columns["obs"]):
        number, t = divmod(int(obs), 100)
        name = list(lengths)[number]
        k = min(n_step, lengths[name] - t)
        is_terminated = name == "terminated" and t + k == lengths[name]
        assert columns["new_obs"][i] == [100 * number + t + k]
        assert columns["actions"][i] == t % 2
        assert columns["rewards"][i] == sum(discount**j * (t + j) for j in range(k))
        assert columns["terminateds"][i] == is_terminated
        assert is_terminated or columns["n_step"][i] == k
        seen.add((number, t))
    assert len(seen) == len(buffer)

    errors = drawn.columns["obs"][:, 0] + 1.0  # every transition has one
    buffer.update_priorities(errors)
    (drawn,) = buffer.sample(1000, n_step=n_step, gamma=discount, beta=0.4)
    expected = (drawn.columns["obs"][:, 0] + 1.0) ** (0.6 * -0.4)  # the least error is 1
    np.testing.assert_allclose(drawn.columns["weights"], expected, rtol=1e-4)
    with pytest.raises(ValueError, match="the algorithm has n_step=1"):
        buffer.sample(10, n_step=1, gamma=discount, beta=0.4)


@pytest.mark.filterwarnings("ignore")
def test_the_rllib_example_trains(rllib_example):
    import ray

    rllib_example.start_ray()
    try:
        config = rllib_example.make_config("CartPole-v1", seed=0)
        algorithm = config.env_runners(num_envs_per_env_runner=2).build_algo()
        steps = [algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"] for _ in range(2)][-1]
        buffer = algorithm.local_replay_buffer
        assert steps - 2 * 3 <= len(buffer) <= steps
        assert len(buffer.streams) + len(buffer.free_streams) == 2
        assert len(set(buffer.replay.sample(256).weights)) > 100  # errors came back
        algorithm.stop()
    finally:
        ray.shutdown()


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
