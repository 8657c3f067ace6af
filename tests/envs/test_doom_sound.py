"""Sound as an observation: with the real engine where it has its library, and what is said where it has not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("vizdoom")

import rollmill
from rollmill.envs import doom_sound
from rollmill.envs.config import EnvConfig, VizdoomOptions
from rollmill.envs.doom_sound import check_sound, heard, sound_space
from rollmill.envs.errors import MissingExtra
from rollmill.envs.factory import make_env, resolve_maker

SHOOT = 3


@pytest.fixture
def not_yet_checked() -> Iterator[None]:
    """Forget what was found out before, and afterwards what a test made up."""
    check_sound.cache_clear()
    yield
    check_sound.cache_clear()


@pytest.fixture
def library() -> None:
    try:
        check_sound()
    except MissingExtra as error:
        pytest.skip(str(error))


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine without its library: it gives zeros. With it, this changes nothing."""
    for module in ("vizdoom_env", "doom_match"):
        monkeypatch.setattr(f"rollmill.envs.{module}.check_sound", lambda: None)


def made(name: str, **options: Any) -> Any:
    return make_env(EnvConfig(name=f"vizdoom/{name}", vizdoom=VizdoomOptions(sound=True, **options)))


def test_samples_are_turned_into_channels() -> None:
    buffer = np.arange(12, dtype=np.int16).reshape(6, 2)
    assert heard(buffer).tolist() == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    assert heard(buffer).flags.c_contiguous
    assert sound_space(4) == spaces.Box(-32768, 32767, (2, 2520), np.int16)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("measurements", [False, True])
def test_observations_have_it(measurements: bool) -> None:
    env = made("basic", measurements=measurements)
    names = ["measurements"] * measurements
    assert isinstance(env.observation_space, spaces.Dict)
    assert sorted(env.observation_space.spaces) == sorted([*names, "obs", "sound"])
    observation, _ = env.reset(seed=1)
    for _ in range(3):
        assert env.observation_space.contains(observation)
        observation, *_ = env.step(0)
    env.close()
    spec = resolve_maker(EnvConfig(name="vizdoom/basic", vizdoom=VizdoomOptions(sound=True))).env
    assert spec.keywords["sound"]


@pytest.mark.usefixtures("library")
def test_a_shot_is_heard_and_episodes_repeat() -> None:
    env = made("basic")
    episodes, pictures = [], []
    for _ in range(2):
        observation, _ = env.reset(seed=2)  # The first shot misses, so the episode goes on.
        sounds = [observation["sound"]]
        for action in (0, 0, *[SHOOT] * 6):
            observation, *_ = env.step(action)
            sounds.append(observation["sound"])
        episodes.append(np.stack(sounds))
        pictures.append(observation["obs"])
    env.close()
    loudest = np.abs(episodes[0].astype(np.int32)).max((1, 2))
    assert loudest[:3].max() <= 1  # Dither.
    assert loudest[3:].max() > 1000
    # To the last bit, also in the first episode of an engine.
    np.testing.assert_array_equal(episodes[0], episodes[1])
    np.testing.assert_array_equal(pictures[0], pictures[1])


@pytest.mark.usefixtures("library")
def test_sounds_come_from_their_sides() -> None:
    """In ``basic_audio`` a monster makes sounds beside the player, who only walks."""
    env = made("basic_audio", measurements=False)
    louder = set()
    for seed in range(8):
        env.reset(seed=seed)
        for _ in range(40):
            observation, _, terminated, truncated, _ = env.step(1)
            left, right = np.abs(observation["sound"].astype(np.float64)).mean(1)
            if max(left, right) > 100 and abs(left - right) > 0.2 * (left + right):
                louder.add("left" if left > right else "right")
            if terminated or truncated:
                break
    env.close()
    assert louder == {"left", "right"}


@pytest.mark.usefixtures("library")
def test_bots_are_heard() -> None:
    env = made("deathmatch_bots", bots=7, measurements=True)
    loudest = 0
    observation, _ = env.reset(seed=1)
    for _ in range(400):
        assert env.observation_space.contains(observation)
        observation, *_ = env.step(np.zeros(6, np.int64))
        loudest = max(loudest, int(np.abs(observation["sound"].astype(np.int32)).max()))
    assert observation["measurements"][6] == pytest.approx(8 / 5)  # All players are there.
    assert loudest > 1000
    env.close()


@pytest.mark.parametrize("players", [2, 3])
@pytest.mark.usefixtures("library")
def test_every_player_of_a_match_hears(players: int) -> None:
    options = VizdoomOptions(sound=True, players=players)
    match = resolve_maker(EnvConfig(name="vizdoom/deathmatch", vizdoom=options)).env()
    try:
        match.reset(seed=1)
        space = match.observation_space("player_0")
        assert space["sound"] == sound_space(2)
        actions = {agent: np.zeros(6, np.int64) for agent in match.agents}
        heads = match._heads
        attack = match._scenario.buttons.index("ATTACK")
        place = next(number for number, head in enumerate(heads) if head[-1] == {attack: 1.0})
        loudest = dict.fromkeys(match.agents, 0)
        for step in range(60):
            for agent in match.agents:
                actions[agent][place] = step >= 20
            observations, *_ = match.step(actions)
            for agent, observation in observations.items():
                assert space.contains(observation)
                loudest[agent] = max(loudest[agent], int(np.abs(observation["sound"].astype(np.int32)).max()))
        assert min(loudest.values()) > 1000
    finally:
        match.close()


@pytest.mark.usefixtures("silent")
def test_a_match_without_the_library_is_silent_and_goes_on() -> None:
    match = resolve_maker(EnvConfig(name="vizdoom/duel", vizdoom=VizdoomOptions(sound=True, measurements=False))).env()
    try:
        match.reset(seed=1)
        observations, *_ = match.step({agent: np.zeros(7, np.int64) for agent in match.agents})
        assert set(observations["player_0"]) == {"obs", "sound"}
        assert match.observation_space("player_0").contains(observations["player_0"])
    finally:
        match.close()


@pytest.mark.usefixtures("library")
def test_a_network_with_it_trains(tmp_path: Path) -> None:
    small = {"num_envs": 4, "rollout_length": 16, "learner.batch_size": 64, "learner.minibatches": 2}
    run = rollmill.train(
        "vizdoom/basic_audio",
        run_dir=tmp_path / "run",
        total_steps=256,
        quiet=True,
        **{"regime": "lockstep", "env.vizdoom.sound": True, **small},
    )
    assert run.agent_steps >= 256


@pytest.mark.usefixtures("not_yet_checked")
@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import sys; sys.exit(3)", r"engine gives silence: it needs the library OpenAL Soft .*libopenal1"),
        ("import os; os.kill(os.getpid(), 11)", r"engine fails \(exit status -11\)"),
        ("raise ValueError('an assertion')", r"engine fails \(ValueError: an assertion\)"),
    ],
)
def test_what_is_wrong_is_said(program: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doom_sound, "_TRY", program)
    with pytest.raises(MissingExtra, match=problem):
        made("basic")
    with pytest.raises(MissingExtra, match=problem):
        resolve_maker(EnvConfig(name="vizdoom/duel", vizdoom=VizdoomOptions(sound=True))).env()


@pytest.mark.usefixtures("not_yet_checked")
def test_a_try_that_hangs_is_ended_with_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "pid"
    engine = f"import subprocess, pathlib; p = subprocess.Popen(['sleep', '60']); pathlib.Path({str(noted)!r})"
    monkeypatch.setattr(doom_sound, "_TRY", f"{engine}.write_text(str(p.pid)); p.wait()")
    monkeypatch.setattr(doom_sound, "_TRY_WITHIN_S", 2.0)
    began = time.monotonic()
    with pytest.raises(MissingExtra, match=r"engine fails \(it did not end within 2 s\)"):
        check_sound()
    assert time.monotonic() - began < 20
    deadline = time.monotonic() + 5
    stat = Path(f"/proc/{noted.read_text()}/stat")
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_try_is_what_it_says(tmp_path: Path) -> None:
    """It ends with 0 or, without the library, 3."""
    tried = subprocess.run([sys.executable, "-c", doom_sound._TRY], cwd=tmp_path, timeout=60, check=False)
    assert tried.returncode in (0, 3)
