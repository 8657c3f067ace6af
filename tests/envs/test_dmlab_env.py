"""DmlabEnv with a stand-in for DeepMind Lab, which no package index has: calls of the engine, and their results."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.dmlab_cache import InvalidLevelCache
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.words import hashed_words

WATERMAZE = "contributed/dmlab30/rooms_watermaze"
LANGUAGE = "contributed/dmlab30/language_select_located_object"
EXPLORE = "contributed/dmlab30/explore_goal_locations_small"


@pytest.fixture
def dmlab_env(lab):
    from rollmill.envs import dmlab_env

    return dmlab_env


@pytest.fixture
def make(dmlab_env):
    envs = []

    def make(level=WATERMAZE, **arguments):
        envs.append(dmlab_env.DmlabEnv(level, **arguments))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def play(env, actions):
    return [env.step(action) for action in actions]


def test_spaces_and_the_engines_arguments(make, lab):
    env = make()
    assert env.metadata["render_fps"] == 15
    assert env.observation_space == spaces.Box(0, 255, (72, 96, 3), np.uint8)
    assert env.action_space == spaces.Discrete(9)
    engine = lab.made[-1]
    assert (engine.level, engine.wanted, engine.renderer) == (WATERMAZE, ["RGB_INTERLEAVED"], "software")
    assert engine.config == {"width": "96", "height": "72"}
    assert engine.cache is None
    wide = make(
        LANGUAGE,
        width=32,
        height=24,
        renderer="hardware",
        extended_actions=True,
        instructions=True,
        dataset_path="/pictures",
        settings={"allowHoldOutLevels": True, "mixerSeed": 7},
    )
    assert wide.observation_space == spaces.Dict(
        obs=spaces.Box(0, 255, (24, 32, 3), np.uint8), instructions=spaces.Box(0, 1, (1000,), np.uint8)
    )
    assert wide.action_space == spaces.Discrete(15)
    engine = lab.made[-1]
    assert (engine.wanted, engine.renderer) == (["RGB_INTERLEAVED", "INSTR"], "hardware")
    assert engine.config == {
        "width": "32",
        "height": "24",
        "datasetPath": "/pictures",
        "allowHoldOutLevels": "true",
        "mixerSeed": "7",
    }


# Written out from IMPALA's environments.py and Sample Factory's dmlab_gym.py once more: look left or right, look down
# or up, strafe, move, fire.
IMPALA = ["0 0 0 1 0", "0 0 0 -1 0", "0 0 -1 0 0", "0 0 1 0 0", "-20 0 0 0 0", "20 0 0 0 0", "-20 0 0 1 0"]
IMPALA += ["20 0 0 1 0", "0 0 0 0 1"]
EXTENDED = ["0 0 0 1 0", "0 0 0 -1 0", "0 0 -1 0 0", "0 0 1 0 0", "-10 0 0 0 0", "10 0 0 0 0", "-60 0 0 0 0"]
EXTENDED += ["60 0 0 0 0", "0 10 0 0 0", "0 -10 0 0 0", "-10 0 0 1 0", "10 0 0 1 0", "-60 0 0 1 0", "60 0 0 1 0"]
EXTENDED += ["0 0 0 0 1"]


@pytest.mark.parametrize(("extended", "table"), [(False, IMPALA), (True, EXTENDED)])
def test_every_action_reaches_the_engine_for_as_many_frames_as_told(make, lab, extended, table):
    env = make(extended_actions=extended, frameskip=3, settings={"episodeLengthFrames": 1000})
    env.reset(seed=0)
    play(env, range(env.action_space.n))
    assert lab.made[-1].calls == [((*map(int, row.split()), 0, 0), 3) for row in table]


def test_an_episode_ends_with_the_engine_and_repeats_its_last_frame(make, lab):
    env = make(settings={"episodeLengthFrames": 10})
    first, info = env.reset(seed=3)
    assert info == {}
    steps = play(env, [0, 0, 0])  # Forward pays 1 a frame: 4, 4, and the last 2.
    assert [(reward, terminated, truncated) for _, reward, terminated, truncated, _ in steps] == [
        (4.0, False, False),
        (4.0, False, False),
        (2.0, True, False),
    ]
    assert [info["true_objective"] for *_, info in steps] == [4.0, 8.0, 10.0]
    frames = [first, *(observation for observation, *_ in steps)]
    assert all(env.observation_space.contains(frame) for frame in frames)
    assert (frames[0] != frames[1]).any()
    assert (frames[1] != frames[2]).any()
    np.testing.assert_array_equal(frames[3], frames[2])
    np.testing.assert_array_equal(env.render(), frames[3])
    assert "metrics" not in steps[-1][-1], "there is no cache to report on"
    env.reset()
    assert env.step(1)[4]["true_objective"] == -4.0
    env.close()
    env.close()
    assert lab.made[-1].is_closed


def test_seeds_decide_about_all_episodes(make, lab):
    one, same, other = (make() for _ in range(3))
    frames = []
    for env, seed in ((one, 5), (same, 5), (other, 6)):
        frames.append([env.reset(seed=seed)[0], env.reset()[0]])
    seeds = [engine.seeds for engine in lab.made]
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 4
    assert all(0 <= seed < 2**31 for row in seeds for seed in row)
    np.testing.assert_array_equal(frames[0], frames[1])
    few = make(level_seeds=3)
    for _ in range(50):
        few.reset()
    assert set(lab.made[-1].seeds) == {0, 1, 2}


def test_rewards_are_raw_and_the_term_clips_them(make, dmlab_env):
    raw, clips = make(), make(reward_clip=True)
    for env in (raw, clips):
        env.reset(seed=0)
    # Fire pays 40, forward 4, and backward costs 4 in as many frames.
    for action, given in ((8, 40.0), (0, 4.0), (1, -4.0), (4, 0.0)):
        expected = (0.3 if given < 0 else 1.0) * math.tanh(given / 5) * 5
        (_, reward, *_, info), (_, clipped, *_, clipped_info) = raw.step(action), clips.step(action)
        assert reward == given
        assert reward + info["reward_terms"]["clip"] == pytest.approx(expected)
        assert clipped == pytest.approx(expected)
        assert clipped_info["reward_terms"] == {"clip": 0.0}
        assert clipped_info["true_objective"] == info["true_objective"]
    assert [round(dmlab_env.clipped(reward), 6) for reward in (1000.0, -1000.0, 0.0)] == [5.0, -1.5, 0.0]


def test_instructions_are_hashed_words(make):
    env = make(LANGUAGE, instructions=True)
    first, _ = env.reset(seed=0)
    assert env.observation_space.contains(first)
    words = hashed_words("Pick the red object in the blue room.")
    np.testing.assert_array_equal(first["instructions"], words)
    shown = [observation for observation, *_ in play(env, [0] * 5)]
    np.testing.assert_array_equal(shown[3]["instructions"], words)
    # From frame 20 on the stand-in gives another one.
    np.testing.assert_array_equal(shown[4]["instructions"], hashed_words("pick THE blue object, in the red room"))


def test_maps_come_from_the_cache_once_all_seeds_have_been_generated(make, lab, tmp_path):
    settings = {"episodeLengthFrames": 4}
    env = make(EXPLORE, level_cache=str(tmp_path), level_seeds=2, settings=settings)
    generated = []
    for episode in range(12):
        env.reset(seed=episode)
        info = env.step(0)[4]
        generated.append(info["metrics"]["generated_maps"])
    assert sum(generated) == 2
    assert generated[0] == 1
    assert lab.made[-1].generated == 2
    assert len(os.listdir(tmp_path)) == 2
    again = make(EXPLORE, level_cache=str(tmp_path), level_seeds=2, settings=settings)
    for episode in range(4):
        again.reset(seed=episode)
    assert lab.made[-1].generated == 0
    limited = make(EXPLORE, level_cache=str(tmp_path), last_step=2)
    limited.reset(seed=0)
    assert ["metrics" in limited.step(0)[4] for _ in range(3)] == [False, True, False]
    without = make(EXPLORE, level_seeds=2, settings=settings)
    for episode in range(4):
        without.reset(seed=episode)
    assert lab.made[-1].generated == 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"settings": {"width": 10}}, ValueError, "settings has 'width': use env.dmlab.width"),
        ({"settings": {"datasetPath": "a"}}, ValueError, "settings has 'datasetPath': use env.dmlab.dataset_path"),
        ({"level_cache": "/dev/null"}, InvalidLevelCache, "env.dmlab.level_cache='/dev/null' cannot be used"),
        ({"renderer": "paper"}, RuntimeError, "Failed to set renderer"),
        ({"level": "tests/custom_actions"}, UnsupportedSpace, "dmlab/tests/custom_actions has the controls LOOK_"),
        ({"level": "tests/room", "instructions": True}, ValueError, "Unknown observation 'INSTR'"),
    ],
)
def test_bad_arguments_are_refused(make, arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)
