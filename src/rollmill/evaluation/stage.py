"""Environments for recording and watching: one row, with a picture of every step."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from rollmill.envs import atari
from rollmill.envs.agent_group import AgentGroup
from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import RollmillEnvError
from rollmill.envs.factory import make_env, make_group, probe, resolve_maker, rows_of_group
from rollmill.envs.player_group import PlayerGroup
from rollmill.envs.python_group import PythonGroup
from rollmill.envs.registry import find_registration
from rollmill.envs.space_data import SavedSpaces
from rollmill.envs.vector_group import VectorGroup
from rollmill.envs.views import Array, Group, ObservationView, OutcomeView
from rollmill.specs import BoxActions

Picture = NDArray[np.uint8]
"""uint8 ``[H, W, 3]``, RGB."""

_ATARI_SCREEN = (210, 160)
_ROUNDED_ONE = 1.001


def has_display() -> bool:
    """Whether a window can be opened."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class NotRenderableError(RuntimeError):
    """An environment cannot be rendered."""


def spaces_of(config: EnvConfig, group_size: int | None = None) -> SavedSpaces:
    """Return the observation and action space of a configured environment.

    Args:
        config: The environment.
        group_size: See :func:`rollmill.envs.factory.rows_of_group`.
    """
    num_envs = rows_of_group(config, 1, group_size)
    group = make_group(config, num_envs, range(num_envs), agents=probe(config, group_size=group_size).agents)
    try:
        return SavedSpaces(group.observation_space, group.action_space)
    finally:
        group.close()


class Stage:
    """One row of an environment to record or watch; itself a ``Group``, possibly with further rows.

    Args:
        group: The group, whose first row is shown; all rows are stepped.
        picture: Returns the current picture.
        fps: Agent steps a second for real-time playback.
        twin: A second group that gets the same actions and provides the pictures.
    """

    def __init__(
        self, group: Group, picture: Callable[[ObservationView], Any], fps: float, twin: _Twin | None = None
    ) -> None:
        self._group = group
        self.num_rows = group.num_rows
        self.failures = group.failures
        self._picture = picture
        self._twin = twin
        self._shown: ObservationView | None = None
        self._has_bytes = False  # Whether its pictures of floats go up to 255.
        self.fps = fps

    def reset(self, into: ObservationView) -> None:
        """Start the first episode."""
        self._group.reset(into)
        if self._twin is not None:
            self._twin.reset()
        self._shown = into

    def step(
        self, discrete: Array | None, continuous: Array | None, into: ObservationView, outcome: OutcomeView
    ) -> None:
        """Step the row; see ``Group.step``."""
        self._group.step(discrete, continuous, into, outcome)
        if self._twin is not None:
            self._twin.step(discrete, continuous)
        self._shown = into

    def is_over(self, outcome: OutcomeView) -> bool:
        """Whether the step with this outcome ended the episode, with several agents that of all."""
        if isinstance(self._group, AgentGroup | PlayerGroup):
            return bool(self._group.resets_next[0])
        # A lost life may be reported as terminated; only the episode's end has a length.
        return bool(outcome.episode_length[0] > 0)

    def picture(self) -> Picture:
        """Return the current picture.

        Raises:
            NotRenderableError: The environment returned no picture, or one with values of unknown meaning.
        """
        assert self._shown is not None, "reset comes first"
        picture = np.asarray(self._picture(self._shown))
        if picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
            raise NotRenderableError(
                f"the environment's render() gave {type(picture).__name__} of shape {picture.shape}; an RGB picture "
                '[height, width, 3] is needed: support render_mode="rgb_array"'
            )
        kind = picture.dtype.kind
        # NaN is in no range.
        if kind not in "uif" or not (picture.min() >= 0 and picture.max() <= 255):
            span = f" with values from {picture.min():g} to {picture.max():g}" if kind in "uif" else ""
            raise NotRenderableError(
                f"the environment's render() gave a picture of {picture.dtype}{span}: give numbers from 0 to 255, as "
                "uint8, or floats from 0 to 1"
            )
        if kind == "f":
            # Some simulators give floats up to 255. A picture tells only if it is not nearly black.
            self._has_bytes = self._has_bytes or picture.max() > _ROUNDED_ONE
            picture = np.rint(picture if self._has_bytes else np.minimum(picture, 1) * 255)
        return picture.astype(np.uint8)  # a copy: the next step overwrites what was observed

    def close(self) -> None:
        """Close the environments."""
        self._group.close()
        if self._twin is not None:
            self._twin.group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _Twin:
    """An Atari game in colour and full size, with the seed and actions of the agent's game."""

    def __init__(self, config: EnvConfig, seed: int) -> None:
        height, width = _ATARI_SCREEN
        screen = {"img_height": height, "img_width": width, "stack_num": 1, "grayscale": False}
        self.group = make_group(replace(config, kwargs={**config.kwargs, **screen}), 1, [seed])
        shape = (1, 1, height, width, 3)
        self._into = ObservationView({"obs": np.zeros(shape, np.uint8)}, None, np.zeros(1, bool))
        flags = [np.zeros(1, bool) for _ in range(3)]
        numbers = [np.zeros(1, np.float32) for _ in range(2)]
        self._outcome = OutcomeView(numbers[0], flags[0], flags[1], flags[2], numbers[1], np.zeros(1, np.int32))

    def reset(self) -> None:
        self.group.reset(self._into)

    def step(self, discrete: Array | None, continuous: Array | None) -> None:
        self.group.step(discrete, continuous, self._into, self._outcome)

    def picture(self, _: ObservationView) -> Any:
        return self._into.observation["obs"][0, 0]


def open_stage(
    config: EnvConfig, seed: int, *, box: BoxActions, group_size: int | None = None, agents: Sequence[str] = ()
) -> Stage:
    """Build a policy's environment for recording or watching.

    Atari games run twice with the same seed and actions, once as the agent sees them and once in colour and full size.
    Other environments render (``render_mode="rgb_array"``); one that only exists as a native vector shows its
    observation if that is an image.

    Args:
        config: The environment.
        seed: Seed of the first reset.
        box: Conversion of continuous actions.
        group_size: See :func:`rollmill.envs.factory.rows_of_group`.
        agents: Names of the environment's agents.

    Raises:
        NotRenderableError: It cannot be rendered.
        EnvironmentFailure: Its constructor failed.
    """
    config = replace(config, on_failure="stop")
    maker = resolve_maker(config)
    if config.name.startswith("atari/") and find_registration(config.name) is None:
        twin = _Twin(config, seed)
        return Stage(
            make_group(config, 1, [seed], box=box), twin.picture, atari.FRAMES_PER_SECOND / maker.frameskip, twin
        )
    if not has_display():
        # Gymnasium tries windowed OpenGL first, which fails late and without a clear error if there is no display.
        os.environ.setdefault("MUJOCO_GL", "egl")
        # pygame, which draws on surfaces of its own, would print an error about the window that it cannot open.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if maker.env is None:
        seeds = range(seed, seed + rows_of_group(config, 1, group_size))
        return _vector_stage(config, seeds, box=box, agents=agents)
    drawn = _Drawn(replace(config, vector=False), make_env)

    def build() -> Any:
        env = drawn.build()
        _prepare_mujoco(env)
        return env

    group: Group
    if agents:
        group = AgentGroup(
            build,
            agents=agents,
            num_envs=1,
            seeds=[seed],
            name=config.name,
            box=box,
            max_episode_steps=maker.time_limit,
            check_finite=config.check_finite,
            shows_end=True,
        )
    else:
        group = PythonGroup(
            build, num_envs=1, seeds=[seed], name=config.name, box=box, check_finite=config.check_finite
        )
    return Stage(group, drawn.picture, _declared_fps(drawn.env, 30.0))


def _vector_stage(config: EnvConfig, seeds: Sequence[int], *, box: BoxActions, agents: Sequence[str]) -> Stage:
    """Build a native vector with a row for each seed, which shows the first row.

    It renders itself if it can (EnvPool); otherwise its observation is the image.
    """
    maker = resolve_maker(config)

    def make(config: EnvConfig) -> Any:
        vector = resolve_maker(config).vector
        assert vector is not None
        return vector(len(seeds), 1, seeds)

    drawn = _Drawn(config, make, is_vector=True)
    group: Group
    fps = 30.0
    if agents:
        fps = 2.0  # Games are followed move by move.
        group = PlayerGroup(
            lambda _: drawn.build(),
            agents=agents,
            seeds=seeds,
            name=config.name,
            box=box,
            check_finite=config.check_finite,
        )
    else:
        group = VectorGroup(
            lambda _: drawn.build(),
            seeds=seeds,
            name=config.name,
            reset_seed=maker.reset_seed,
            box=box,
            life_key=maker.life_key,
            check_finite=config.check_finite,
        )
    return Stage(group, drawn.picture, _declared_fps(drawn.env, fps))


class _Drawn:
    """An environment, or a native vector of them, that draws itself or else shows its image observation.

    Args:
        config: The environment.
        make: Builds it.
        is_vector: Whether it is a vector, of which the first environment is shown.

    Attributes:
        env: What was built.
    """

    def __init__(self, config: EnvConfig, make: Callable[[EnvConfig], Any], *, is_vector: bool = False) -> None:
        self._config, self._make, self._is_vector = config, make, is_vector
        self.env: Any = None
        # Reasons for which it may be unable to draw. An unexpected one is shown to the user, once.
        self._reasons: list[str] = []
        self._is_unexpected = False

    def build(self) -> Any:
        """Build it with ``render_mode="rgb_array"``, or without if that fails."""
        try:
            self.env = self._make(replace(self._config, kwargs={**self._config.kwargs, "render_mode": "rgb_array"}))
        except RollmillEnvError:
            raise
        except Exception as error:
            # A user's environment may lack the argument or the mode. An error without it, too, is raised.
            self.env = self._make(self._config)
            self._reasons = [f'with render_mode="rgb_array" it raised {type(error).__name__}: {error}']
            self._is_unexpected = not (isinstance(error, TypeError) and "argument" in str(error))
        return self.env

    def picture(self, view: ObservationView) -> Any:
        """Return the current picture."""
        rendered = self._rendered()
        if rendered is not None:
            return rendered
        image = _newest_image(view)
        reasons = ", and ".join(self._reasons)
        if image is None:
            raise NotRenderableError(
                "this environment neither renders nor observes images"
                + (f" ({reasons})" if reasons else "")
                + ': give it render_mode="rgb_array", or evaluate without a video'
            )
        if self._is_unexpected:
            self._is_unexpected = False
            warnings.warn(f"{self._config.name} is shown as it is observed: {reasons}", stacklevel=2)
        return image

    def _rendered(self) -> Any:
        """Return what ``render`` gives; None if it cannot."""
        try:
            # Environments with several agents need not have the method.
            rendered = self.env.render() if hasattr(self.env, "render") else None
        except NotImplementedError:  # the default of Gymnasium
            return None
        except DependencyNotInstalled as error:
            raise NotRenderableError(f"{self._config.name} cannot be drawn: {error}") from error
        except Exception as error:
            if not self._reasons:
                raise
            self._reasons[1:] = [f"without it, render() raised {type(error).__name__}: {error}"]
            return None
        return rendered[0] if self._is_vector and rendered is not None else rendered


def _declared_fps(env: Any, default: float) -> float:
    """Return the agent steps a second that an environment declares (Gymnasium's ``render_fps``)."""
    return float(getattr(env, "metadata", {}).get("render_fps") or default)


def _prepare_mujoco(env: Any) -> None:
    """Track the body, and disable fine shadows and antialiasing, which make software rendering four times slower.

    Gymnasium's default camera is static, and a good runner leaves its view within a second.
    """
    bare = getattr(env, "unwrapped", env)  # An environment with several agents may lack it.
    model, renderer = getattr(bare, "model", None), getattr(bare, "mujoco_renderer", None)
    if model is None or renderer is None:
        return
    import mujoco

    camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if camera >= 0:
        renderer.camera_id = camera
    model.vis.quality.shadowsize = 1024
    model.vis.quality.offsamples = 0


def _newest_image(view: ObservationView) -> Picture | None:
    """Return the newest frame of an image observation in any layout; None if there is no such observation."""
    image = next((array[0] for array in view.observation.values() if array.dtype == np.uint8 and array.ndim == 4), None)
    if image is None:
        return None
    if image.shape[0] <= 4 < image.shape[2]:  # channels, or stacked frames, come first
        image = image[-3:] if image.shape[0] == 3 else image[-1:]
        image = image.transpose(1, 2, 0)
    else:
        image = image[..., :3] if image.shape[2] == 3 else image[..., -1:]
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
