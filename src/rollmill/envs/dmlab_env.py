"""A DeepMind Lab level as a Gymnasium environment (``deepmind_lab`` has an interface of its own)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollmill.envs.dmlab import missing_engine
from rollmill.envs.dmlab_cache import LevelCache
from rollmill.envs.errors import UnsupportedSpace
from rollmill.envs.views import Array
from rollmill.envs.words import WORD_BUCKETS, hashed_words

try:
    import deepmind_lab
except ImportError as error:
    raise missing_engine(error) from error

# The order of an action's numbers (docs/users/python_api.md of google-deepmind/lab, `action_spec`).
CONTROLS = (
    "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME",
    "LOOK_DOWN_UP_PIXELS_PER_FRAME",
    "STRAFE_LEFT_RIGHT",
    "MOVE_BACK_FORWARD",
    "FIRE",
    "JUMP",
    "CROUCH",
)
# Espeholt et al. 2018 (arXiv:1802.01561); environments.py of google-deepmind/scalable_agent.
ACTIONS = (
    (0, 0, 0, 1, 0, 0, 0),  # forward
    (0, 0, 0, -1, 0, 0, 0),  # backward
    (0, 0, -1, 0, 0, 0, 0),  # strafe left
    (0, 0, 1, 0, 0, 0, 0),  # strafe right
    (-20, 0, 0, 0, 0, 0, 0),  # look left
    (20, 0, 0, 0, 0, 0, 0),  # look right
    (-20, 0, 0, 1, 0, 0, 0),  # look left and go forward
    (20, 0, 0, 1, 0, 0, 0),  # look right and go forward
    (0, 0, 0, 0, 1, 0, 0),  # fire
)
# Hessel et al. 2019 (PopArt, arXiv:1809.04474), with which the Sample Factory paper trains DMLab-30 (section A.2);
# dmlab_gym.py of Sample Factory 2.
EXTENDED_ACTIONS = (
    (0, 0, 0, 1, 0, 0, 0),  # forward
    (0, 0, 0, -1, 0, 0, 0),  # backward
    (0, 0, -1, 0, 0, 0, 0),  # strafe left
    (0, 0, 1, 0, 0, 0, 0),  # strafe right
    (-10, 0, 0, 0, 0, 0, 0),  # look a little left
    (10, 0, 0, 0, 0, 0, 0),  # look a little right
    (-60, 0, 0, 0, 0, 0, 0),  # look far left
    (60, 0, 0, 0, 0, 0, 0),  # look far right
    (0, 10, 0, 0, 0, 0, 0),  # look down
    (0, -10, 0, 0, 0, 0, 0),  # look up
    (-10, 0, 0, 1, 0, 0, 0),  # look a little left and go forward
    (10, 0, 0, 1, 0, 0, 0),  # look a little right and go forward
    (-60, 0, 0, 1, 0, 0, 0),  # look far left and go forward
    (60, 0, 0, 1, 0, 0, 0),  # look far right and go forward
    (0, 0, 0, 0, 1, 0, 0),  # fire
)

# Seeds of the engine are 32-bit integers; IMPALA draws from the same range.
_SEEDS = 2**31 - 1
_PICTURE, _INSTRUCTION = "RGB_INTERLEAVED", "INSTR"
_FRAMES_PER_SECOND = 60
# Settings of the engine that have an option.
_OPTIONS = {"width": "width", "height": "height", "datasetPath": "dataset_path"}


class DmlabEnv(gymnasium.Env[Any, Any]):
    """A level, as in IMPALA and in the Sample Factory paper.

    Observation: uint8 ``[height, width, 3]`` (RGB); with ``instructions`` a dict of ``"obs"`` and ``"instructions"``,
    uint8 ``[1000]``: 1 for the bucket of each word and of each pair of neighbouring words (:func:`hashed_words`).
    IMPALA has an LSTM over embedded words instead, which none of our encoders does; pairs tell "red object in the blue
    room" from "blue object in the red room".

    Action: ``Discrete(9)`` (:data:`ACTIONS`) or ``Discrete(15)`` (:data:`EXTENDED_ACTIONS`).

    ``info["true_objective"]`` is the score: the sum of the engine's rewards so far.
    ``info["reward_terms"]["clip"]`` is what has to be added to the reward to clip it (:func:`clipped`); with
    ``learner.reward_weights.clip=1`` a learner sees clipped rewards, while reported returns are scores.

    Every end is a termination, as in both implementations: the engine does not say whether time was up, and has no
    frame after the end. The last frame is repeated; it is not bootstrapped from.
    """

    def __init__(
        self,
        level: str,
        *,
        frameskip: int = 4,
        width: int = 96,
        height: int = 72,
        renderer: str = "software",
        extended_actions: bool = False,
        instructions: bool = False,
        reward_clip: bool = False,
        level_cache: str | None = None,
        level_seeds: int | None = None,
        dataset_path: str | None = None,
        settings: Mapping[str, object] | None = None,
        last_step: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Start an engine with the level.

        Args:
            level: Path of its script below the engine's ``game_scripts/levels``, without extension.
            frameskip: Frames for each step, of which there are 60 a second.
            width: Width of the observation.
            height: Height of the observation.
            renderer: ``"software"`` or ``"hardware"``.
            extended_actions: Whether there are 15 actions instead of 9.
            instructions: Whether the level's instruction is part of the observation.
            reward_clip: Whether ``step`` returns clipped rewards.
            level_cache: Folder of a :class:`LevelCache`.
            level_seeds: Number of different seeds that episodes have; None is as many as the engine has.
            dataset_path: Folder of pictures that some levels of PsychLab show.
            settings: More settings of the engine and the level.
            last_step: The step after which the caller ends an episode; the metrics are given with it.
            render_mode: ``"rgb_array"`` or None; ``render`` returns the last frame.

        Raises:
            ValueError: ``settings`` has a name for which there is an argument.
            InvalidLevelCache: The folder cannot be used.
            UnsupportedSpace: The level has actions of its own.
        """
        settings = dict(settings or {})
        if taken := sorted(settings.keys() & _OPTIONS.keys()):
            raise ValueError(f"settings has {taken[0]!r}: use env.dmlab.{_OPTIONS[taken[0]]}")
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": _FRAMES_PER_SECOND / frameskip}
        self.render_mode = render_mode
        self._frameskip = frameskip
        self._instructions = instructions
        self._clips = reward_clip
        self._num_seeds = level_seeds or _SEEDS
        self._cache = None if level_cache is None else LevelCache(level_cache)
        self._misses = 0
        self._steps, self._last_step = 0, last_step
        # The engine takes no other type.
        self._actions = np.array(EXTENDED_ACTIONS if extended_actions else ACTIONS, np.intc)
        self.action_space = spaces.Discrete(len(self._actions))
        image = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.observation_space: spaces.Space[Any] = image
        if instructions:
            words = spaces.Box(0, 1, (WORD_BUCKETS,), np.uint8)
            self.observation_space = spaces.Dict({"obs": image, "instructions": words})
        given = {"width": width, "height": height, **settings}
        if dataset_path is not None:
            given["datasetPath"] = dataset_path
        self._lab = deepmind_lab.Lab(
            level,
            [_PICTURE, _INSTRUCTION] if instructions else [_PICTURE],
            config={name: _text(value) for name, value in given.items()},
            renderer=renderer,
            level_cache=self._cache,
        )
        controls = tuple(control["name"] for control in self._lab.action_spec())
        if controls != CONTROLS:
            self._lab.close()
            raise UnsupportedSpace(
                f"dmlab/{level} has the controls {', '.join(controls)}: levels with {', '.join(CONTROLS)} are supported"
            )
        self._is_open = True
        self._score = 0.0
        self._frame: Array = np.zeros(image.shape, np.uint8)
        self._words: Array = np.zeros(WORD_BUCKETS, np.uint8)
        self._instruction: str | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with a seed from the environment's generator."""
        super().reset(seed=seed)
        before = 0 if self._cache is None else self._cache.misses
        self._lab.reset(seed=int(self.np_random.integers(self._num_seeds)))
        self._misses = 0 if self._cache is None else self._cache.misses - before
        self._score, self._steps = 0.0, 0
        self._look()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat an action for ``frameskip`` frames, or until the episode ends."""
        given = float(self._lab.step(self._actions[action], num_steps=self._frameskip))
        terminated = not self._lab.is_running()
        if not terminated:
            self._look()
        self._score += given
        self._steps += 1
        reward = clipped(given) if self._clips else given
        # At every step, because a time limit of the run's may make it the last one.
        info: dict[str, Any] = {
            "reward_terms": {"clip": clipped(given) - reward},
            "true_objective": self._score,
        }
        if (terminated or self._steps == self._last_step) and self._cache is not None:
            info["metrics"] = {"generated_maps": self._misses}
        return self._observation(), reward, terminated, False, info

    def render(self) -> Any:
        """The last frame, uint8 ``[height, width, 3]``."""
        return self._frame.copy()

    def close(self) -> None:
        """End the engine."""
        if self._is_open:
            self._is_open = False
            self._lab.close()

    def _look(self) -> None:
        seen = self._lab.observations()
        self._frame = seen[_PICTURE]
        if self._instructions and seen[_INSTRUCTION] != self._instruction:
            self._instruction = seen[_INSTRUCTION]
            self._words = hashed_words(seen[_INSTRUCTION])

    def _observation(self) -> Any:
        return {"obs": self._frame, "instructions": self._words} if self._instructions else self._frame


def clipped(reward: float) -> float:
    """Clip a reward smoothly to (-1.5, 5): optimistic asymmetric clipping.

    As in IMPALA's code (``soft_asymmetric`` in experiment.py of google-deepmind/scalable_agent) and in Sample Factory's
    (sf_examples/dmlab/wrappers/reward_shaping.py).
    """
    squeezed = 5.0 * math.tanh(reward / 5.0)
    return 0.3 * squeezed if reward < 0 else squeezed


def _text(value: object) -> str:
    """A setting as the engine's scripts read it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
