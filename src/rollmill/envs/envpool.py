"""EnvPool's C++ environments (``envpool/<id>``)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollmill.envs import atari, doom_scenarios
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import Maker, suggest
from rollmill.extras import install_command

# Simulator frames of parts of EnvPool that skip frames; pools do not declare them.
_FRAMES_PER_SECOND = {"atari": atari.FRAMES_PER_SECOND, "vizdoom": doom_scenarios.TICS_PER_SECOND}


def _envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise MissingExtra(f"EnvPool is not installed ({error}): {install_command('envpool')}") from error
    return envpool


def ids() -> list[str]:
    """EnvPool's ids; raises :class:`MissingExtra` without envpool."""
    return sorted(_envpool().list_all_envs())


def check_id(id: str) -> None:
    """Raise :class:`UnknownEnvironment` unless EnvPool has the environment."""
    known = ids()
    if id not in known:
        raise UnknownEnvironment(f"EnvPool has no environment {id!r}{suggest(id, known)}")


def kind(id: str) -> str:
    """The part of EnvPool that provides an id: ``"atari"``, ``"classic_control"``, ``"mujoco"``, ``"vizdoom"``, ..."""
    check_id(id)
    module: str = _envpool().registration.registry.specs[id][0]
    return module.split(".")[1]


def maker(config: EnvConfig) -> Maker:
    """Build a synchronous EnvPool for each group; ``config.kwargs`` go to ``envpool.make_gymnasium``.

    Raises:
        UnknownEnvironment: EnvPool has no such id.
        MissingExtra: envpool is not installed.
    """
    envpool = _envpool()
    id = config.name.removeprefix("envpool/")
    check_id(id)
    kwargs = dict(config.kwargs)
    defaults = dict(envpool.make_spec(id).config._asdict())
    has_players = defaults.get("max_num_players", 1) > 1
    if config.max_episode_steps is not None:
        if has_players:
            raise UnknownEnvironment(
                f"env.max_episode_steps={config.max_episode_steps} cannot be enforced for {config.name!r}, a game of "
                "EnvPool's, which ends by its rules alone: leave it out"
            )
        kwargs["max_episode_steps"] = config.max_episode_steps
    if config.frameskip is not None and "frame_skip" in defaults:
        kwargs["frame_skip"] = config.frameskip
    # EnvPool's Atari and VizDoom name it frame_skip; MuJoCo's frame_skip is part of the task and not counted.
    pixels = {"frame_skip", "stack_num"} <= set(defaults)
    frameskip = config.frameskip or (int(kwargs.get("frame_skip", defaults["frame_skip"])) if pixels else 1)  # type: ignore[call-overload]

    def vector(num_envs: int, num_threads: int, seeds: Sequence[int]) -> Any:
        chosen = [int(s) & 0x7FFFFFFF for s in seeds]
        pool = envpool.make_gymnasium(id, num_envs=num_envs, num_threads=num_threads, seed=chosen, **kwargs)
        with warnings.catch_warnings():
            # The pool creates its spaces on first access, from bounds in double precision.
            warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
            _ = pool.observation_space, pool.action_space
        if frames := _FRAMES_PER_SECOND.get(kind(id)):
            pool.metadata = {**pool.metadata, "render_fps": frames / frameskip}
        return pool

    limit = kwargs.get("max_episode_steps", defaults.get("max_episode_steps"))
    return Maker(
        env=None,
        vector=vector,
        prefer_vector=True,
        frameskip=frameskip,
        max_episode_steps=int(limit) if isinstance(limit, (int, np.integer)) and limit > 0 else None,
        reset_seed=lambda env, seeds: None,  # The constructor has taken them.
        has_players=has_players,
    )
