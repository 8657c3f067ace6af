"""Screens of Atari games for several players."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from rollmill.envs.atari_players import AtariPlayers
from rollmill.envs.config import AtariOptions, EnvConfig
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.pettingzoo import maker

OPTIONS = AtariOptions(frame_stack=3, screen_size=2, noop_max=0)


class Flicker(ParallelEnv):
    """Frame t shows t in the upper half, and in every second frame 100 in the lower one. The players win t and -t."""

    metadata: ClassVar[dict[str, Any]] = {"name": "flicker", "render_modes": []}
    render_mode = None

    def __init__(self, length: int = 100) -> None:
        self.possible_agents = ["first_0", "second_0"]
        self.length = length
        self.actions: list[dict[str, int]] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 255, (4, 4, 1), np.uint8)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(6)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = list(self.possible_agents)
        self.frame = 0
        return self._views(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        self.actions.append(actions)
        self.frame += 1
        views, is_over = self._views(), self.frame >= self.length
        rewards = {"first_0": float(self.frame), "second_0": -float(self.frame)}
        ended = dict.fromkeys(self.agents, is_over)
        self.agents = [] if is_over else self.agents
        return views, rewards, ended, dict.fromkeys(ended, False), {agent: {} for agent in ended}

    def _views(self) -> dict[str, Any]:
        screen = np.zeros((4, 4, 1), np.uint8)
        screen[:2] = self.frame
        screen[2:] = 100 * (self.frame % 2)
        return dict.fromkeys(self.agents, screen)


def rows(screen: Any) -> list[list[int]]:
    """The upper and the lower value of each picture of a stack."""
    assert (screen == screen[..., :1]).all()
    values: list[list[int]] = screen[..., 0].tolist()
    return values


def test_screens_are_stacked_and_players_are_told_apart() -> None:
    env = AtariPlayers(Flicker(), OPTIONS, 4)
    assert env.metadata["render_fps"] == 15
    views, _ = env.reset(seed=1)
    assert all(env.observation_space(agent).contains(view) for agent, view in views.items())
    assert rows(views["first_0"]["screen"]) == [[0, 0], [0, 0], [0, 0]]
    assert views["first_0"]["player"].tolist() == [1, 0]
    assert views["second_0"]["player"].tolist() == [0, 1]
    views, rewards, _, _, _ = env.step({"first_0": 2, "second_0": 5})
    # The larger of frames 3 and 4, of which only frame 3 shows the lower half.
    assert rows(views["first_0"]["screen"]) == [[0, 0], [0, 0], [4, 100]]
    assert rewards == {"first_0": 10.0, "second_0": -10.0}
    assert env.env.actions == [{"first_0": 2, "second_0": 5}] * 4
    views, *_ = env.step({"first_0": 0, "second_0": 0})
    assert rows(views["second_0"]["screen"]) == [[0, 0], [4, 100], [8, 100]]


def test_a_game_that_ends_within_a_step_shows_its_last_frame() -> None:
    env = AtariPlayers(Flicker(length=5), OPTIONS, 4)
    env.reset()
    env.step({"first_0": 0, "second_0": 0})
    views, rewards, terminations, _, _ = env.step({"first_0": 0, "second_0": 0})
    assert rows(views["first_0"]["screen"])[-1] == [5, 100]
    assert rewards["first_0"] == 5.0
    assert terminations == {"first_0": True, "second_0": True}
    assert not env.agents
    views, _ = env.reset()
    assert rows(views["first_0"]["screen"]) == [[0, 0]] * 3, "the next game starts with an empty stack"


def test_games_begin_with_a_number_of_frames_that_the_seed_decides() -> None:
    options = AtariOptions(frame_stack=1, screen_size=2, noop_max=30)

    def beginnings(seed: int) -> list[int]:
        env = AtariPlayers(Flicker(), options, 1)
        first, _ = env.reset(seed=seed)
        found = [rows(first["first_0"]["screen"])[0][0]]
        return found + [rows(env.reset()[0]["first_0"]["screen"])[0][0] for _ in range(20)]

    assert beginnings(3) == beginnings(3)
    assert beginnings(3) != beginnings(4)
    assert len(set(beginnings(3))) > 5
    assert max(beginnings(3)) <= 30


def test_raw_observations_cannot_skip_frames() -> None:
    pytest.importorskip("pettingzoo")
    config = EnvConfig(name="pettingzoo/atari/pong_v3", kwargs={"obs_type": "ram"}, frameskip=4)
    with pytest.raises(UnknownEnvironment, match="leave one of the two out"):
        maker(config)


@pytest.mark.parametrize("kwargs", [{}, {"obs_type": "ram"}])
def test_pong_runs_with_the_games_of_ale_py(kwargs: dict[str, str]) -> None:
    pytest.importorskip("multi_agent_ale_py")
    pytest.importorskip("ale_py")
    built = maker(EnvConfig(name="pettingzoo/atari/pong_v3", kwargs=kwargs))
    assert built.frameskip == (1 if kwargs else 4)
    assert built.env is not None
    env = built.env()
    views, _ = env.reset(seed=0)
    view = views["second_0"]
    assert view.shape == (128,) if kwargs else view["screen"].shape == (4, 84, 84)
    for _ in range(3):
        views, *_ = env.step(dict.fromkeys(env.agents, 1))
    assert env.observation_space("second_0").contains(views["second_0"])
    env.close()
