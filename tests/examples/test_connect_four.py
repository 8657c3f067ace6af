"""The example that plays connect four against a person, who answers whatever is asked."""

from __future__ import annotations

import io
import runpy
import sys
from pathlib import Path

import pytest

import rollmill

EXAMPLE = Path(__file__).parents[2] / "examples/connect_four.py"


@pytest.mark.slow
def test_a_game_is_played_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(run.dir)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].endswith(("you win", "you lose", "a draw"))
    assert "1 2 3 4 5 6 7" in shown
