"""The example that plays connect four against a person, who answers whatever is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rollmill

EXAMPLE = Path(__file__).parents[2] / "examples/connect_four.py"


def test_a_game_is_played_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    run = rollmill.train(
        "envpool/ConnectFour-v1",
        run_dir=tmp_path / "run",
        quiet=True,
        total_steps=300,
        **{"num_envs": 4, "rollout_length": 16, "learner.batch_size": 64, "learner.minibatches": 2},
    )
    # What is no column, and what is full, is asked for again.
    answers = "nothing\n9\n" + "".join(f"{column}\n" * 6 for column in range(1, 8))
    command = [sys.executable, str(EXAMPLE), str(run.dir)]
    played = subprocess.run(command, input=answers, capture_output=True, text=True, timeout=120)
    assert played.returncode == 0, played.stderr
    assert played.stdout.splitlines()[-1].endswith(("you win", "you lose", "a draw"))
    assert "1 2 3 4 5 6 7" in played.stdout
