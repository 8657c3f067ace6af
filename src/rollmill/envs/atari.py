"""Atari games of the Arcade Learning Environment, natively vectorised (``atari/<game>``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import Maker, suggest
from rollmill.envs.vector_group import seed_array

__all__ = ["check_game", "games", "maker"]

_DEFAULT_FRAMESKIP = 4
# Arguments of the emulator's that say what a frame, an episode or a return is, as settings of ours do.
_COUNTED = {"frameskip", "max_num_frames_per_episode", "episodic_life", "reward_clipping"}


def _ale() -> Any:
    try:
        import ale_py
        import ale_py.roms
        import ale_py.vector_env
    except ImportError as error:
        raise MissingExtra(
            f'Atari games need ale-py, which is not installed ({error}): pip install "rollmill[atari]"'
        ) from error
    return ale_py


def games() -> list[str]:
    """ALE's names of all games, in snake_case.

    Raises:
        MissingExtra: ale-py is not installed.
    """
    return sorted(_ale().roms.get_all_rom_ids())


def check_game(game: str) -> None:
    """Raise unless ALE has the game.

    Raises:
        UnknownEnvironment: It has not; suggests the nearest ones.
        MissingExtra: ale-py is not installed.
    """
    known = games()
    if game not in known:
        raise UnknownEnvironment(
            f"ALE has no game {game!r}{suggest(game, known)} ({len(known)} games, in snake_case: `rollmill envs atari`)"
        )


def maker(config: EnvConfig) -> Maker:
    """``ale_py.AtariVectorEnv`` with the configuration's ``atari`` options; rewards are not clipped.

    Raises:
        UnknownEnvironment: ALE has no such game, or ``kwargs`` would have frames, episodes or returns miscounted.
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
        # Losing a life is told apart from the end of the game by VectorGroup, without an autoreset.
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
        return ale_py.vector_env.AtariVectorEnv(game, num_envs, **given)

    return Maker(
        env=None,
        vector=vector,
        prefer_vector=True,
        frameskip=frameskip,
        max_episode_steps=-(-frames // frameskip),
        reset_seed=seed_array,
        life_key="lives" if options.life_loss else None,
    )
