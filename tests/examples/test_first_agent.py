"""The example that ``make train`` runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/first_agent.py"


def test_it_trains_evaluates_and_films(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    arguments = [
        "--preset",
        "gym/CartPole-v1",
        "--minutes",
        "0.05",
        "--episodes",
        "4",
        "--run-dir",
        str(tmp_path / "r"),
    ]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("before training", "after training"):
        assert re.search(rf"^{name}: +\d+\.\d\d   \[\d+\.\d\d, \d+\.\d\d\]$", done.stdout, re.MULTILINE), done.stdout
    assert (tmp_path / "r/agent.mp4").stat().st_size > 0
    assert (tmp_path / "r/learning_curve.png").exists()
