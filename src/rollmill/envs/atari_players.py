"""PettingZoo's Atari games for several players, with the usual preprocessing (Mnih et al. 2015)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rollmill.envs.agent_apis import ConvertedGame
from rollmill.envs.atari import FRAMES_PER_SECOND
from rollmill.envs.config import AtariOptions
from rollmill.envs.errors import MissingExtra
from rollmill.envs.views import Array
from rollmill.extras import install_command
from rollmill.native import push_frames

DEFAULT_FRAMESKIP = 4


def rom_folder() -> str:
    """Return the folder of the games that come with ale-py, as PettingZoo's engine has none.

    Raises:
        MissingExtra: ale-py is not installed.
    """
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtra(
            f"the games come with ale-py, which is not installed ({error}): {install_command('atari')}"
        ) from error
    return str(Path(ale_py.__file__).parent / "roms")


class AtariPlayers:
    """A parallel environment whose agents see stacked, shrunk screens, and which player they are.

    All agents of a game see the same screen, so that one policy could not tell which of them it plays. An observation
    is a dict of ``screen``, uint8 ``[D, H, W]`` with the newest picture last, and ``player``, float32 ``[A]``, one-hot.

    Each action is repeated for ``frameskip`` frames, whose rewards are added up, and of the last two frames the larger
    value of each pixel is shown, because some games draw objects in every second frame only. Games begin with up to
    ``noop_max`` frames without an action, as they themselves always start alike.

    Args:
        env: The game, with PettingZoo's parallel interface and grey screens, ``[height, width, 1]``.
        options: ``screen_size``, ``frame_stack`` and ``noop_max`` count here.
        frameskip: Frames of a step.
    """

    def __init__(self, env: Any, options: AtariOptions, frameskip: int) -> None:
        self.env = env
        self._stepped = ConvertedGame.under(env) or env
        self.metadata = {**env.metadata, "render_fps": FRAMES_PER_SECOND / frameskip}
        self.render_mode = env.render_mode
        self.possible_agents = env.possible_agents
        self._frameskip = frameskip
        self._noops = options.noop_max
        self._stack = np.zeros((1, options.frame_stack, options.screen_size, options.screen_size), np.uint8)
        count = len(self.possible_agents)
        self._identities = dict(zip(self.possible_agents, np.eye(count, dtype=np.float32), strict=True))
        self._space = spaces.Dict(
            {
                "screen": spaces.Box(0, 255, self._stack.shape[1:], np.uint8),
                "player": spaces.Box(0.0, 1.0, (count,), np.float32),
            }
        )
        self._random = np.random.default_rng()

    @property
    def agents(self) -> list[Any]:
        """The agents that still play."""
        agents: list[Any] = self.env.agents
        return agents

    def observation_space(self, agent: Any) -> spaces.Space[Any]:
        """Return the space of screens and identities."""
        return self._space

    def action_space(self, agent: Any) -> spaces.Space[Any]:
        """Return the game's own actions."""
        space: spaces.Space[Any] = self.env.action_space(agent)
        return space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start a game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        views, infos = self.env.reset(seed=seed, options=options)
        noops = int(self._random.integers(1, self._noops + 1)) if self._noops > 1 else self._noops
        for _ in range(noops):
            views, _, _, _, infos = self._stepped.step(dict.fromkeys(self.env.agents, 0))
        self._push(_screen(views), is_first=True)
        return self._observations(views), infos

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Repeat the actions until the frames are over or an agent leaves the game."""
        env, before = self.env, list(self.env.agents)
        step = self._stepped.step
        rewards = dict.fromkeys(before, 0.0)
        screens: list[Array] = []
        for _ in range(self._frameskip):
            views, of_frame, terminations, truncations, infos = step(actions)
            screens.append(_screen(views))
            for agent, reward in of_frame.items():
                rewards[agent] += reward
            if env.agents != before:
                break
        self._push(np.maximum.reduce(screens[-2:]), is_first=False)
        return self._observations(views), rewards, terminations, truncations, infos

    def render(self) -> Any:
        """Show the game."""
        return self.env.render()

    def close(self) -> None:
        """End the game."""
        self.env.close()

    def _push(self, screen: Array, *, is_first: bool) -> None:
        """Add a screen ``[height, width]`` to the stack, which the first one of a game clears."""
        push_frames(self._stack, np.ascontiguousarray(screen)[None], np.array([is_first]))

    def _observations(self, views: dict[Any, Any]) -> dict[Any, Any]:
        # The group copies them into the slot before the next step overwrites the stack.
        return {agent: {"screen": self._stack[0], "player": self._identities[agent]} for agent in views}


def _screen(views: dict[Any, Any]) -> Array:
    """Return the screen, which all agents see."""
    screen: Array = next(iter(views.values()))[..., 0]
    return screen
