"""Atari games of the Arcade Learning Environment, natively vectorised (``atari/<game>``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import Maker, suggest
from rollmill.extras import install_command
from rollmill.native import push_frames
from rollmill.specs import FrameStack

FRAMES_PER_SECOND = 60
_DEFAULT_FRAMESKIP = 4
# Emulator arguments that redefine frames, episodes or returns and have a setting of their own.
_COUNTED = {"frameskip", "max_num_frames_per_episode", "episodic_life", "reward_clipping"}


def _ale() -> Any:
    try:
        import ale_py
        import ale_py.roms
        import ale_py.vector_env
    except ImportError as error:
        raise MissingExtra(
            f"Atari games need ale-py, which is not installed ({error}): {install_command('atari')}"
        ) from error
    return ale_py


def games() -> list[str]:
    """ALE names of all games, in snake_case; raises :class:`MissingExtra` without ale-py."""
    return sorted(_ale().roms.get_all_rom_ids())


def check_game(game: str) -> None:
    """Raise :class:`UnknownEnvironment` unless ALE has the game."""
    known = games()
    if game not in known:
        raise UnknownEnvironment(
            f"ALE has no game {game!r}{suggest(game, known)} ({len(known)} games, in snake_case: `rollmill envs atari`)"
        )


class ShrunkScreens(VectorWrapper[Any, Any, Any]):
    """Greyscale, area downscaling and frame stacking as in ALE, but faster (docs/journal/).

    Images equal ALE's (``cv2.INTER_AREA``), except that a mean of exactly one half is rounded up. An
    episode begins with zeros before its first frame.

    Args:
        env: ``ale_py.AtariVectorEnv`` with autoreset NEXT_STEP that returns single grey frames ``[B, 1, H, W]``,
            without episodes that end on a lost life.
        shape: Frames in a stack, height and width of the result.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], shape: tuple[int, int, int]) -> None:
        super().__init__(env)
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._stacks = np.zeros((env.num_envs, *shape), np.uint8)
        self._ended = np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every row; the next call overwrites the returned view.

        Raises:
            ValueError: ``options`` resets only some of the rows.
        """
        if options and "reset_mask" in options:
            raise ValueError(
                "options={'reset_mask': ...}: resetting some rows needs autoreset_mode='Disabled', because "
                "here a row is reset by the step after its episode's last"
            )
        frames, info = self.env.reset(seed=seed, options=options)
        self._ended.fill(True)
        return self._show(frames), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every row; the next call overwrites the returned view."""
        frames, reward, terminated, truncated, info = self.env.step(actions)
        stacks = self._show(frames)
        np.logical_or(terminated, truncated, out=self._ended)
        return stacks, reward, terminated, truncated, info

    def _show(self, frames: Any) -> Any:
        push_frames(self._stacks, frames[:, 0], self._ended)
        self._ended.fill(False)
        return self._stacks


@functools.cache
def _screen_size(game: str) -> tuple[int, int]:
    """Height and width of the game's screen in pixels; starts a console to read it."""
    ale_py = _ale()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.loadROM(ale_py.roms.get_rom_path(game))
    height, width = emulator.getScreenDims()
    return height, width


def _can_shrink(given: dict[str, Any], game: str) -> bool:
    """Whether ``ShrunkScreens`` supports the arguments ``given``."""
    if not given["grayscale"] or given["stack_num"] < 1 or not _clears_stacks(given) or given.get("batch_size"):
        return False
    height, width = _screen_size(game)
    return bool(1 <= given["img_height"] <= height and 1 <= given["img_width"] <= width)


def _clears_stacks(given: dict[str, Any]) -> bool:
    """Whether the frame stack is cleared at the start of every episode."""
    clean = AutoresetMode.NEXT_STEP
    # Modes may be given by name; ALE reports invalid ones.
    return given.get("autoreset_mode", clean) in (clean, clean.value) and not given.get("life_loss_info")


def _stack(given: dict[str, Any]) -> FrameStack | None:
    """ALE's frame stack; ALE reports invalid numbers."""
    depth = given["stack_num"]
    if not isinstance(depth, int) or depth < 2 or not _clears_stacks(given):
        return None
    return FrameStack(depth=depth, padding="zero")


def _seed_array(env: Any, seeds: Sequence[int]) -> Any:
    """One seed of 31 bits for each environment."""
    return np.array([int(s) & 0x7FFFFFFF for s in seeds], dtype=np.int64)


def maker(config: EnvConfig) -> Maker:
    """Build ``ale_py.AtariVectorEnv`` with the configuration's ``atari`` options; rewards are not clipped.

    Raises:
        UnknownEnvironment: ALE has no such game, or ``kwargs`` would make counts of frames, episodes or returns wrong.
        MissingExtra: ale-py is not installed.
    """
    ale_py = _ale()
    game = config.name.removeprefix("atari/")
    check_game(game)
    options = config.atari
    frameskip = config.frameskip or _DEFAULT_FRAMESKIP
    frames = options.max_frames
    if config.max_episode_steps is not None:
        frames = min(frames, config.max_episode_steps * frameskip)

    arguments: dict[str, Any] = {
        "max_num_frames_per_episode": frames,
        "repeat_action_probability": options.sticky_actions,
        "full_action_space": options.full_action_space,
        "img_height": options.screen_size,
        "img_width": options.screen_size,
        "grayscale": options.grayscale,
        "stack_num": options.frame_stack,
        "frameskip": frameskip,
        "noop_max": options.noop_max,
        "use_fire_reset": options.fire_reset,
        # VectorGroup distinguishes a lost life from the end of the game, without an autoreset.
        "episodic_life": False,
        "reward_clipping": False,
    }
    if miscounted := sorted(_COUNTED & config.kwargs.keys()):
        raise UnknownEnvironment(
            f"env.kwargs.{miscounted[0]}={config.kwargs[miscounted[0]]!r}: frames, episodes or returns would be "
            "counted wrongly; use env.frameskip, env.max_episode_steps, env.atari.max_frames, env.atari.life_loss or "
            "learner.reward_clip"
        )

    def vector(num_envs: int, num_threads: int, seeds: Sequence[int]) -> Any:
        given = {**arguments, "num_threads": num_threads, **config.kwargs}
        if not _can_shrink(given, game):
            return ale_py.vector_env.AtariVectorEnv(game, num_envs, **given)
        shape = (given["stack_num"], given["img_height"], given["img_width"])
        height, width = _screen_size(game)
        given.update(img_height=height, img_width=width, stack_num=1)
        return ShrunkScreens(ale_py.vector_env.AtariVectorEnv(game, num_envs, **given), shape)

    return Maker(
        env=None,
        vector=vector,
        prefer_vector=True,
        frameskip=frameskip,
        max_episode_steps=-(-frames // frameskip),
        reset_seed=_seed_array,
        life_key="lives" if options.life_loss else None,
        stack=_stack({**arguments, **config.kwargs}),
    )
