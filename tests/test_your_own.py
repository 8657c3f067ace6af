"""The extensions that docs/your-own.md shows, run as a reader would: each in a file of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_PAGE = Path(__file__).resolve().parents[1] / "docs/your-own.md"
_BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", _PAGE.read_text(), re.DOTALL))
_SMALL = ["--num-envs", "4", "--rollout.num-workers", "1", "--quiet"]
_BATCH = ["--learner.batch-size", "64", "--rollout-length", "8", "--total-steps", "600"]
_COMMANDS = {
    "maze.py": ["maze:Maze", *_BATCH],
    "nim.py": ["nim:Nim", *_BATCH],
    "network.py": ["gym/CartPole-v1", "--import", "network.py", "--model.encoder", "residual", *_BATCH],
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


def test_every_block_with_a_name_is_run() -> None:
    assert set(_BLOCKS) == set(_COMMANDS)


@pytest.mark.parametrize("name", _COMMANDS)
def test_an_extension_of_the_page_trains(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(_BLOCKS[name])
    command = [sys.executable, "-m", "rollmill", "train", *_COMMANDS[name], *_SMALL, "--run-dir", "run"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    log = (tmp_path / "run/run.log").read_text()
    assert "end: finished" in log
    assert re.search(r"nothing was learned", log) is None
