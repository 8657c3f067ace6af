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
from rollmill.extras import install_command


class WithoutMission(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Removes the mission's text, leaving a dict of ``"image"`` (uint8 ``[7, 7, 3]``) and ``"direction"`` (0..3).

    The image's entries are indices of an object, a colour and a state; the space has their true bounds.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], direction: bool = True) -> None:
        """Wrap.

        Args:
            env: A MiniGrid environment.
            direction: Whether the agent's compass direction is included; otherwise the observation is the image.
        """
        super().__init__(env)
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

        assert isinstance(env.observation_space, spaces.Dict)
        high = max(*OBJECT_TO_IDX.values(), *COLOR_TO_IDX.values(), *STATE_TO_IDX.values())
        shape = env.observation_space["image"].shape
        assert shape is not None
        image = spaces.Box(0, high, shape, np.uint8)
        self._direction = direction
        self.observation_space = (
            spaces.Dict({"image": image, "direction": env.observation_space["direction"]}) if direction else image
        )

    def observation(self, observation: Any) -> Any:
        """Remove the mission, and the direction if it is not included."""
        if self._direction:
            return {"image": observation["image"], "direction": observation["direction"]}
        return observation["image"]


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
    """Build a MiniGrid environment without its mission text; ``kwargs`` may set ``direction`` (``WithoutMission``).

    Raises:
        UnknownEnvironment: MiniGrid has no such id.
        MissingExtra: minigrid is not installed.
    """
    id = config.name.removeprefix("minigrid/")
    check_id(id)
    kwargs: dict[str, Any] = dict(config.kwargs)
    direction = bool(kwargs.pop("direction", True))

    def env() -> Any:
        return WithoutMission(bare(gymnasium.make(id, disable_env_checker=True, **kwargs)), direction)

    return Maker(
        env=env,
        frameskip=config.frameskip or 1,
        max_episode_steps=config.max_episode_steps,
        time_limit=config.max_episode_steps,
    )
