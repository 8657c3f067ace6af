"""VizdoomEnv with the real engine: frames, buttons, time limits, and arguments that are refused."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

from rollmill.envs.config import EnvConfig, VizdoomOptions
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.factory import make_env, probe

vizdoom_env = pytest.importorskip("rollmill.envs.vizdoom_env")
VizdoomEnv = vizdoom_env.VizdoomEnv


@pytest.fixture
def own_scenario(tmp_path):
    def write(buttons):
        shutil.copy(os.path.join(vizdoom_env.vizdoom.scenarios_path, "basic.wad"), tmp_path)
        file = tmp_path / "mine.cfg"
        file.write_text(f"doom_scenario_path = basic.wad\ndoom_map = map01\navailable_buttons = {{ {buttons} }}\n")
        return str(file)

    return write


def test_spaces_and_heads_follow_the_arguments():
    env = VizdoomEnv("basic.cfg", width=40, height=30, measurements=True)
    assert env.observation_space == spaces.Dict(
        obs=spaces.Box(0, 255, (30, 40, 3), np.uint8), measurements=spaces.Box(-np.inf, np.inf, (1,), np.float32)
    )
    # Left, right and attack, or nothing.
    assert env.action_space == spaces.Discrete(4)
    assert env.button_heads == [[{}, {0: 1.0}, {1: 1.0}, {2: 1.0}]]
    env.close()
    heads = VizdoomEnv("basic.cfg", actions="heads")
    assert heads.action_space == spaces.MultiDiscrete([3, 2])
    assert heads.button_heads == [[{}, {0: 1.0}, {1: 1.0}], [{}, {2: 1.0}]]
    assert heads.observation_space == spaces.Box(0, 255, (72, 128, 3), np.uint8)
    heads.close()


def test_flat_and_combined_buttons():
    corridor = make_env(EnvConfig(name="vizdoom/deadly_corridor"))
    assert list(corridor.action_space.nvec) == [3, 3, 3, 2]
    # The scenario's order: left, right, attack, forward, backward, turn left, turn right.
    assert corridor._buttons([2, 1, 0, 1]) == [0, 0, 1, 1, 0, 0, 1]
    flat = make_env(EnvConfig(name="vizdoom/deadly_corridor", kwargs={"actions": "flat"}))
    assert flat.action_space.n == 8
    deathmatch = make_env(EnvConfig(name="vizdoom/deathmatch_monsters"))
    turns = [next(iter(choice.values())) for choice in deathmatch.button_heads[3]]
    np.testing.assert_allclose(turns, np.linspace(-10, 10, 11))
    for env in (corridor, flat, deathmatch):
        env.close()


@pytest.mark.parametrize(("name", "steps"), [("basic", 35 / 4), ("duel_bots", 35 / 2), ("duel", 35 / 2)])
def test_it_declares_the_steps_of_a_second(name, steps):
    env = make_env(EnvConfig(name=f"vizdoom/{name}"))
    assert env.metadata["render_fps"] == steps
    env.close()
    env = make_env(EnvConfig(name=f"vizdoom/{name}", frameskip=1))
    assert env.metadata["render_fps"] == 35
    env.close()


def test_frames_are_scaled_by_nearest_neighbour():
    env = VizdoomEnv("basic.cfg", render_mode="rgb_array")
    observation, _ = env.reset(seed=1)
    picture = env.render()
    assert picture.shape == (120, 160, 3)
    rows, columns = np.arange(72) * 120 // 72, np.arange(128) * 160 // 128
    np.testing.assert_array_equal(observation, picture[rows][:, columns])
    env.close()
    env.close()


def test_an_episode_ends_by_the_scenarios_limit_with_its_true_last_frame(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = VizdoomEnv("basic.cfg", measurements=True, settings={"episode_timeout": 37})
    first, info = env.reset(seed=3)
    assert info == {}
    assert first["measurements"].tolist() == [0.5]  # Fifty rounds.
    # It begins at tic 14, and four tics a step leave three for the sixth.
    for ends in [False] * 5 + [True]:
        shown, reward, terminated, truncated, info = env.step(3)
        assert (terminated, truncated, info) == (False, ends, {})
    assert shown["measurements"][0] < 0.5  # It has shot.
    assert shown["obs"].std() > 10
    assert (shown["obs"] != first["obs"]).any()
    assert reward < 0
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(again["obs"], first["obs"])
    env.close()
    assert os.listdir(tmp_path) == []


def test_metrics_come_with_the_step_after_which_a_time_limit_ends_the_episode():
    env = make_env(EnvConfig(name="vizdoom/deathmatch_bots", max_episode_steps=4))
    for _ in range(2):
        env.reset(seed=1)
        infos = [env.step(env.action_space.sample())[4] for _ in range(4)]
        assert ["metrics" in info for info in infos] == [False, False, False, True]
    env.close()


def test_what_happens_in_the_tics_before_a_death_is_counted():
    env = make_env(EnvConfig(name="vizdoom/battle", vizdoom=VizdoomOptions(measurements=True)))
    env.action_space.seed(0)
    observation, _ = env.reset(seed=3)
    is_dead, kills, info = False, 0.0, {}
    while not is_dead:
        observation, reward, is_dead, _, info = env.step(env.action_space.sample())
        kills += reward
    # Health is the third measurement; in the last state that the engine gives, the player lives.
    assert observation["measurements"][2] == 0
    assert info["metrics"]["kills"] == kills
    assert not any(info["reward_terms"].values())
    env.close()


def test_a_scenario_without_variables_shows_health_and_ammunition():
    env = VizdoomEnv("my_way_home.cfg", measurements=True)
    assert env.observation_space["measurements"].shape == (2,)
    shown, _ = env.reset(seed=0)
    assert shown["measurements"].tolist() == [1.0, 0.0]  # Unarmed.
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"actions": "all"}, "actions is 'all': 'flat' or 'heads' is allowed"),
        ({"resolution": "1x1"}, "resolution is '1x1': allowed: 160x120, "),
        ({"settings": {"gravity": 0}}, "the engine has no setting 'gravity': see the set_... methods"),
        (
            {"settings": {"doom_skill": "hard"}},
            r"setting 'doom_skill' is 'hard' \(str\), which its method does not take: set_doom_skill\(.*skill: .*Int\)",
        ),
        ({"config_file": "nowhere.cfg"}, r"there is no scenario file .*/nowhere\.cfg: give a path, or the name of one"),
        ({"config_file": "./basic.cfg"}, r"there is no scenario file \./basic\.cfg"),
    ],
)
def test_bad_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        VizdoomEnv(**{"config_file": "basic.cfg", **kwargs})


MOVE, TURN = "MOVE_LEFT_RIGHT_DELTA", "TURN_LEFT_RIGHT_DELTA"


@pytest.mark.parametrize(
    ("actions", "buttons", "choices", "unused"),
    [
        ("flat", f"{MOVE} {TURN} ATTACK", [2], f"{MOVE}, {TURN}"),
        ("heads", f"{MOVE} {TURN} ATTACK", [11, 2], MOVE),
        ("heads", f"{TURN} TURN_LEFT", [11], ""),
        ("flat", "ATTACK", [2], ""),
    ],
)
def test_buttons_of_ones_own_scenario_that_no_action_uses_are_told(own_scenario, actions, buttons, choices, unused):
    config = EnvConfig(name="vizdoom/basic", kwargs={"config_file": own_scenario(buttons), "actions": actions})
    spec = probe(config)
    assert [head.n for head in spec.action.heads] == choices
    told = f"no action uses the button(s) {unused}, which take a number. "
    assert [text.startswith(told) for text in spec.caveats] == [True] * bool(unused)


@pytest.mark.parametrize(
    ("actions", "buttons"), [("flat", "TURN_LEFT_RIGHT_DELTA LOOK_UP_DOWN_DELTA"), ("heads", "LOOK_UP_DOWN_DELTA")]
)
def test_a_scenario_without_a_choice_is_refused(own_scenario, actions, buttons):
    config = EnvConfig(name="vizdoom/basic", kwargs={"config_file": own_scenario(buttons), "actions": actions})
    with pytest.raises(UnsupportedSpace, match=f"^the buttons .*LOOK_UP_DOWN_DELTA leave nothing .*'{actions}': of"):
        probe(config)


def test_buttons_that_the_packages_scenarios_do_without_are_no_surprise():
    assert probe(EnvConfig(name="vizdoom/deathmatch_monsters")).caveats == ()


def test_opencv_is_needed_but_not_imported_for_the_names_of_scenarios():
    # Its import changes LD_LIBRARY_PATH, after which the fork server of a program would be replaced.
    code = "import sys; from rollmill.envs.vizdoom import scenarios; assert scenarios() and 'cv2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['cv2'] = None; {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "VizDoom scenarios need vizdoom and OpenCV, and one is not installed (No module named 'cv2')" in done.stderr
