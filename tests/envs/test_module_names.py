"""Error messages for unknown environment names of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from rollmill.envs.config import EnvConfig
from rollmill.envs.errors import UnknownEnvironment
from rollmill.envs.factory import probe
from rollmill.settings.presets import resolve

MODULE = """
from gymnasium import Env
from gymnasium.vector import VectorEnv

class Chase(Env): ...
class Labyrinth(Chase): ...
class Many(VectorEnv): ...
class Colour: ...

def make_maze(size=3): return Chase()

SIZE = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mazelib.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    gymnasium.register("Corridor-v0", entry_point="mazelib:Chase")
    yield
    gymnasium.registry.pop("Corridor-v0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mazelib:Chse", "no environment 'Chse'; did you mean 'mazelib:Chase'?"),
        ("mazelib:labirynth", "did you mean 'mazelib:Labyrinth'?"),
        ("mazelib:mkmaze", "did you mean 'mazelib:make_maze'?"),
        ("mazelib:Coridor-v0", "did you mean 'mazelib:Corridor-v0'?"),
        (
            "mazelib:Xyzzy",
            "it has 'mazelib:Chase', 'mazelib:Labyrinth', 'mazelib:Many'",
        ),
        ("mazelib:SIZE", "is 3, int; an environment of your own is given as 'module:Class'"),
        ("gym/mazelib:Chse", "did you mean 'mazelib:Chase'?"),
        ("mazlib:Chase", "no module 'mazlib' in .*; did you mean 'mazelib:Chase'?"),
        ("mazelib.Chase", "use 'mazelib:Chase'"),
        ("mazelib/Chase", "use 'mazelib:Chase'"),
        ("mazelib.py:Chase", "names a file; .* use 'mazelib:Chase'"),
        ("there/mazes.py:Chase", "use 'mazes:Chase' with --import there/mazes.py"),
        ("mazelib", "is a module in .*: name one of its classes"),
        (":Chase", "there is no module ''"),
    ],
)
def test_unknown_name_suggests_the_modules_environments(name: str, message: str) -> None:
    with pytest.raises(UnknownEnvironment, match=message) as caught:
        resolve(name)
    assert "atari/" not in str(caught.value)


def test_saved_run_with_a_renamed_class_suggests_environments() -> None:
    with pytest.raises(UnknownEnvironment, match="did you mean 'mazelib:Chase'"):
        probe(EnvConfig(name="mazelib:Chaser"))
