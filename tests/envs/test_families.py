"""Short runs of every family with its real simulator."""

from __future__ import annotations

import os

import numpy as np
import pytest

from rollmill.envs.atari import ShrunkScreens
from rollmill.envs.config import AtariOptions, EnvConfig, VizdoomOptions
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.factory import make_env, make_group, probe, resolve_maker
from rollmill.envs.vizdoom import scenarios

ROWS = 3


def play(config, harness, steps, rows=ROWS, seeds=None, box="clip"):
    spec = probe(config)
    return spec, replay(spec, config, harness, steps, list(range(rows)) if seeds is None else seeds, box)


def replay(spec, config, harness, steps, seeds, box="clip"):
    group = make_group(config, len(seeds), seeds, box=box)
    try:
        return harness.run(group, spec.observation, spec.action, steps)
    finally:
        group.close()


CONFIGS = {
    "atari": EnvConfig(name="atari/breakout"),
    "vizdoom": EnvConfig(name="vizdoom/basic"),
    "gym": EnvConfig(name="gym/CartPole-v1"),
    "gym vector": EnvConfig(name="gym/CartPole-v1", vector=True),
    "mujoco": EnvConfig(name="mujoco/HalfCheetah-v5"),
    "minigrid": EnvConfig(name="minigrid/MiniGrid-MemoryS7-v0"),
    "envpool": EnvConfig(name="envpool/CartPole-v1"),
    "envpool mujoco": EnvConfig(name="envpool/HalfCheetah-v4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_seeds_decide_and_differ(family, harness):
    config = CONFIGS[family]
    spec, data = play(config, harness, steps=8, seeds=[11, 12])
    again = replay(spec, config, harness, 8, [11, 12])
    other = replay(spec, config, harness, 8, [21, 22])
    for name in spec.observation:
        np.testing.assert_array_equal(data.observation[name], again.observation[name])
    np.testing.assert_array_equal(data.reward, again.reward)
    assert data.valid[0].all()
    assert data.reset[0].all()
    histories = [
        b"".join(run.observation[name][:, row].tobytes() for name in spec.observation)
        for run in (data, other)
        for row in range(2)
    ]
    # A small maze has few layouts, so some seeds agree; in other families all environments differ.
    assert len(set(histories)) >= (2 if family == "minigrid" else len(histories))


def test_atari_frames_lives_and_raw_rewards(harness):
    spec = probe(EnvConfig(name="atari/breakout"))
    assert spec.observation["obs"].shape == (4, 84, 84)
    assert spec.observation["obs"].is_image
    assert (spec.frameskip, spec.max_episode_steps, spec.native_vector) == (4, 27_000, True)
    assert spec.action.categorical_sizes == (4,)
    config = EnvConfig(name="atari/breakout", max_episode_steps=70)
    data = replay(spec, config, harness, 75, [0, 1])
    # The newest frame is the last one: each stack continues the previous one.
    x = data.observation["obs"]
    going_on = ~data.reset[1:]
    np.testing.assert_array_equal(x[1:, :, :3][going_on], x[:-1, :, 1:][going_on])
    # A lost life terminates without a masked row; the game ends at its time limit.
    games = ~np.isnan(data.episode_return)
    np.testing.assert_array_equal(np.argwhere(games), [[69, 0], [69, 1]])
    np.testing.assert_array_equal(data.truncated, games)
    assert data.terminated.any(axis=0).all()
    lost = data.terminated[:-1]
    assert data.valid[1:][lost].all()
    assert not data.reset[1:-1][lost].any()
    assert not data.valid[70].any()
    np.testing.assert_array_equal(data.episode_return[69], data.reward[:70].sum(axis=0))
    np.testing.assert_array_equal(data.episode_length[69], [70, 70])


def test_atari_without_life_loss_terminates_only_games(harness):
    config = EnvConfig(name="atari/breakout", max_episode_steps=70, atari=AtariOptions(life_loss=False))
    _, data = play(config, harness, steps=70, rows=1)
    assert not data.terminated.any()
    assert data.truncated[69, 0]


def test_atari_options(harness):
    options = AtariOptions(screen_size=42, frame_stack=2, grayscale=False, full_action_space=True)
    config = EnvConfig(name="atari/alien", frameskip=2, max_episode_steps=60, atari=options)
    spec, data = play(config, harness, steps=60, rows=2)
    assert spec.observation["obs"].shape == (2, 42, 42, 3)
    assert spec.action.categorical_sizes == (18,)
    assert (spec.frameskip, spec.max_episode_steps) == (2, 60)
    assert data.truncated[59].all()
    # A dot earns 10: rewards are raw.
    assert data.reward.max() >= 10


@pytest.mark.slow
@pytest.mark.parametrize("game", ["space_invaders", "journey_escape"])
def test_atari_screens_equal_those_of_ale(game):
    """Compares our screens over resets, lost lives and truncations; journey_escape has 230 lines."""
    ale = pytest.importorskip("ale_py.vector_env")
    config = EnvConfig(name=f"atari/{game}", max_episode_steps=60)
    ours = resolve_maker(config).vector(4, 1, range(4))
    theirs = ale.AtariVectorEnv(game, 4, num_threads=1, max_num_frames_per_episode=240, reward_clipping=False)
    assert isinstance(ours, ShrunkScreens)
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.observation_space == theirs.observation_space
    random = np.random.default_rng(0)
    seeds = np.arange(4)
    shown, expected = ours.reset(seed=seeds)[0], theirs.reset(seed=seeds)[0]
    ends = 0
    for step in range(200):
        apart = np.abs(shown.astype(int) - expected)
        assert apart.max() <= 1, step
        assert np.count_nonzero(apart) <= 0.01 * apart.size, step
        if step == 150:
            shown, expected = ours.reset(seed=seeds)[0], theirs.reset(seed=seeds)[0]
            continue
        actions = random.integers(0, ours.single_action_space.n, 4)
        shown, *outcome, _ = ours.step(actions)
        expected, *outcome_expected, _ = theirs.step(actions)
        for got, wanted in zip(outcome, outcome_expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        ends += int((outcome[1] | outcome[2]).sum())
    assert ends >= 8
    ours.close()


@pytest.mark.parametrize(
    ("options", "kwargs"),
    [
        (AtariOptions(grayscale=False), {}),
        (AtariOptions(screen_size=200), {}),
        (AtariOptions(), {"autoreset_mode": "SameStep"}),
        (AtariOptions(), {"life_loss_info": True}),
        (AtariOptions(), {"img_width": 170}),
    ],
)
def test_atari_screens_that_ale_shrinks_itself(options, kwargs):
    config = EnvConfig(name="atari/pong", atari=options, kwargs=kwargs)
    env = resolve_maker(config).vector(2, 1, range(2))
    assert not isinstance(env, ShrunkScreens)
    assert env.reset(seed=np.arange(2))[0].shape == env.observation_space.shape
    env.close()


@pytest.mark.parametrize("name", ["frameskip", "episodic_life", "reward_clipping"])
def test_atari_arguments_that_falsify_counts_raise(name):
    with pytest.raises(
        UnknownEnvironment, match=rf"env.kwargs.{name}=2: .*counted wrongly; use env.frameskip.*env.atari"
    ):
        probe(EnvConfig(name="atari/pong", kwargs={name: 2}))


def test_vizdoom_presentation(harness, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = EnvConfig(name="vizdoom/defend_the_center", vizdoom=VizdoomOptions(measurements=True))
    spec, data = play(config, harness, steps=8, rows=2)
    assert {k: v.shape for k, v in spec.observation.items()} == {"obs": (72, 128, 3), "measurements": (2,)}
    assert spec.action.categorical_sizes == (3, 2)
    assert spec.frameskip == 4
    np.testing.assert_allclose(data.observation["measurements"][0], [[0.26, 1.0]] * 2)
    assert data.observation["obs"].std() > 10
    assert os.listdir(tmp_path) == []


def test_vizdoom_truncates_with_the_true_final_frame(harness):
    config = EnvConfig(name="vizdoom/take_cover", kwargs={"settings": {"episode_timeout": 23}})
    _, data = play(config, harness, steps=13, rows=1)
    # It starts at tic 1; 4 tics for each step, so that the sixth step has 2 left to tic 23. A tic earns 1.
    assert list(np.flatnonzero(data.truncated[:, 0])) == [5, 12]
    assert not data.terminated.any()
    assert data.episode_return[5, 0] == pytest.approx(22)
    final, before = data.observation["obs"][6, 0], data.observation["obs"][5, 0]
    assert final.std() > 10
    assert (final != before).any()


def test_vizdoom_ships_these_scenarios():
    shipped = scenarios()
    assert {"basic", "defend_the_center", "deadly_corridor", "my_way_home", "health_gathering", "deathmatch"} <= set(
        shipped
    )
    assert not {"cig", "multi", "multi_duel", "doom"} & set(shipped)


def test_mujoco_is_stored_in_single_precision_and_truncated(harness):
    config = EnvConfig(name="mujoco/HalfCheetah-v5", max_episode_steps=6)
    spec, data = play(config, harness, steps=8, box="tanh")
    assert spec.observation["obs"].dtype == "float32"
    assert spec.max_episode_steps == 6
    np.testing.assert_array_equal(np.argwhere(data.truncated), [[5, row] for row in range(ROWS)])
    assert (data.episode_length[5] == 6).all()


def test_native_and_python_cartpole_have_the_same_physics(harness):
    runs = [play(EnvConfig(name=n), harness, 40)[1] for n in ("gym/CartPole-v1", "envpool/CartPole-v1")]
    for data in runs:
        x, force = data.observation["obs"], np.where(data.discrete[..., 0] == 1, 10.0, -10.0)
        # Barto, Sutton and Anderson (1983), Euler steps of 0.02 s: masses 1 and 0.1, half length 0.5.
        position, velocity, angle, spin = np.moveaxis(x[:-1].astype(np.float64), -1, 0)
        push = (force + 0.05 * spin**2 * np.sin(angle)) / 1.1
        turn = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        slide = push - 0.05 * turn * np.cos(angle) / 1.1
        after = np.stack(
            [position + 0.02 * velocity, velocity + 0.02 * slide, angle + 0.02 * spin, spin + 0.02 * turn], axis=-1
        )
        np.testing.assert_allclose(x[1:][data.valid], after[data.valid], atol=1e-5)


def test_make_env_keeps_the_time_limit():
    env = make_env(EnvConfig(name="gym/CartPole-v1", max_episode_steps=3))
    env.reset(seed=0)
    assert [env.step(k % 2)[3] for k in range(3)] == [False, False, True]
