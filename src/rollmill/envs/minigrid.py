"""MiniGrid's grid worlds (``minigrid/<id>``)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import MissingExtra, UnknownEnvironment
from rollmill.envs.factory import Maker, suggest
from rollmill.envs.gym import bare
from rollmill.envs.words import WORD_BUCKETS, hashed_words
from rollmill.extras import install_command


class Numbers(gymnasium.ObservationWrapper[Any, Any, Any]):
    """MiniGrid's observations without text: a dict of ``"image"`` and, if asked for, ``"direction"`` and ``"mission"``.

    ``"image"`` is uint8 ``[7, 7, 3]``: indices of an object, a colour and a state; the space has their true bounds.
    ``"direction"`` is 0 to 3, the agent's compass direction. ``"mission"`` is uint8 ``[1000]``, 1 for the bucket of
    each word of the mission and of each pair of neighbouring words (:func:`hashed_words`). An image alone is no dict.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], direction: bool = True, mission: bool | None = None) -> None:
        """Wrap.

        Args:
            env: A MiniGrid environment.
            direction: Whether the direction is included.
            mission: Whether the mission is included; None: if it differs between episodes.
        """
        super().__init__(env)
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        given = env.observation_space
        assert isinstance(given, spaces.Dict)
        high = max(*OBJECT_TO_IDX.values(), *COLOR_TO_IDX.values(), *STATE_TO_IDX.values())
        shape = given["image"].shape
        assert shape is not None
        entries: dict[str, spaces.Space[Any]] = {"image": spaces.Box(0, high, shape, np.uint8)}
        if direction:
            entries["direction"] = given["direction"]
        if has_missions(given) if mission is None else mission:
            entries["mission"] = spaces.Box(0, 1, (WORD_BUCKETS,), np.uint8)
        self._names = list(entries)
        self.observation_space = spaces.Dict(entries) if len(entries) > 1 else entries["image"]
        self._mission, self._words = "", hashed_words("")

    def observation(self, observation: Any) -> Any:
        """Return the included entries, with the mission as numbers."""
        if len(self._names) == 1:
            return observation["image"]
        found = {name: observation[name] for name in self._names}
        if "mission" in found:
            if found["mission"] != self._mission:
                self._mission, self._words = found["mission"], hashed_words(found["mission"])
            found["mission"] = self._words
        return found


def has_missions(space: spaces.Dict) -> bool:
    """Whether the missions of a MiniGrid environment differ between episodes."""
    from minigrid.envs.babyai.core.roomgrid_level import BabyAIMissionSpace

    mission = space["mission"]
    # BabyAI's accept any text.
    return bool(getattr(mission, "ordered_placeholders", None)) or isinstance(mission, BabyAIMissionSpace)


def ids() -> list[str]:
    """MiniGrid's and BabyAI's ids in Gymnasium's registry; raises :class:`MissingExtra` without minigrid."""
    try:
        import minigrid
    except ImportError as error:
        raise MissingExtra(f"MiniGrid is not installed ({error}): {install_command('minigrid')}") from error
    # Importing registers the environments once; registering them again would only warn.
    if not any(id.startswith("MiniGrid-") for id in gymnasium.registry):
        minigrid.register_minigrid_envs()  # type: ignore[no-untyped-call,unused-ignore]
    return sorted(id for id in gymnasium.registry if id.startswith(("MiniGrid-", "BabyAI-")))


def check_id(id: str) -> None:
    """Raise :class:`UnknownEnvironment` unless MiniGrid has the environment."""
    known = ids()
    if id not in known:
        raise UnknownEnvironment(f"MiniGrid has no environment {id!r}{suggest(id, known)}")


def maker(config: EnvConfig) -> Maker:
    """Build a MiniGrid environment with numbers instead of text.

    ``config.kwargs`` may set ``direction`` and ``mission`` (see :class:`Numbers`); others go to the environment.

    Raises:
        UnknownEnvironment: MiniGrid has no such id.
        MissingExtra: minigrid is not installed.
    """
    id = config.name.removeprefix("minigrid/")
    check_id(id)
    kwargs: dict[str, Any] = dict(config.kwargs)
    direction = bool(kwargs.pop("direction", True))
    mission = kwargs.pop("mission", None)

    def env() -> Any:
        return Numbers(bare(gymnasium.make(id, disable_env_checker=True, **kwargs)), direction, mission)

    return Maker(
        env=env,
        frameskip=config.frameskip or 1,
        max_episode_steps=config.max_episode_steps,
        time_limit=config.max_episode_steps,
    )
