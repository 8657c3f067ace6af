"""A stand-in for DeepMind Lab's Python module: no package index has it, and its build needs a network.

It has the methods of ``deepmind_lab.Lab`` as documented (docs/users/python_api.md of google-deepmind/lab), and refuses
the arguments that the module refuses (python/dmlab_module.c): observations that are no list, settings that are no text,
actions of another type than ``np.intc``, and anything but a reset after the end of an episode.

There is no game: frames show the seed and the frame number, going forward pays 1 a frame, going backward costs 1, and
firing pays 10. The setting ``pays`` is what every frame pays instead, ``episodeLengthFrames`` the length of an episode.
"""

from __future__ import annotations

import os
import tempfile
import zipfile

import numpy as np

_CONTROLS = (
    ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", 512),
    ("LOOK_DOWN_UP_PIXELS_PER_FRAME", 512),
    ("STRAFE_LEFT_RIGHT", 1),
    ("MOVE_BACK_FORWARD", 1),
    ("FIRE", 1),
    ("JUMP", 1),
    ("CROUCH", 1),
)
INSTRUCTIONS = ("Pick the red object in the blue room.", "Pick the blue object in the red room.")


class Lab:
    """An engine; ``made`` has all that were made, ``calls`` and ``seeds`` what each was told."""

    made: list[Lab] = []  # noqa: RUF012 - of the module, for tests in this process

    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        if not isinstance(level, str) or type(observations) is not list or type(config) is not dict:
            raise TypeError("level must be str, observations list and config dict")
        if not all(isinstance(text, str) for item in config.items() for text in item):
            raise TypeError("bad argument type for built-in operation")
        if renderer not in ("software", "hardware"):
            raise RuntimeError(f'Failed to set renderer must be "hardware" or "software" actual "{renderer}"!')
        if level.endswith("/missing"):
            raise RuntimeError(f"Invalid levelName flag '{level}'")
        known = ["RGB_INTERLEAVED"] + ["INSTR"] * level.startswith("contributed/dmlab30/")
        for name in observations:
            if name not in known:
                raise ValueError(f"Unknown observation '{name}'.")
        self.level, self.wanted, self.config, self.renderer = level, observations, config, renderer
        self.cache = level_cache
        self.calls, self.seeds = [], []
        self.frame, self.length, self.is_closed = -1, int(config.get("episodeLengthFrames", "42")), False
        self.pays, self.generated = float(config.get("pays", "0")), 0
        Lab.made.append(self)

    def action_spec(self):
        controls = _CONTROLS[:3] if self.level == "tests/custom_actions" else _CONTROLS
        return [{"min": -high if "_" in name else 0, "max": high, "name": name} for name, high in controls]

    def reset(self, episode=-1, seed=None):
        if not isinstance(seed, int):
            raise ValueError("'seed' must be int or None")
        assert not self.is_closed
        self.seeds.append(seed)
        self.frame = 0
        if "/explore_" in self.level:
            self._make_map(f"{self.level.rpartition('/')[2]}_{seed}")
        return True

    def _make_map(self, key):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "map.pk3")
            if self.cache is not None and self.cache.fetch(key, path):
                with zipfile.ZipFile(path) as archive:
                    assert archive.read("maps/map.bsp") == key.encode() * 50
                return
            self.generated += 1
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("maps/map.bsp", key.encode() * 50)
            if self.cache is not None:
                self.cache.write(key, path)

    def is_running(self):
        return not self.is_closed and 0 <= self.frame < self.length

    def num_steps(self):
        return self.frame

    def step(self, action, num_steps=1):
        if not isinstance(action, np.ndarray) or action.dtype != np.intc or action.shape != (len(_CONTROLS),):
            raise ValueError("action must have dtype np.intc")
        if not self.is_running():
            raise RuntimeError("Environment in wrong status to advance.")
        self.calls.append((tuple(action.tolist()), num_steps))
        played = min(num_steps, self.length - self.frame)
        self.frame += played
        return float(played * (self.pays or action[3] + 10 * action[4]))

    def observations(self):
        if not self.is_running():
            raise RuntimeError("Environment in wrong status for call to observations()")
        height, width = int(self.config["height"]), int(self.config["width"])
        picture = np.random.default_rng([self.seeds[-1], self.frame]).integers(0, 256, (height, width, 3), np.uint8)
        every = {"RGB_INTERLEAVED": picture, "INSTR": INSTRUCTIONS[self.frame // 20 % 2]}
        return {name: every[name] for name in self.wanted}

    def close(self):
        was_open, self.is_closed = not self.is_closed, True
        return was_open
