"""The extensions that docs/your-own.md shows, run as a reader would: each in a file of its own."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rollmill
from rollmill.algorithms import registry as algorithm_registry
from rollmill.cli.program import main
from rollmill.envs import registry as env_registry
from rollmill.regimes import user_code
from rollmill.storage.checkpoints import CheckpointConfig, CheckpointStore

_PAGE = Path(__file__).resolve().parents[1] / "docs/your-own.md"
_BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", _PAGE.read_text(), re.DOTALL))
_SMALL = ["--num-envs", "4", "--rollout.num-workers", "1", "--quiet"]
_BATCH = ["--learner.batch-size", "64", "--rollout-length", "8", "--total-steps", "600"]
_WIDTH = ["--model.options.width", "16"]
_COMMANDS = {
    "maze.py": ["maze:Maze", *_BATCH],
    "nim.py": ["nim:Nim", *_BATCH],
    "drawn_maze.py": ["drawn_maze:DrawnMaze", *_BATCH],
    "network.py": ["gym/CartPole-v1", "--import", "network.py", "--model.encoder", "residual", *_WIDTH, *_BATCH],
    "normed.py": [
        *("gym/CartPole-v1", "--import", "normed.py", "--model.model", "normed", "--model.shared", "false", *_BATCH)
    ],
    "a2c.py": ["gym/CartPole-v1", "--import", "a2c.py", "--algo", "a2c", *_BATCH],
    "munchausen.py": [
        *("gym/CartPole-v1", "--import", "munchausen.py", "--algo", "munchausen"),
        *("--replay.min-size", "200", "--total-steps", "600"),
    ],
    "finetune.py": ["gym/CartPole-v1", "--callback", "finetune.py:Finetune", *_BATCH],
    "shuffled.py": ["gym/CartPole-v1", "--import", "shuffled.py", "--admission", "shuffled", *_BATCH],
    "beaten.py": [
        *("envpool/ConnectFour-v1", "--import", "beaten.py", "--population.matchmaking", "beaten"),
        *("--population.snapshot-every", "100", *_BATCH),
    ],
}


# One of each kind: an environment, a network, a model, an algorithm; `make test-slow` runs the others.
_QUICK = {"maze.py", "network.py"}


def test_every_block_with_a_name_is_run() -> None:
    assert set(_BLOCKS) == {*_COMMANDS, "check_maze.py"}


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for the program that runs in this process; forgets what is imported and registered there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module, attribute in user_code._REGISTRIES.values():
        registry = getattr(importlib.import_module(module), attribute)
        monkeypatch.setattr(registry, "factories", dict(registry.factories))
    monkeypatch.setattr("rollmill.algorithms.registry._on_policy", set(algorithm_registry._on_policy))
    monkeypatch.setattr("rollmill.envs.registry._registered", dict(env_registry._registered))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write_blocks(folder: Path) -> None:
    """Write all blocks, because some import others."""
    for name, text in _BLOCKS.items():
        (folder / name).write_text(text)


# In this process, whose fork server is up; tests/regimes/test_user_code.py starts programs of users.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in _COMMANDS]
)
def test_an_extension_of_the_page_trains(name: str, in_a_folder: Path) -> None:
    write_blocks(in_a_folder)
    assert main(["train", *_COMMANDS[name], *_SMALL, "--run-dir", "run"]) == 0
    log = (in_a_folder / "run/run.log").read_text()
    assert "end: finished" in log
    assert re.search(r"nothing was learned", log) is None


def test_gymnasium_accepts_the_maze(in_a_folder: Path) -> None:
    write_blocks(in_a_folder)
    sys.path.insert(0, str(in_a_folder))
    runpy.run_path("check_maze.py")


@pytest.mark.slow
def test_a_maze_that_renders_is_filmed(in_a_folder: Path) -> None:
    pytest.importorskip("imageio")
    write_blocks(in_a_folder)
    assert main(["train", *_COMMANDS["drawn_maze.py"], *_SMALL, "--run-dir", "run"]) == 0
    assert main(["eval", "run", "--episodes", "1", "--video", "maze.mp4"]) == 0
    assert (in_a_folder / "maze.mp4").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_network_has_options_of_its_own(in_a_folder: Path, algo: str) -> None:
    (in_a_folder / "network.py").write_text(_BLOCKS["network.py"])
    words = ["gym/CartPole-v1", "--import", "network.py", "--model.encoder", "residual", "--algo", algo, *_SMALL]
    few = ["--total-steps", "300"] + (["--replay.min-size", "100"] if algo == "dqn" else [])
    assert main(["train", *words, *_WIDTH, *few, "--run-dir", "run"]) == 0
    state = CheckpointStore(Path("run/checkpoints"), CheckpointConfig()).load_latest().state["model"]
    widths = {weight.shape[0] for name, weight in state.items() if name.endswith("layers.0.weight")}
    assert 16 in widths
    agent = rollmill.load("run", trust=True)  # builds a network of the same width
    assert agent.act(np.zeros(4, np.float32)) in (0, 1)
