"""Modules in the working directory are found where the user names code of his own, behind all installed ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rollmill
from rollmill.cli import main
from rollmill.settings.run_config import write_config

PROGRAM = "import sys, rollmill.cli; sys.exit(rollmill.cli.main())"
MINE = """
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
import subprocess, sys

class Mine(CartPoleEnv):
    def __init__(self):
        super().__init__()
        subprocess.run([sys.executable, "script_of_mine.py"], check=True)
"""
TINY = [
    *("--num-envs", "2", "--rollout-length", "8", "--rollout.num-workers", "1"),
    *("--learner.batch-size", "16", "--learner.minibatches", "1"),
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # So that what main makes of it ends with the test.


def plant(folder: Path, *names: str) -> Path:
    """Modules that touch a file when they are imported; returns it."""
    marker = folder / "imported"
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()")
    return marker


def program(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """``rollmill``, as its own process in a folder."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    command = [sys.executable, "-P", "-c", PROGRAM, *words]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_installed_modules_go_first_in_every_process_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "of_mine.py").write_text(MINE)
    (tmp_path / "script_of_mine.py").write_text("import beside_it")
    (tmp_path / "beside_it.py").write_text("open('ran', 'w').close()")
    marker = plant(tmp_path, "gymnasium", "torch", "multiprocessing", "rollmill", "numpy", "runpy")
    done = program("train", "of_mine:Mine", "--run-dir", "run", "--total-steps", "16", *TINY, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").exists()
    assert not marker.exists()


@pytest.mark.parametrize(
    ("command", "is_searched"),
    [
        ("envs gym", False),
        ("train gym/CartPole-v1 --num-envs few", False),
        ("train atari/pong --num-envs few", False),
        ("train gym/CartPole-v1 --settings plain.json --quiet", False),
        ("plot run", False),
        ("report run", False),
        ("train of_nobody:Env", True),
        ("train gym/CartPole-v1 --env.wrappers of_nobody.Wrapper --num-envs few", True),
        ("tournament random random --env of_nobody:Env", True),
        ("tournament random random --env gym/CartPole-v1", False),
        ("train gym/of_nobody:Env-v0", True),
        ("train gym/CartPole-v1 --import of_nobody", True),
        ("train gym/CartPole-v1 --env.imports of_nobody", True),
        ("train gym/CartPole-v1 --imports of_nobody", True),
        ("train gym/CartPole-v1 --env.kwargs.a of_nobody:a --num-envs few", True),
        ("train of_nobody:Env --help", True),
    ],
)
def test_the_folder_is_searched_only_for_code_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, is_searched: bool
) -> None:
    (tmp_path / "plain.json").write_text(json.dumps({"no_such_setting": 1}))
    before = list(sys.path)
    main(command.split())
    assert sys.path == [*before, str(tmp_path)] if is_searched else sys.path == before


@pytest.mark.parametrize(
    ("env", "words", "is_searched"),
    [
        ("gym/CartPole-v1", "", False),
        ("gym/CartPole-v1", "--trust", False),
        ("of_nobody:Env", "", True),
        ("gym/CartPole-v1", "--import of_nobody", True),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        *("eval {}", "watch {} --video a.mp4", "train --resume --run-dir {} --num-envs few"),
        *("tournament random {}", "tournament {}/checkpoints/best.pt random"),
    ],
)
def test_the_folder_of_an_own_run_is_searched_only_if_the_run_names_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, words: str, is_searched: bool, command: str
) -> None:
    """A copy of an own run is signed, whatever lies beside its configuration."""
    from dataclasses import replace

    config = rollmill.make_config("gym/CartPole-v1")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "best.pt").touch()
    write_config(tmp_path / "run", replace(config, env=replace(config.env, name=env)))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    before = list(sys.path)
    main([*command.format(".").split(), *words.split()])
    assert sys.path == [*before, str(tmp_path / "copy")] if is_searched else sys.path == before
