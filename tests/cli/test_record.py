"""``rollmill record``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollmill
from rollmill.cli.program import main

pytest.importorskip("minari")


@pytest.mark.slow
def test_it_writes_a_dataset_and_tells_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    small = {"num_envs": 4, "rollout_length": 8, "learner.batch_size": 64, "learner.minibatches": 1}
    run = rollmill.train("gym/CartPole-v1", run_dir=tmp_path / "run", quiet=True, total_steps=64, **small)
    assert main(["record", str(run.dir), "cartpole/test-v0", "--episodes", "3", "--seed", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["episodes"] == 3
    assert told["steps"] == pytest.approx(3 * told["mean_return"])
    assert Path(told["folder"]).is_relative_to(tmp_path / "datasets")
    assert main(["record", str(run.dir), "cartpole/test-v0", "--episodes", "3"]) == 2
    assert "already" in capsys.readouterr().err
    assert main(["record", str(tmp_path / "none"), "cartpole/other-v0"]) == 2
