"""The start of Doom's engines: one that ends meanwhile raises, and does not end the process."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vizdoom")

from tests.envs.doom_kills import Kill, in_a_process, kill_engine
from vizdoom import DoomGame

from rollmill.envs import doom_start
from rollmill.envs.config import EnvConfig
from rollmill.envs.doom_start import protect_start, start_engine
from rollmill.envs.factory import make_env

DEAD = r"exited unexpectedly|instance crash"


@pytest.fixture
def not_yet_looked_up() -> Iterator[None]:
    """Forget where the members are, and afterwards what a test made up."""
    doom_start._places.cache_clear()
    yield
    doom_start._places.cache_clear()


def test_an_engine_that_ends_at_once_raises() -> None:
    in_a_process(start_a_program_that_ends)


def start_a_program_that_ends() -> None:
    for _ in range(3):
        game = DoomGame()
        game.set_vizdoom_path("/bin/false")
        for _ in range(2):
            with pytest.raises(Exception, match=DEAD):
                start_engine(game)
        game.close()


def test_an_environment_whose_engine_is_killed_while_it_starts_raises() -> None:
    in_a_process(kill_engines_of_battles)


def kill_engines_of_battles() -> None:
    for after in (0.0, 0.02, 0.05):
        env = make_env(EnvConfig(name="vizdoom/battle"))
        with kill_engine(0, after) as kill, pytest.raises(Exception, match=DEAD):
            play_until_killed(env, kill)
        env.close()
        kill.assert_nothing_is_left()


def play_until_killed(env: Any, kill: Kill) -> None:
    env.reset(seed=1)
    while kill.at is None:  # The start was faster.
        env.step(env.action_space.sample())
    env.step(env.action_space.sample())


def test_a_started_engine_has_its_own_state() -> None:
    env = make_env(EnvConfig(name="vizdoom/basic"))
    env.reset(seed=1)
    game = env.unwrapped._game
    places = doom_start._places()
    assert places is not None
    controller = ctypes.c_size_t.from_address(doom_start._object_of(game) + places.controller).value
    state = ctypes.c_size_t.from_address(controller + places.state)
    own = state.value
    assert own not in (0, ctypes.addressof(doom_start._blank_state))
    # It is left alone.
    assert protect_start(game)
    assert state.value == own
    env.close()
    assert state.value == 0


@pytest.mark.usefixtures("not_yet_looked_up")
@pytest.mark.parametrize("problem", [OSError, AttributeError])
def test_a_library_with_other_functions_is_used_as_it_is(
    problem: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise problem

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert not protect_start(DoomGame())
    env = make_env(EnvConfig(name="vizdoom/basic"))
    env.reset(seed=1)
    env.close()


@pytest.mark.usefixtures("not_yet_looked_up")
def test_places_that_a_real_game_disproves_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    getter = doom_start._getter
    # As if a game's number of tics per second were not where it is looked for.
    monkeypatch.setattr(
        doom_start, "_getter", lambda function, result: lambda address: min(getter(function, result)(address), 4000)
    )
    assert not protect_start(DoomGame())


def test_looking_the_places_up_takes_no_time() -> None:
    began = time.monotonic()
    doom_start._places.__wrapped__()
    assert time.monotonic() - began < 1
