"""The code in the documentation: Python blocks run, and commands have options and settings that exist.

Blocks of ``python`` are run. Blocks of ``py`` are shown only: the one of hub.md loads an agent from the Hugging Face
Hub, which tests must not depend on (tests/evaluation has a stand-in for it).
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rollmill
from rollmill.cli.command import split_overrides
from rollmill.cli.program import make_commands
from rollmill.envs.errors import MissingExtra
from rollmill.settings.options import full_keys, parse_overrides
from rollmill.settings.presets import resolve

_ROOT = Path(__file__).resolve().parents[1]
_PAGES = [page for page in sorted([_ROOT / "README.md", *_ROOT.glob("docs/**/*.md")]) if page.parent.name != "journal"]
_SMALL: dict[str, object] = {
    "num_envs": 4,
    "rollout_length": 8,
    "total_steps": 600,
    "quiet": True,
    "rollout.num_workers": 1,
    "learner.batch_size": 32,
    "learner.minibatches": 2,
}
# What recipes have in place of the numbers that a reader would choose, so that they end within seconds.
_SHORT = {
    "early_stopping.py": {"patience=100_000)": "patience=5_000)"},
    "cosine.py": {"total_steps=300_000": "total_steps=20_000"},
    "curriculum.py": {"goal=150": "goal=15", "total_steps=300_000": "total_steps=15_000"},
    "stages.py": {"100_000 * stage": "3_000 * stage"},
    "robustness.py": {"total_steps=300_000": "total_steps=20_000", "50_000": "8_000"},
    "find_rate.py": {"batches=80": "batches=20"},
}


def _blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def _name_of(block: str) -> str:
    """The name of the file that a block is, or nothing."""
    named = re.match(r"# (\w+\.py)\n", block)
    return named[1] if named else ""


_RECIPES = {_name_of(block): block for block in _blocks(_ROOT / "docs/recipes.md")}
# The named blocks of your-own.md are run by tests/test_your_own.py, each with its command.
_OTHERS = {
    f"{page.stem}-{number}": block
    for page in _PAGES
    for number, block in enumerate(_blocks(page), start=1)
    if page.stem != "recipes" and not (page.stem == "your-own" and _name_of(block))
}
_SCRIPTS = {name: block for name, block in _OTHERS.items() if "__main__" in block}
_SNIPPETS = {name: block for name, block in _OTHERS.items() if name not in _SCRIPTS}
_READ_FIRST = ("README-1", "quickstart-1")
_LONG = ("export-", "many-tasks-")


def _run(script: Path) -> str:
    finished = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, capture_output=True, text=True, timeout=400
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", _RECIPES)
def test_a_recipe_runs(name: str, tmp_path: Path) -> None:
    text = _RECIPES[name]
    for long, short in _SHORT[name].items():
        assert text.count(long) == 1, f"{name} has no {long!r} to shorten"
        text = text.replace(long, short)
    (tmp_path / name).write_text(text)
    printed = _run(tmp_path / name)
    expected = {
        "early_stopping.py": r"^callback \d+ \d",
        "cosine.py": r"^from \S+ up to 0\.00(0[5-9]\d*|1) and down to \S+$",
        "curriculum.py": r"^\d+, with [01] levels left$",
        "stages.py": r"^gravity 5\.0: \d+\ngravity 9\.8: \d+\ngravity 20\.0: \d+$",
        "robustness.py": r'^\{"checkpoint": "[^"]+\.pt", "noise": 0\.1, "mean_return": \d',
        "find_rate.py": r"^try --learner\.learning-rate \d\.\de-\d\d$",
    }
    assert re.search(expected[name], printed, re.MULTILINE), printed


class _Shrink(ast.NodeTransformer):
    """Makes the runs of a block small: ``rollmill.train`` gets other numbers of steps and environments.

    So do the trials of ``rollmill.sweep``, of which there are two. A run with the best settings of a sweep has theirs.
    """

    def visit_Call(self, call: ast.Call) -> ast.Call:
        self.generic_visit(call)
        changes = {"rollmill.train": _SMALL, "rollmill.sweep": {**_SMALL, "trials": 2}}.get(ast.unparse(call.func))
        if changes and "best_settings" not in ast.unparse(call):
            kept = [word for word in call.keywords if word.arg not in changes]
            small = ast.parse(f"f(**{changes!r})", mode="eval").body
            assert isinstance(small, ast.Call)
            call.keywords = [*kept, *small.keywords]
        return call


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains a small run, once for each environment and recurrent core."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def train(preset: str, core: str = "none") -> Path:
        settings: Any = {**_SMALL, "envs_per_group": 2, "model.core": core}
        return rollmill.train(preset, run_dir=folder / f"{preset.replace('/', '_')}-{core}", **settings).dir

    return train


def _around(text: str, run_of: Callable[..., Path]) -> dict[str, Any]:
    """What the program around a block of export.md has: an exported agent in the working directory, and names."""
    observation = np.zeros(4, np.float32)
    if "agent.onnx" in text:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
        rollmill.export(run_of("gym/CartPole-v1"), format="onnx", output="agent.onnx")
        return {"observation": {"obs": observation} if "observation.items()" in text else observation}
    if "agent.pt2" in text:
        rollmill.export(run_of("gym/CartPole-v1"), format="torch", output="agent.pt2")
        return {"observation": observation}
    if "agent.safetensors" in text:
        pytest.importorskip("safetensors")
        rollmill.export(run_of("gym/CartPole-v1"), format="safetensors", output="agent.safetensors")
    if "next_state" in text:
        file = rollmill.export(run_of("gym/CartPole-v1", "gru"), format="torch", output="agent.pt2")
        (size,) = next(port.shape for port in file.inputs if port.name == "state")
        return {
            "agent": torch.export.load("agent.pt2").module(),
            "observation": torch.from_numpy(observation)[None],
            "state": torch.zeros(1, size),
            "is_first": torch.tensor([True]),
        }
    return {}


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _READ_FIRST else pytest.mark.slow) for name in _SCRIPTS]
)
def test_a_script_of_a_page_runs(name: str, tmp_path: Path, run_of: Callable[..., Path]) -> None:
    text = _SCRIPTS[name]
    if "atari/" in text:
        pytest.importorskip("ale_py")
    if "watch(" in text:
        pytest.importorskip("pygame")
    if "sweep(" in text:
        pytest.importorskip("optuna")
    if "RUN_DIR" in text:
        text = text.replace("RUN_DIR", str(run_of("gym/CartPole-v1")))
    script = tmp_path / "script.py"
    script.write_text(ast.unparse(_Shrink().visit(ast.parse(text))))
    _run(script)
    assert list(tmp_path.glob("runs/*/*/run.log")), "the block trains nothing"


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name.startswith(_LONG) else ()) for name in _SNIPPETS],
)
def test_a_snippet_of_a_page_runs(
    name: str, tmp_path: Path, run_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = _SNIPPETS[name]
    if "doom" in text:
        pytest.importorskip("vizdoom")
    if "RUN_DIR" in text:
        if "task=" in text:
            pytest.importorskip("ale_py")
        preset = "atari/pong,atari/breakout" if "task=" in text else "gym/CartPole-v1"
        text = text.replace("RUN_DIR", str(run_of(preset)))
    monkeypatch.chdir(tmp_path)
    around = _around(text, run_of) if name.startswith("export-") else {}
    exec(compile(text, name, "exec"), {"__name__": name, **around})


def _commands_of(page: Path) -> list[str]:
    """The commands of a page: lines of blocks, with continuations, and code that begins with the program's name."""
    text = page.read_text()
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in ("", "sh", "bash"):
            lines = block.replace("\\\n", " ").splitlines()
            found += [re.sub(r"^torchrun .* -m ", "", line.strip()) for line in lines]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found += [" ".join(code.split()) for code in re.findall(r"`(rollmill [a-z][^`]*)`", prose)]
    return [command for command in found if command.startswith("rollmill ")]


_COMMANDS = [
    pytest.param(command, id=f"{page.stem}: {command[:60]}")
    for page in _PAGES
    for command in dict.fromkeys(_commands_of(page))
]


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_command_of_a_page_has_options_and_settings_that_exist(command: str) -> None:
    words = [word for word in shlex.split(command, comments=True)[1:] if word != "..."]
    words = ["1" if re.fullmatch("[A-Z]", word) else word for word in words]  # N stands for a number
    if "--KEY" in words or "[SETTINGS]" in words:
        return
    name, *words = words
    known = make_commands()[name]
    own, settings = split_overrides(words, known.options)
    overrides = parse_overrides(settings)
    assert not overrides or known.takes_settings
    full_keys(rollmill.make_config("gym/CartPole-v1"), overrides)
    is_asking = bool({"--help", "--help-all"} & set(own))
    if not words or is_asking:  # In prose, the name of a command alone; the help needs no other arguments.
        return
    arguments = known.parser.parse_args(own)
    preset = getattr(arguments, "tasks", None) or getattr(arguments, "preset", None) or ""
    if name == "train" and not (arguments.modules or arguments.resume) and _is_built_in(preset):
        rollmill.make_config(preset, overrides, algo=arguments.algo, protocol=arguments.protocol)


def _is_built_in(preset: str) -> bool:
    """Whether a name is no placeholder, and no environment of the reader's."""
    if "/" not in preset or ":" in preset or preset.startswith("my/"):
        return False
    try:
        resolve(preset)
    except MissingExtra as error:
        pytest.skip(str(error))
    return True
