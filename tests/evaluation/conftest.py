"""Runs that hold a network as it was initialised: all that evaluation reads of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rollmill.envs.config import EnvConfig
from rollmill.envs.factory import probe
from rollmill.envs.registry import register_env
from rollmill.models.config import ModelConfig
from rollmill.models.registry import make_model
from rollmill.runtime.signed_files import signed
from rollmill.settings.options import to_json
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

MakeRun = Callable[..., Path]


class Lengths(gym.Env[Any, Any]):
    """The episode's length depends on the environment's first seed: 2 or 20 steps; each step gives 1."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.length = 0
        self.left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.length = 2 if self.np_random.random() < 0.5 else 20
        self.left = self.length
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        metrics = {"steps": 1} if self.left else {"steps": 1, "length": self.length}
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {"metrics": metrics}


class Endless(Lengths):
    """The first episode is short; no other one ends."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        shown = super().reset(seed=seed, options=options)
        self.episodes += 1
        self.left = 3 if self.episodes == 1 else 1 << 60
        return shown


class Mixed(gym.Env[Any, Any]):
    """A dict observation with a mask that allows one choice only, and a tuple of actions; draws no pictures."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it
    observation_space = spaces.Dict(
        {
            "where": spaces.Discrete(3, start=1),
            "deep": spaces.Dict({"vector": spaces.Box(-1, 1, (2,), np.float64)}),
            "pair": spaces.Tuple([spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)]),
            "action_mask": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(-2.0, 2.0, (2,), np.float32)])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains((np.int64(action[0]), action[1]))
        assert action[0] == 6, "the mask was not obeyed"
        self.steps += 1
        return self.look(), 0.5, False, self.steps == 4, {}

    def look(self) -> dict[str, Any]:
        return {
            "where": np.int64(2),
            "deep": {"vector": np.array([0.25, -0.5])},
            "pair": (np.zeros(1, np.float32), np.int64(1)),
            "action_mask": np.array([0, 1, 0], np.int8),
        }


class Striped(gym.Env[Any, Any]):
    """Draws its step count as a grey value; observes an image whose first channel says the same."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - as Gymnasium declares it
    observation_space = spaces.Box(0, 255, (3, 12, 16), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, limit: int = 5) -> None:
        self.render_mode = render_mode
        self.limit = limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros((3, 12, 16), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full((3, 12, 16), self.steps, np.uint8), 2.0, self.steps == self.limit, False, {}

    def render(self) -> Any:
        return np.full((45, 61, 3), 40 * self.steps, np.uint8)


class Blind(Striped):
    """Takes no ``render_mode`` and draws nothing: the observation is all there is to see."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self) -> None:
        super().__init__()

    def render(self) -> Any:
        return None


class Windowed(Blind):
    """Renders in windows only, and declares that as Gymnasium's tutorial does."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, render_mode: str | None = None) -> None:
        assert render_mode is None or render_mode in self.metadata["render_modes"]
        super().__init__()


class Unlinked(Blind):
    """Its renderer lacks a library, which it loads if it is to draw."""

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise OSError("libGL.so.1: cannot open")
        super().__init__()


class UnlinkedAndSightless(Unlinked):
    """Cannot draw without ``render_mode``."""

    def render(self) -> Any:
        raise AttributeError("'UnlinkedAndSightless' object has no attribute 'renderer'")


class UnlinkedAndBlind(Lengths):
    """Lacks a library for drawing, and observes no image."""

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise OSError("libGL.so.1: cannot open")
        super().__init__()


class Crashing(Striped):
    """Its renderer lacks a library."""

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled("a library for drawing")


class Broken(Striped):
    """Draws something that is no picture."""

    def render(self) -> Any:
        return np.zeros((4, 4))


class Painted(Striped):
    """Draws what it is given, of the size or the values that it is given."""

    def __init__(self, render_mode: str | None = None, sizes: Any = ((45, 61),), value: Any = 0, dtype: str = "uint8"):
        super().__init__(render_mode, limit=len(sizes))
        self.sizes, self.value, self.dtype = sizes, value, dtype

    def render(self) -> Any:
        return np.full((*self.sizes[self.steps - 1], 3), self.value, self.dtype)


class Remembers(Lengths):
    """Long enough to have something to remember."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.left = 10
        return observation, info


class Cell(gym.Env[Any, Any]):
    """Shows the number of a cell as an array of one element, and asserts that actions are numbers."""

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it
    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.array([0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert np.ndim(action) == 0
        self.steps += 1
        return np.array([self.steps]), 1.0, self.steps == 3, False, {}


class CellAndView(Cell):
    """Also shows a view; the cell is the first entry."""

    observation_space = spaces.Dict({"cell": spaces.Discrete(4), "view": spaces.Box(-1, 1, (3,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        cell, info = super().reset(seed=seed)
        return {"cell": cell, "view": np.zeros(3, np.float32)}, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        cell, *others = super().step(action)
        return {"cell": cell, "view": np.zeros(3, np.float32)}, *others


REGISTERED = {
    "test/cell_and_view": CellAndView,
    "test/cell": Cell,
    "test/lengths": Lengths,
    "test/endless": Endless,
    "test/mixed": Mixed,
    "test/striped": Striped,
    "test/blind": Blind,
    "test/broken": Broken,
    "test/windowed": Windowed,
    "test/crashing": Crashing,
    "test/painted": Painted,
    "test/unlinked": Unlinked,
    "test/unlinked_and_sightless": UnlinkedAndSightless,
    "test/unlinked_and_blind": UnlinkedAndBlind,
    "test/remembers": Remembers,
}


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    torch.set_num_threads(1)
    for name, factory in REGISTERED.items():
        register_env(name, factory)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(name: str, *, model: ModelConfig | None = None, agent_steps: int = 123, seed: int = 0, **env: Any) -> Path:
        run_dir = tmp_path / name.replace("/", "_")
        run_dir.mkdir(exist_ok=True)
        model = model or ModelConfig()
        config = EnvConfig(name=name, **env)
        content = signed({**to_json(config), **to_json(model)})
        (run_dir / "config.json").write_text(json.dumps(content))
        spec = probe(config)
        torch.manual_seed(seed)
        network = make_model(spec.observation, spec.action, model)
        store = CheckpointStore(run_dir / "checkpoints", CheckpointConfig())
        store.save(
            {"model": network.state_dict(), "counters": {"agent_steps": agent_steps}},
            agent_steps=agent_steps,
            metric=float(agent_steps),
        )
        return run_dir

    return make
